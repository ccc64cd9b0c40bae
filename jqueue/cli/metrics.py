"""`jqueue metrics URL`: the metrics of a queue, for Prometheus: once, or for as long as it is scraped."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, OpenedQueue, on_queue
from jqueue.cli.parameters import option
from jqueue.telemetry.listener import listening
from jqueue.telemetry.prometheus import DEADLINE, PrometheusMetrics
from jqueue.worker.signals import handle_signals


def metrics(
    url: URL,
    listen: Annotated[
        str | None,
        option(
            "HOST:PORT",
            "Serve the metrics at http://HOST:PORT/metrics until stopped, such as 127.0.0.1:9464. By "
            "default print them once.",
        ),
    ] = None,
) -> None:
    """Print the metrics of a queue in the text format of Prometheus, or serve them.

    This command only reads. With --listen, Prometheus scrapes it, and the queue is read at each scrape. While it cannot
    be read, `jqueue_up` is 0, and the other metrics are the last ones. SIGTERM or Ctrl-C stops it.

    Exits with 2 if the queue does not exist or cannot be read, or if the address cannot be listened on.
    """

    async def export(opened: OpenedQueue) -> bytes:
        exporter = PrometheusMetrics(every=None, commits=False)
        async with exporter.watch(opened.queue):
            if listen is None:
                return await exporter.fresh_text(DEADLINE)
            async with listening(listen, {"/metrics": exporter.page()}) as address:
                typer.echo(f"serving http://{address}/metrics", err=True)
                stopped = asyncio.Event()  # by SIGTERM or Ctrl-C
                with handle_signals(stopped.set):
                    await stopped.wait()
            return b""

    typer.echo(on_queue(url, export).decode(), nl=False)
