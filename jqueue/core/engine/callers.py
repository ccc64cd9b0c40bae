"""Callers of a queue: each awaits an answer, and all that are answered in one turn are woken by one callback.

A future of asyncio would do the same for one caller, with a callback of the event loop for each. A commit answers
hundreds of calls at once, so that these callbacks would take a part of the time of every call.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

Callback = Callable[[Any], object]


class Callers:
    """Wakes callers of one event loop, in the order in which they are answered.

    Args:
        loop: the event loop.

    Attributes:
        loop: as in the arguments.
        answered: the answered calls whose callers are woken next.
        others: callbacks of calls that have more than one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.answered: deque[Awaited] = deque()
        self.others: dict[Awaited, list[tuple[Callback, contextvars.Context]]] = {}

    def wake_soon(self) -> None:
        """Wake the callers of the answered calls in the next turn of the event loop. `answered` must be empty yet."""
        self.loop.call_soon(self._wake)

    def _wake(self) -> None:
        answered, self.answered = self.answered, deque()
        try:
            while answered:
                call = answered.popleft()  # each is freed when its caller goes on: the garbage collector starts later
                callback = call.callback
                if callback is not None:
                    call.callback = None
                    call.context.run(callback, call)
                if self.others:
                    for callback, context in self.others.pop(call, ()):
                        self.loop.call_soon(callback, call, context=context)
        finally:  # a task has let KeyboardInterrupt or SystemExit through: if the loop goes on, the others are woken
            if answered:
                if not self.answered:
                    self.wake_soon()
                self.answered += answered


class Awaited:
    """An answer that a caller awaits. To a task, it is like a future.

    Args:
        callers: wakes the caller.

    Attributes:
        awaited: True until it is answered, has failed or is cancelled.
        outcome: the answer.
        error: raised to the caller, if it has failed or is cancelled.
        callback: called when it has ended.
        context: the context of the callback.
    """

    __slots__ = (
        "__weakref__",
        "_asyncio_future_blocking",
        "_callers",
        "_loop",
        "awaited",
        "callback",
        "context",
        "error",
        "outcome",
    )
    context: contextvars.Context

    def __init__(self, callers: Callers) -> None:
        self._asyncio_future_blocking = False
        self._callers = callers
        self._loop = callers.loop  # where a task looks for the loop of a future
        self.awaited = True
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.callback: Callback | None = None

    def __await__(self) -> Generator[Any, None, Any]:
        if self.awaited:
            self._asyncio_future_blocking = True
            yield self
        if self.error is not None:
            raise self.error
        return self.outcome

    async def wait(self, seconds: float) -> None:
        """Wait until it has ended, for some seconds at most."""
        ended = asyncio.Event()

        def note(_: Awaited) -> None:
            ended.set()

        self.add_done_callback(note)
        try:
            async with asyncio.timeout(seconds):
                await ended.wait()
        except TimeoutError:
            pass
        finally:
            self.remove_done_callback(note)

    def end(self, error: BaseException | None) -> None:
        """End the wait of the caller, with the outcome or with an error. It must not have ended before."""
        self.error = error
        self.awaited = False
        callers = self._callers
        if not callers.answered:
            callers.wake_soon()
        callers.answered.append(self)

    # Methods of a future that a task calls

    def result(self) -> None:
        """Return at once: `__await__` returns the outcome or raises the error."""

    def cancel(self, msg: Any | None = None) -> bool:
        """End it, as its caller is cancelled. Return False if it had ended before."""
        if self.awaited:
            self.end(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
            return True
        return False

    def add_done_callback(self, callback: Callback, *, context: contextvars.Context | None = None) -> None:
        """Call a function with this object when it has ended."""
        if context is None:
            context = contextvars.copy_context()
        if self.awaited and self.callback is None:
            self.callback = callback
            self.context = context
        elif self.awaited:
            self._callers.others.setdefault(self, []).append((callback, context))
        else:
            self._loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback: Callback) -> None:
        """Do not call a function after all."""
        if self.callback == callback:
            self.callback = None
        others = self._callers.others.pop(self, [])
        kept = [each for each in others if each[0] != callback]
        if kept:
            self._callers.others[self] = kept
