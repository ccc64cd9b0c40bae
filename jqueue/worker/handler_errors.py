"""The end of a handler's call: a value with nothing left to await, or an error to pass on.

An error in another process is converted to plain values there and rebuilt here. Not every pickled exception can be
read, and an unreadable one would end all processes. The queue gets the same text as for an error in a thread.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import os
import traceback
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import Any, NamedTuple

from jqueue.domain.limits import TRACEBACK_BYTES, cut_error, written_bytes
from jqueue.worker.retries import TEXT_ONLY, Discard, Retry, Snooze, decisive, error_text, leaves_of, lineage_of

_KNOWN = {kind.__name__: kind for kind in (Snooze, Retry, Discard, *TEXT_ONLY)}
"""The errors that decide what becomes of a job, by name."""

_CHOICE = ("duration", "after", "reason")
"""The attributes that they have besides their text."""

_STANDARD = os.path.dirname(os.__file__) + os.sep
_JQUEUE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Frame(NamedTuple):
    """One call in a traceback, without its code and its values."""

    file: str
    """Path of the file, from the top of its package on: `shop/mail.py`."""
    line: int
    function: str
    home: str
    """Origin of the code: `program`, `library`, `standard` for Python itself, or `jqueue`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def stack_of(error: BaseException) -> list[Frame]:
    """Return the frames of an error, the innermost last; of a group, those of the first error in it that was raised."""
    first = next((leaf for leaf in leaves_of(error) if isinstance(leaf, RebuiltError) or leaf.__traceback__), error)
    if isinstance(first, RebuiltError):
        return first.stack
    return [_frame(frame, line) for frame, line in traceback.walk_tb(first.__traceback__)]


def _frame(frame: FrameType, line: int) -> Frame:
    path, module = frame.f_code.co_filename, f"{frame.f_globals.get('__name__')}"
    parts = path.replace("\\", "/").split("/")
    depth = module.count(".") + 1 + (parts[-1] == "__init__.py")
    home = "program"
    if path.startswith(_JQUEUE):
        home = "jqueue"
    elif "site-packages" in parts or "dist-packages" in parts:
        home = "library"
    elif path.startswith((_STANDARD, "<frozen ")):
        home = "standard"
    return Frame("/".join(parts[-depth:]), line, frame.f_code.co_name, home)


