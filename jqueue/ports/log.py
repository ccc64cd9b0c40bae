"""The loggers of jqueue, which escape every unprintable character in the values that they log.

Job ids, entrypoints, cron names and errors come from the queue, and any writer may have put them there. Logged raw,
they could forge lines of the log or send control sequences to a terminal. So each logger escapes the unprintable
characters of its arguments before any handler sees the record, also in programs that have their own handlers.
"""

from __future__ import annotations

import logging
from typing import Any

from jqueue.domain.printable import printable

Logger = logging.Logger


class Lines(str):
    """A text whose line breaks are intended, such as a traceback. Each of its lines is escaped separately."""

    __slots__ = ()


def logger_of(name: str) -> logging.Logger:
    """Return the logger of this name, which escapes its arguments."""
    logger = logging.getLogger(name)
    logger.addFilter(_write_out)  # adding it twice has no effect
    return logger


def printable_lines(text: str) -> str:
    """Return a text with the unprintable characters of each line escaped. Line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def _write_out(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_written_out, record.args))
    return True


def _written_out(value: Any) -> Any:
    """Return the value to log for an argument: escaped text for a text or an error, else the argument itself."""
    if isinstance(value, Lines):
        return printable_lines(value)
    if isinstance(value, BaseException):
        try:
            value = str(value)
        except Exception:  # a user's exception class may fail in __str__
            return type(value).__name__
    return printable(value) if isinstance(value, str) else value
