"""The one line that a user needs out of a PySpark exception, which has pages of Python, py4j and Java stack traces.

An error that jqueue raises inside a data source reaches the program as the last line of a traceback, in the text of a
PySpark exception. An error of Spark itself stands in the first line. This module finds either one. It only looks at the
text, so pyspark need not be installed.

    try:
        rows.write.format("jqueue").mode("append").save(url)
    except Exception as error:
        raise cause(error) or error

    with plain_errors():  # the same for a block
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
)
"""Text that follows a message that Java passes on."""

_STATE = re.compile(r"(?:\s+SQLSTATE: \w+\b)+(?:;.*|\s*)\Z", re.DOTALL)
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\]\s+")
_CALLING = re.compile(r"An error occurred while calling [\w.]+\n?:?\s*")
_LOST_TASK = re.compile(r".*most recent failure: Lost task [^:]*?\(TID \d+\) \(.*?\): ", re.DOTALL)
_JAVA_CLASS = re.compile(r"(?:[a-z][\w$]*\.)+[A-Z][\w$]*(?::\s+|\Z)")
_PARTS_OF_URLS = re.compile(r"(?<=://)[^/\s'\"]*@|(?<=\S)\?[^\s'\"=]+=[^\s'\"]*")
"""The user and the options of a URL, which may be secrets."""

_SPARKS_MODULES = ("py4j.", "pyspark.")
_SELF_EXPLAINING = {"ImportError", "RuntimeError", "StorageError", "TimeoutError", "ValueError"}
"""Classes besides ours whose message says enough without the class name."""

_KNOWN = {
    r"No module named '(jqueue|pyspark_jqueue)\b": "the executors have no jqueue: docs/reference/pipeline.md, "
    '"On a cluster", says how to get it there',
    r"No module named '([\w.]+)'": r"the processes of the executors have no module \1: install it there, or send it "
    "with --py-files",
    r"No FileSystem for scheme \"?s3\"?": "Spark has no s3:// of its own: write s3a://, and have it load hadoop-aws "
    "(spark.jars.packages)",
    r"No FileSystem for scheme \"?(\w+)\"?|Class (org\.apache\.hadoop\.fs\.s3a)\S* not found": "Spark cannot reach "
    "files of this kind: have it load the connector of the store (spark.jars.packages)",
    r"Python worker exited unexpectedly|Python worker failed to connect": "a Python process of an executor ended "
    "unexpectedly: it crashed, or was killed, for example for lack of memory",
    r"(?s)Task failed while writing rows to (?:file:)?(\S+?)\.\s.*?No space left on device": r"\1 cannot be written: "
    "the disk is full; free some space",
    r"No space left on device": "the disk is full: free some space, or have Spark keep its temporary files elsewhere "
    "(spark.local.dir)",
    r"OutOfMemoryError": "Spark ran out of memory: give it more, as in --conf spark.driver.memory=4g (or "
    "spark.executor.memory)",
    r"\[MALFORMED_RECORD_IN_PARSING|\[UNSUPPORTED_FEATURE\.QUERY_ONLY_CORRUPT_RECORD_COLUMN\]": "the file has a record "
    "that cannot be read in this format",
    r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] Encountered error while reading file (\S+)\.": r"\1 is gone: it was removed "
    "or replaced meanwhile; read the files again",
    r"\[CANNOT_READ_FILE_FOOTER\]|\[FAILED_READ_FILE[.\w]*\] Encountered error while reading file (\S+)\.": r"\1 "
    "cannot be read: it is not in this format, or damaged",
    r"\[UNABLE_TO_INFER_SCHEMA\]": "there is no data: the folder has no file of this format, or only empty ones",
    r"\[CAST_INVALID_INPUT\].*?of the type \"(\w+)\" cannot be cast to \"(\w+)\"": r"a \1 cannot be a \2",
}
"""Messages of Spark that only experts understand, or that contain data, each with the same in plain words."""


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
    if not type(error).__module__.startswith(_SPARKS_MODULES):
        return None
    name, module, text = _last_raised(str(error)) or ("", "", "")
    if module.partition(".")[0] != "jqueue":
        return None
    kind = _OURS.get(name, JQueueError)
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
    """Return what is wrong, in one line for people.

    Args:
        error: the exception that a call of Spark or jqueue raised.
    """
    text, kind = str(error), type(error)
    if kind.__name__ in ("Py4JNetworkError", "ConnectionRefusedError"):
        return "Spark has ended: its process was killed, or could not start"
    if not kind.__module__.startswith(_SPARKS_MODULES):
        words = _of(kind.__name__, kind.__module__, text)
    elif (raised := _last_raised(text)) is not None:
        words = _of(*raised)
    else:
        first = _first(_LOST_TASK.sub("", _CALLING.sub("", text, count=1), count=1))
        words = _plain(text) or _CONDITION.sub("", _JAVA_CLASS.sub("", first, count=1), count=1) or "Spark failed"
    return _PARTS_OF_URLS.sub("", " ".join(words.split()))


def _last_raised(text: str) -> tuple[str, str, str] | None:
    """Return the class, its module and the message at the end of the last traceback; None if there is no traceback."""
    *before, rest = _INTRODUCTION.split(text)
    if not before:
        return None
    lines = _first(rest).split("\n")
    ends = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    match = _RAISED.match("\n".join(lines[ends:]))
    if match is None:
        return None
    module, _, name = match["name"].rpartition(".")
    return name, module, match["text"] or ""


def _first(text: str) -> str:
    """Return a message without the text that Java has added after it."""
    return _STATE.sub("", _BEHIND.split(text, maxsplit=1)[0])


def _of(name: str, module: str, text: str) -> str:
    """Return the message of an exception, with its class unless the message says enough."""
    if name == "ModuleNotFoundError":
        return _plain(text) or text
    if text and (module.partition(".")[0] == "jqueue" or name in _SELF_EXPLAINING):
        return text
    return f"{name}: {text}" if text else name


def _plain(text: str) -> str | None:
    for pattern, words in _KNOWN.items():
        if (match := re.search(pattern, text)) is not None:
            return match.expand(words)
    return None
