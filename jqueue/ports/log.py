"""The loggers of jqueue. A value in one of their lines is text on one line, whoever wrote it.

Job ids, entrypoints, cron names and errors come from the queue, where anybody may have put them. Written raw, they
could forge lines of the log or give orders to a terminal. So each logger writes out what cannot be printed in its
arguments, before any handler sees the record: also in programs that have their own handlers.
"""

from __future__ import annotations

import logging
from typing import Any

from jqueue.domain.printable import printable


class Lines(str):
    """A text whose line breaks are meant, such as a traceback. Each of its lines is written out by itself."""

    __slots__ = ()


def logger_of(name: str) -> logging.Logger:
    """The logger of this name, whose arguments are written out."""
    logger = logging.getLogger(name)
    logger.addFilter(_write_out)  # a second time changes nothing
    return logger


def printable_lines(text: str) -> str:
    """A text of several lines, each of them printable."""
    return "\n".join(map(printable, text.split("\n")))


def _write_out(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_written_out, record.args))
    return True


def _written_out(value: Any) -> Any:
    """What stands for an argument: texts and errors are printable, all others are as they were."""
    if isinstance(value, Lines):
        return printable_lines(value)
    if isinstance(value, BaseException):
        try:
            value = str(value)
        except Exception:  # an exception class of somebody's own
            return type(value).__name__
    return printable(value) if isinstance(value, str) else value
