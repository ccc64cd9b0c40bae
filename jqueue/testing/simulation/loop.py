"""Several processes on one event loop, in virtual time: each can be paused for minutes, or die at any instruction.

Which process a callback belongs to is told by its context. The callbacks of a paused process are kept until it goes
on; those of a dead one are dropped, so that not even its `finally` blocks run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from jqueue.testing.virtual_time import VirtualTimeLoop

CURRENT: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("process", default=None)


class SimulatedProcess:
    """A part of the program that shares nothing with the others but the store.

    Attributes:
        name: tells it from the others.
        paused: nothing of it runs now.
        dead: nothing of it will ever run again.
        tasks: what it runs.
        pauses: from when to when nothing of it ran.
    """

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.paused = False
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.pauses: list[tuple[float, float]] = []
        self._paused_at = 0.0
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self)
        self._backlog: list[tuple[Callable[..., object], tuple[Any, ...], contextvars.Context]] = []

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        task = self._loop.create_task(main, context=self._context.copy())
        self.tasks.append(task)
        return task

    def keep(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        """A callback came while nothing runs."""
        self._backlog.append((callback, args, context))

    def pause(self) -> None:
        """Nothing runs from now on."""
        self.paused, self._paused_at = True, self._loop.time()

    def go_on(self) -> None:
        """What came meanwhile runs now, in its order."""
        self.paused = self.dead = False
        self.pauses.append((self._paused_at, self._loop.time()))
        backlog, self._backlog = self._backlog, []
        for callback, args, context in backlog:
            self._loop.call_soon(callback, *args, context=context)

    def die(self) -> None:
        """Nothing runs again, until `go_on` lets the dead unwind when all is over."""
        self.paused = self.dead = True


class SimulatedLoop(VirtualTimeLoop):
    """A loop with virtual time that keeps processes apart."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As in asyncio, unless the process is paused or dead."""
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None and process.paused:
            context = contextvars.copy_context() if context is None else context
            process.keep(callback, args, context)
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As in asyncio; if the process is paused at that time, when it goes on."""
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        kept_context = contextvars.copy_context() if context is None else context
        handle: asyncio.TimerHandle

        def fire() -> None:
            if process.paused:
                process.keep(lambda: None if handle.cancelled() else callback(*args), (), kept_context)
            else:
                callback(*args)

        handle = super().call_at(when, fire, context=kept_context)
        return handle
