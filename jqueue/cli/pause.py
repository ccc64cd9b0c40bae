"""`jqueue pause URL ENTRYPOINT`: its jobs are no longer claimed, until `jqueue resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, Opened, on_queue
from jqueue.cli.printing import show, show_json
from jqueue.domain.stats import EntrypointStats

Entrypoint = Annotated[str, typer.Argument(metavar="ENTRYPOINT", help="Whose jobs.", show_default=False)]


def pause(url: URL, entrypoint: Entrypoint, as_json: AsJSON = False) -> None:
    """Pause an entrypoint: its jobs are not claimed until `jqueue resume`.

    Jobs in progress go on, and new jobs may be enqueued. An entrypoint without jobs can be paused beforehand.
    """

    async def hold(opened: Opened) -> EntrypointStats:
        await opened.queue.pause(entrypoint)
        return opened.figures(entrypoint)

    before = on_queue(url, hold, as_json=as_json)
    if as_json:
        show_json({"entrypoint": entrypoint, "paused": True, "changed": not before.paused})
    elif before.paused:
        show("it was paused already")
    else:
        waiting = before.depth + before.scheduled
        show(f"paused until `jqueue resume`: {waiting} waiting; {before.in_progress} in progress go on")
