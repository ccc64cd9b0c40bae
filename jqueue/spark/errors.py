"""The error of jqueue in a PySpark exception, which has pages of Python, py4j and Java stack traces.

An error that jqueue raises inside a data source reaches the program as the last line of a traceback, in the text of a
PySpark exception. This module only looks at the text, so pyspark need not be installed.

    with plain_errors():
        rows.write.format("jqueue").mode("append").save(url)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from jqueue.domain import errors as domain
from jqueue.domain.errors import JQueueError, StorageError

_OURS = {name: each for name, each in vars(domain).items() if isinstance(each, type) and issubclass(each, JQueueError)}
"""The public error classes by name: the only ones that are made again from a text."""

_INTRODUCTION = re.compile(
    r"Traceback \(most recent call last\):\n"
    r"|(?:Failed [a-z ]*Python [a-z ]*source[A-Za-z ]*|An exception was thrown from the Python worker):\s"
    r"(?!Traceback \(most recent call last\):)"
)
"""Text before a traceback, or before the exception alone if Spark is configured to hide tracebacks."""

_RAISED = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?::[ \n](?P<text>.*))?", re.DOTALL)
"""The end of a traceback: the class of the exception, with its module, and its message."""

_BEHIND = re.compile(
    r"\n\tat |\nCaused by: |\nDriver stacktrace:|\n\nJVM stacktrace:|\n=== Streaming Query ===|\n\t?\.\.\. \d+ more"
    r"|\s+SQLSTATE: \w+"
)
"""Text that follows a message that Java passes on."""


Source = TypeVar("Source", bound=type)


def shows_one_line(source: Source) -> Source:
    """Have Spark show the line of an error of ours alone, without the frames of its Python process: a class decorator.

    Spark reads the setting in the process that raised the error, which ends with it.
    """

    def shortened(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _short():
                answer = method(*args, **kwargs)
            return _each(answer) if isinstance(answer, Iterator) else answer

        return call

    for name, method in list(vars(source).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(source, name, shortened(method))
    return source


@contextmanager
def _short() -> Iterator[None]:
    try:
        yield
    except JQueueError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def _each(rows: Iterator[Any]) -> Iterator[Any]:
    with _short():
        yield from rows


def cause(error: BaseException) -> JQueueError | None:
    """Return the jqueue error that made a Spark call fail; None if another error did.

    It has the class and the message, and no other attributes: they stayed in the process that raised it.

    Args:
        error: the exception that the call raised. An error of jqueue is returned as it is.
    """
    if isinstance(error, JQueueError):
        return error
    name, text = _last_raised(error)
    if not name.startswith("jqueue."):
        return None
    kind = _OURS.get(name.rpartition(".")[2], JQueueError)
    return kind(text) if issubclass(kind, StorageError) else kind.__new__(kind, text)  # others need more arguments


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the jqueue error if a Spark call in the block fails with one. Any other error is passed on as it is.

    Raises:
        JQueueError: a call failed with it. Its `__cause__` is the exception that Spark raised.
    """
    try:
        yield
    except Exception as error:
        if (ours := cause(error)) in (None, error):
            raise
        raise ours from error


def one_line(error: BaseException) -> str:
    """Return what is wrong in one line, without stack traces."""
    name, text = _last_raised(error)
    if (ours := cause(error)) is not None:
        words = str(ours)
    else:
        words = f"{name}: {text}" if name else _BEHIND.split(str(error), maxsplit=1)[0]
    return " ".join(words.split()) or type(error).__name__


def _last_raised(error: BaseException) -> tuple[str, str]:
    """Return the class, with its module, and the message at the end of the last traceback in an error of Spark.

    Both are empty if there is no traceback.
    """
    *before, rest = _INTRODUCTION.split(str(error))
    if not before or not type(error).__module__.startswith(("py4j.", "pyspark.")):
        return "", ""
    lines = _BEHIND.split(rest, maxsplit=1)[0].split("\n")
    ends = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    match = _RAISED.match("\n".join(lines[ends:]))
    return ("", "") if match is None else (match["name"], (match["text"] or "").rstrip())
