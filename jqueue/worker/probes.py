"""The probes of a worker, by HTTP: `/healthz`, `/readyz`, and `/metrics` if there are metrics to show.

`/healthz` says that the process is alive: it answers 200 while the event loop turns, also when the store does not
answer, as a restart would not help. `/readyz` says that the worker does its work: 200 while it claims jobs and all of
its calls to the queue succeed, and otherwise 503. Both name the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from jqueue.domain.errors import CASConflictError
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.observer import Observer
from jqueue.telemetry.exporters import kind_of, observed, place_name
from jqueue.telemetry.listener import Page, PageMaker, listening
from jqueue.worker.run_state import RunState

if TYPE_CHECKING:
    from jqueue.telemetry.prometheus import PrometheusMetrics

logger: Logger = logger_of("jqueue.worker")


class Probes(Observer):
    """Makes the pages of the probes. It observes the calls to the store, as a long poll hides failures for a while.

    Args:
        state: the state of the run.
        phase: returns the phase of the run.
    """

    def __init__(self, state: RunState, phase: Callable[[], str]) -> None:
        self._state = state
        self._phase = phase
        self._failure: str | None = None

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        if call in ("read", "write") and not isinstance(error, asyncio.CancelledError | CASConflictError):
            self._failure = None if error is None else f"the store fails to {call}: {kind_of(error)}"

    async def healthz(self) -> Page:
        """Return the page of the liveness probe."""
        over = self._state.health.given_up
        return self._page(not over, "gave up" if over else "alive")

    async def readyz(self) -> Page:
        """Return the page of the readiness probe."""
        if self._phase() != "working":
            return self._page(False, self._phase())
        if not self._state.health.has_answered:
            return self._page(False, "the queue has not answered yet")
        trouble = self._state.health.trouble
        if self._failure is not None:
            trouble.append(self._failure)
        return self._page(not trouble, "; ".join(trouble) or "ready")

    def _page(self, ok: bool, status: str) -> Page:
        facts: dict[str, Any] = {
            "status": status,
            "worker": self._state.name,
            "queue": place_name(self._state.queue),
            "phase": self._phase(),
            "running": self._state.running,
            "slots": self._state.concurrency,
        }
        return Page(json.dumps(facts).encode() + b"\n", 200 if ok else 503, "application/json")


async def open_probes(
    stack: AsyncExitStack, address: str, state: RunState, phase: Callable[[], str]
) -> PrometheusMetrics | None:
    """Serve the probes until the stack is closed, with the metrics if their library is there.

    Args:
        stack: closes the listener.
        address: such as "127.0.0.1:8080".
        state: the state of the run.
        phase: returns the phase of the run: "opening", "working", "stopping" or "closing".

    Returns:
        The exporter of the metrics; None: there is none.

    Raises:
        InvalidJobError: the address cannot be listened on.
    """
    probes, exporter = Probes(state, phase), state.settings.metrics
    if exporter is None:
        with suppress(ImportError):
            from jqueue.telemetry.prometheus import PrometheusMetrics

            exporter = PrometheusMetrics(every=None)
    pages = {"/healthz": PageMaker(probes.healthz), "/readyz": PageMaker(probes.readyz)}
    if exporter is not None:
        pages["/metrics"] = exporter.page()
    served = await stack.enter_async_context(listening(address, pages))
    logger.info("probes at http://%s: %s", served, ", ".join(pages))
    stack.enter_context(observed(state.queue, probes))
    return exporter
