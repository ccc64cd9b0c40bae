"""The probes of a worker, by HTTP: `/healthz`, `/readyz`, and `/metrics` if there are metrics to show.

`/healthz` says that the process is alive: it answers 200 while the event loop turns, also when the store does not
answer, as a restart would not help. `/readyz` says that the worker does its work: 200 while it claims jobs and all of
its calls to the queue succeed, and otherwise 503. Both name the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from jqueue.domain.errors import CASConflictError
from jqueue.ports.log import logger_of
from jqueue.ports.observer import Observer
from jqueue.telemetry.exporters import Exporter, kind_of, place_name
from jqueue.telemetry.listener import Listener, Page
from jqueue.worker.queue_health import QueueHealth
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")


class Probes(Observer):
    """Makes the pages of the probes. It observes the calls to the store, as a long poll hides failures for a while.

    Args:
        name: name of the worker.
        queue: its queue.
        phase: returns the phase of the run: "opening", "working", "stopping" or "closing".
        state: the state of the run.
        health: the state of its calls to the queue.
    """

    def __init__(
        self, name: str, queue: object, phase: Callable[[], str], state: RunState, health: QueueHealth
    ) -> None:
        self._name = name
        self._queue = place_name(queue)
        self._phase = phase
        self._state = state
        self._health = health
        self._failure: str | None = None

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        if call in ("read", "write") and not isinstance(error, asyncio.CancelledError | CASConflictError):
            self._failure = None if error is None else f"the store fails to {call}: {kind_of(error)}"

    async def healthz(self) -> Page:
        """Return the page of the liveness probe."""
        over = self._health.given_up
        return self._page(not over, "gave up" if over else "alive")

    async def readyz(self) -> Page:
        """Return the page of the readiness probe."""
        if self._phase() != "working":
            return self._page(False, self._phase())
        if not self._health.has_answered:
            return self._page(False, "the queue has not answered yet")
        trouble = self._health.trouble
        if self._failure is not None:
            trouble.append(self._failure)
        return self._page(not trouble, "; ".join(trouble) or "ready")

    def _page(self, ok: bool, status: str) -> Page:
        facts: dict[str, Any] = {
            "status": status,
            "worker": self._name,
            "queue": self._queue,
            "phase": self._phase(),
            "running": len(self._state.running),
            "slots": self._state.concurrency,
        }
        return Page(json.dumps(facts).encode() + b"\n", 200 if ok else 503, "application/json")


def exporter_for(metrics: Exporter | None) -> Exporter | None:
    """Return the exporter of a worker with probes: its own, or one for the probes if its library is there."""
    if metrics is not None:
        return metrics
    try:
        from jqueue.telemetry.prometheus import PrometheusMetrics
    except ImportError:
        return None
    return PrometheusMetrics(every=None)


async def open_probes(stack: AsyncExitStack, address: str, probes: Probes, exporter: Exporter | None) -> None:
    """Serve the probes until the stack is closed.

    Args:
        stack: closes the listener.
        address: such as "127.0.0.1:8080".
        probes: make the pages.
        exporter: makes the page of the metrics; None: there is none.

    Raises:
        InvalidJobError: the address cannot be listened on.
    """
    pages: dict[str, Callable[[], Awaitable[Page]]] = {"/healthz": probes.healthz, "/readyz": probes.readyz}
    if exporter is not None:

        async def metrics() -> Page:
            return Page(await exporter.fresh_text(), kind=exporter.content_type)

        pages["/metrics"] = metrics
    listener = await stack.enter_async_context(Listener(address, pages))
    logger.info("probes at http://%s: %s", listener.address, ", ".join(pages))
