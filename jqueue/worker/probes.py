"""The probes of a worker or a broker, by HTTP: `/healthz`, `/readyz`, and `/metrics` if there are metrics to show.

`/healthz` says that the process is alive: it answers 200 while the event loop turns, also when the store does not
answer, as a restart would not help. `/readyz` says that the worker does its work: 200 while it claims jobs and all of
its calls to the queue succeed, and otherwise 503. Both name the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from jqueue.domain.errors import CASConflictError, JQueueError
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.observer import Observer
from jqueue.telemetry.exporters import kind_of, observed, place_name
from jqueue.telemetry.listener import Page, PageMaker, listening
from jqueue.worker.queue_health import QueueHealth

if TYPE_CHECKING:
    from jqueue.telemetry.prometheus import PrometheusMetrics

logger: Logger = logger_of("jqueue.worker")


LOOK = "a look at the queue"

LOOK_TIME = 1.0
"""Seconds for a probe to wait for the store."""


class Probes(Observer):
    """Makes the pages of the probes. It observes the calls to the store, as a long poll hides failures for a while.

    Args:
        queue: the queue.
        health: its health, and whether the process has given up.
        phase: returns the phase of the process; "working" while it does its work.
        facts: returns more to show.
        look: reads the store, for a process that may have nothing to do. Then the health is told of each call to it.
    """

    def __init__(
        self,
        queue: object,
        health: QueueHealth,
        phase: Callable[[], str],
        facts: Callable[[], dict[str, Any]],
        look: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.queue: object = queue
        self._health, self._phase, self._facts, self._look = health, phase, facts, look
        self._failure: str | None = None

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        if call not in ("read", "write") or isinstance(error, asyncio.CancelledError | CASConflictError):
            return
        self._failure = None if error is None else f"the store fails to {call}: {kind_of(error)}"
        if self._look is not None and error is None:
            self._health.answered(f"a {call}")
        elif self._look is not None and isinstance(error, Exception):
            self._health.failed(f"a {call}", error)

    async def healthz(self) -> Page:
        """Return the page of the liveness probe."""
        over = self._health.given_up
        return self._page(not over, "gave up" if over else "alive")

    async def readyz(self) -> Page:
        """Return the page of the readiness probe."""
        if self._phase() != "working":
            return self._page(False, self._phase())
        if self._look is not None:
            try:
                async with asyncio.timeout(LOOK_TIME):
                    await self._look()
                self._health.answered(LOOK)
            except TimeoutError:
                return self._page(False, f"the store has not answered for {LOOK_TIME:g} s")
            except JQueueError as error:
                if self._failure is None:  # the store answers, and has no queue
                    self._health.failed(LOOK, error)
                return self._page(False, f"the store cannot be read: {kind_of(error)}")
        if not self._health.has_answered:
            return self._page(False, "the queue has not answered yet")
        trouble = self._health.trouble
        if self._failure is not None:
            trouble.append(self._failure)
        return self._page(not trouble, "; ".join(trouble) or "ready")

    def _page(self, ok: bool, status: str) -> Page:
        facts = {"status": status, "queue": place_name(self.queue), "phase": self._phase(), **self._facts()}
        return Page(json.dumps(facts).encode() + b"\n", 200 if ok else 503, "application/json")


async def open_probes(
    stack: AsyncExitStack, address: str, probes: Sequence[Probes], exporter: PrometheusMetrics | None
) -> PrometheusMetrics | None:
    """Serve the probes until the stack is closed, with the metrics if their library is there.

    Args:
        stack: closes the listener.
        address: such as "127.0.0.1:8080".
        probes: make the pages, one for each queue. The first page that says no is shown.
        exporter: of the metrics; None for a new one.

    Returns:
        The exporter of the metrics; None: there is none.

    Raises:
        InvalidJobError: the address cannot be listened on.
    """
    if exporter is None:
        with suppress(ImportError):
            from jqueue.telemetry.prometheus import PrometheusMetrics

            exporter = PrometheusMetrics(every=None)

    async def page_of(make: Callable[[Probes], Awaitable[Page]]) -> Page:
        pages = [await make(each) for each in probes]
        return next((page for page in pages if page.status != 200), pages[0])

    healthz, readyz = partial(page_of, Probes.healthz), partial(page_of, Probes.readyz)
    pages = {"/healthz": PageMaker(healthz), "/readyz": PageMaker(readyz)}
    if exporter is not None:
        pages["/metrics"] = exporter.page()
    served = await stack.enter_async_context(listening(address, pages))
    logger.info("probes at http://%s: %s", served, ", ".join(pages))
    for each in probes:
        stack.enter_context(observed(each.queue, each))
    return exporter
