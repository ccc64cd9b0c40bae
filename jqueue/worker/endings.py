"""How a call of a handler's function ends: with a value and nothing left to await, or with an error to be passed on.

An error that leaves a process is taken apart there into plain values and put together here: the pickle of an exception
cannot always be read, and one that cannot would end all processes. The queue is told the same of it as if it had been
raised in a thread.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import traceback
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jqueue.worker.payloads import PayloadError, ResultError
from jqueue.worker.retries import Discard, HandlerTimeout, Retry, Snooze, told

_SAID: dict[type[BaseException], tuple[str, ...]] = {
    Snooze: ("duration",),
    Retry: ("after", "reason"),
    Discard: ("reason",),
    PayloadError: (),
    ResultError: (),
    HandlerTimeout: (),
}
"""The errors that decide what becomes of a job, and what they say besides their text."""

_BARE = (PayloadError, ResultError, HandlerTimeout)
"""The errors whose class is not told."""


def check_awaited(value: Any) -> None:
    """Refuse what a function returned if nobody has awaited it, and see that it leaves nothing behind.

    Raises:
        TypeError: it is a coroutine, or anything else that has to be awaited.
    """
    if not inspect.isawaitable(value) or (asyncio.isfuture(value) and value.done()):
        return
    kind = "coroutine" if inspect.iscoroutine(value) else type(value).__name__
    if asyncio.isfuture(value):
        value.cancel()
    elif inspect.iscoroutine(value):
        value.close()
    raise TypeError(
        f"the handler returned a {kind} that nobody has awaited, so its work is not done: if a decorator of its hides"
        " that it is async, make that decorator's wrapper async"
    )


class Elsewhere:
    """What errors have in common that were raised elsewhere and put together again here.

    Attributes:
        words: their text; None if it could not be had.
        frames: their traceback, formatted.
    """

    words: str | None
    frames: str

    def __str__(self) -> str:
        if self.words is None:
            raise ValueError("the text of this error cannot be had")
        return self.words


@dataclass(frozen=True, slots=True)
class Raised:
    """An error as plain values.

    Attributes:
        name: of its class.
        module: of its class.
        kind: the class that decides what becomes of the job, or the nearest that every Python has.
        words: its text, as it may be kept with the job; None if it cannot be had.
        frames: its traceback, formatted.
        said: what it says besides.
    """

    name: str
    module: str
    kind: str
    words: str | None = None
    frames: str = ""
    said: dict[str, float | str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Take an error apart."""
        name, module = f"{type(error).__name__}", f"{type(error).__module__}"
        try:
            kind = next((kind for kind in _SAID if isinstance(error, kind)), None)
            said = {each: _plain(getattr(error, each)) for each in _SAID[kind]} if kind is not None else {}
            frames = "".join(traceback.format_tb(error.__traceback__))
            base = _builtin_of(error) if kind is None else kind
            return cls(name, module, base.__name__, _words_of(error), frames, said)
        except Exception:  # an exception class of somebody's own
            return cls(name, module, "Exception")

    def again(self) -> BaseException:
        """Put it together: an error of a class of the same name, caught by what catches its kind."""
        error = _class_of(self.name, self.module, self.kind)()
        error.args = () if self.words is None else (self.words,)
        vars(error).update(self.said, words=self.words, frames=self.frames)
        return error


def raisable(error: BaseException) -> BaseException:
    """The error, or its like if a coroutine cannot raise it."""
    return Raised.of(error).again() if isinstance(error, StopIteration) else error


def frames_of(error: BaseException) -> str:
    """Where an error was raised, formatted."""
    if isinstance(error, Elsewhere):
        return error.frames
    return "".join(traceback.format_tb(error.__traceback__))


def traceback_of(error: BaseException) -> str:
    """Where an error was raised and what it says, formatted as by Python."""
    if not isinstance(error, Elsewhere):
        return "".join(traceback.format_exception(error)).rstrip()
    said = "" if error.words is None else f": {error.words}"
    return f"Traceback (most recent call last):\n{error.frames}{type(error).__name__}{said}"


def _plain(value: Any) -> float | str | None:
    if value is None:
        return None
    return float(value) if isinstance(value, int | float) else f"{value}"


def _words_of(error: BaseException) -> str | None:
    text = told(error)
    if isinstance(error, _BARE):
        return text
    name, colon, words = text.partition(": ")
    return words if colon and name == type(error).__name__ else None


def _builtin_of(error: BaseException) -> type[BaseException]:
    """The nearest builtin class that can be raised anywhere, and made without knowing what it takes."""
    nearest = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    if issubclass(nearest, Exception) and not issubclass(nearest, StopIteration | ExceptionGroup):
        return nearest
    return Exception


@lru_cache(maxsize=128)
def _class_of(name: str, module: str, kind: str) -> type[BaseException]:
    bases = {each.__name__: each for each in _SAID}
    base = bases.get(kind) or getattr(builtins, kind)
    # Whatever its kind takes, it takes nothing.
    return type(name, (Elsewhere, base), {"__module__": module, "__init__": lambda self: None})