def place_of(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the program. A program that is installed as a library begins with the handler."""
    own = [frame for frame in stack if frame.home == "program"]
    return own[-1] if own else next((frame for frame in stack if frame.home == "library"), None)


def tail_of(stack: Sequence[Frame]) -> str | None:
    """Return the last frames as text, a line for each, as far as a job keeps them. Frames of jqueue are left out.

    If the innermost frame of the program is not among the last ones, it stands before them.
    """
    place, room = place_of(stack), TRACEBACK_BYTES
    if place is None:
        return None
    first = cut_error(f"{place}\n…", TRACEBACK_BYTES // 2)
    room -= written_bytes(first)
    lines: list[str] = []
    for frame in reversed(stack):
        if frame.home == "jqueue":
            continue
        text = f"{frame}"
        room -= written_bytes(text)
        if room < 0:
            break
        lines.append(text)
    whole = [] if f"{place}" in lines else [first]
    return "\n".join([*whole, *reversed(lines)])


def check_awaited(value: Any) -> None:
    """Refuse an awaitable that was returned but never awaited, and close or cancel it.

    Raises:
        TypeError: the value is a coroutine, or another object that must be awaited.
    """
    if drop_awaitable(value):
        raise TypeError(
            f"the handler returned a {type(value).__name__} that was never awaited, so its work is not done: await it"
        )


def drop_awaitable(value: Any) -> bool:
    """Return True if a value must be awaited, which nobody will do. It is closed or cancelled."""
    if not inspect.isawaitable(value) or (asyncio.isfuture(value) and value.done()):
        return False
    if asyncio.isfuture(value):
        value.cancel()
    elif inspect.iscoroutine(value):
        value.close()
    return True


class RebuiltError:
    """Common base of the errors that `rebuilt` returns.

    Attributes:
        message: the text of the error; None if it could not be read.
        frames: the formatted traceback.
        stack: its frames.
    """

    message: str | None
    frames: str
    stack: list[Frame]

    def __str__(self) -> str:
        if self.message is None:
            raise ValueError("the text of this error could not be read")
        return self.message


def portable(error: BaseException) -> dict[str, Any]:
    """Return an error as values of JSON, for `rebuilt`. Of a group, the texts of its errors are kept.

    Its `base` is the error that decides what becomes of the job, and otherwise the nearest builtin one. Its `lineages`
    name the class and the bases of it, of each error of a group, for the `retry` of its handler.
    """
    error = decisive(error)
    name, module = f"{type(error).__name__}", f"{type(error).__module__}"
    try:
        kind_of_ours = next((kind for kind in _KNOWN.values() if isinstance(error, kind)), None)
        text = error_text(error)
        message = text if isinstance(error, TEXT_ONLY) else text.removeprefix(f"{name}: ")
        return {
            "name": name,
            "module": module,
            "base": (kind_of_ours or _builtin_of(error)).__name__,
            "message": None if text == name else message,
            "frames": frames_of(error),
            "stack": stack_of(error),
            "choice": {each: getattr(error, each) for each in _CHOICE if kind_of_ours and hasattr(error, each)},
            "lineages": list(dict.fromkeys(lineage_of(type(leaf)) for leaf in leaves_of(error))),
        }
    except Exception:  # the exception class of a user may raise anything
        return {"name": name, "module": module, "base": "Exception"}


def rebuilt(plain: dict[str, Any]) -> BaseException:
    """Return the error that `portable` was given. Its class has the original name and derives from `base`.

    So the same clauses catch it.
    """
    error = _class_of(plain["name"], plain["module"], plain["base"])()
    message, stack = plain.get("message"), [Frame(*frame) for frame in plain.get("stack", ())]
    error.args = () if message is None else (message,)
    vars(error).update(plain.get("choice", {}), message=message, frames=plain.get("frames", ""), stack=stack)
    vars(error)["jqueue_lineages"] = plain.get("lineages", ())
    return error


def frames_of(error: BaseException) -> str:
    """Return the formatted stack frames of an error."""
    if isinstance(error, RebuiltError):
        return error.frames
    return "".join(traceback.format_tb(error.__traceback__))


def traceback_of(error: BaseException) -> str:
    """Return the traceback and the text of an error, formatted as by Python."""
    if not isinstance(error, RebuiltError):
        return "".join(traceback.format_exception(error)).rstrip()
    message = "" if error.message is None else f": {error.message}"
    return f"Traceback (most recent call last):\n{error.frames}{type(error).__name__}{message}"


def _builtin_of(error: BaseException) -> type[BaseException]:
    """Return the nearest builtin base that can be raised anywhere and made without knowing its arguments."""
    nearest = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    if issubclass(nearest, Exception) and not issubclass(nearest, StopIteration | ExceptionGroup):
        return nearest
    return Exception


@lru_cache(maxsize=128)
def _class_of(name: str, module: str, base_name: str) -> type[BaseException]:
    base = _KNOWN.get(base_name) or getattr(builtins, base_name)
    # The new class takes no arguments, whatever its base takes.
    return type(name, (RebuiltError, base), {"__module__": module, "__init__": lambda self: None})


def results_of(value: Any, count: int) -> Sequence[Any]:
    """Return the result of each job, or the exception with which it failed.

    Args:
        value: the value that the handler returned. None: all jobs succeeded, without a result.
        count: number of jobs in the batch.

    Raises:
        TypeError: the value is neither None nor a list.
        ValueError: it has more or fewer results than the batch has jobs.
    """
    if value is None:
        return [None] * count
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise TypeError(
            f"a batch handler must return None or a list with one result for each job, got {type(value).__name__}"
        )
    if len(value) != count:
        raise ValueError(f"the batch handler returned {len(value)} results for {count} jobs: return one for each")
    return value


def error_in(result: Any) -> BaseException | None:
    """Return the exception that a batch handler returned in the place of a result; None for any other result.

    An exception class counts as its exception, as it does after `raise`.
    """
    if isinstance(result, BaseException):
        return result
    if not isinstance(result, type) or not issubclass(result, BaseException):
        return None
    try:
        raise result
    except BaseException as error:
        return error.with_traceback(None)
