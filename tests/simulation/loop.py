"""Several processes on one event loop, in virtual time: each can be paused for minutes, or die at any instruction.

The context of a callback names its process. The callbacks of a paused process are kept until it resumes. Those of a
dead process are dropped, so that not even its `finally` blocks run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable
from typing import Any

from jqueue.testing.virtual_time import Callback, VirtualTimeLoop

MOST_TURNS = 100_000
"""Number of turns of the loop at one moment that count as a livelock."""

CURRENT: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("process", default=None)


class Livelock(RuntimeError):
    """Tasks wake each other forever while time stands still."""


class SimulatedProcess:
    """A part of the program that shares nothing with the other parts but the store.

    Attributes:
        name: unique name.
        paused: True while nothing of it runs.
        dead: True if nothing of it will ever run again.
        pauses: start and end of each pause.
        backlog: callbacks that came during a pause.
    """

    def __init__(self, name: str, loop: SimulatedLoop) -> None:
        self.name = name
        self.paused = False
        self.dead = False
        self.pauses: list[tuple[float, float]] = []
        self._paused_at = self._until = 0.0
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(CURRENT.set, self)
        self.backlog: list[Callback] = []

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self._loop.create_task(main, context=self._context.copy())

    def pause(self, seconds: float) -> None:
        """Run nothing for some seconds. A pause during another one can make it longer, and never shorter."""
        now = self._loop.time()
        if not self.paused:
            self.paused, self._paused_at = True, now
            self._loop.stopped += 1
        self._until = max(self._until, now + seconds)
        self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if not self.dead and self._loop.time() >= self._until:
            self.go_on()

    def go_on(self) -> None:
        """Resume, and run the callbacks that came meanwhile, in their order."""
        if self.paused:
            self._loop.stopped -= 1
            self.pauses.append((self._paused_at, self._loop.time()))
        self.paused = self.dead = False
        self._loop.make_ready(self.backlog)
        self.backlog.clear()

    def die(self) -> None:
        """Run nothing again, until `go_on` lets the coroutines of the dead unwind at the very end."""
        self._loop.stopped += not self.paused
        self.paused = self.dead = True


class SimulatedLoop(VirtualTimeLoop):
    """A loop with virtual time that keeps processes apart.

    Attributes:
        stopped: number of processes that are paused or dead.
        tasks: every task that was made.
    """

    stopped = 0

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[Any]] = []
        self._moment = 0.0
        self._turns = 0
        self.set_task_factory(self._make_task)

    def close(self) -> None:
        """Free the tasks, too: the finalizer of a queue that nobody closed would keep those of each seed."""
        super().close()
        self.tasks.clear()

    def _make_task(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        """Record the task: `asyncio.all_tasks` would search the tasks of all seeds for those of this loop."""
        task = asyncio.Task(work, loop=loop, **options)
        self.tasks.append(task)
        return task

    def _run_ready(self, count: int) -> None:
        ready = self._ready
        if self._virtual_now != self._moment:
            self._moment, self._turns = self._virtual_now, 0
        self._turns += 1
        if self._turns > MOST_TURNS:
            self._turns = 0
            raise Livelock(f"time has stood still for {MOST_TURNS} turns of the event loop")
        for _ in range(count):
            handle = ready.popleft()
            process = handle.context.get(CURRENT) if self.stopped else None
            if process is not None and process.paused:
                process.backlog.append(handle)
            else:
                handle.run()

    def make_ready(self, callbacks: Iterable[Callback]) -> None:
        """Run these callbacks next, in their order."""
        self._ready.extend(callbacks)
