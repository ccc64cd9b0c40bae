"""The log of `jqueue worker` on the standard error: coloured in a terminal, plain in a pipe, or JSON.

Each line names its job.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

from rich.console import Console
from rich.logging import RichHandler

from jqueue.domain.printable import printable
from jqueue.ports.log import logger_of, printable_lines

logger = logger_of("jqueue.worker")

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(about)s%(message)s"
IN_COLOURS = "%(about)s%(message)s"
ABOUT = ("job_id", "entrypoint", "attempt")
INDENTED = "\n    "


class LogFormat(StrEnum):
    """The format of the log."""

    TEXT = "text"
    JSON = "json"


class JSONFormatter(logging.Formatter):
    """Makes each record one JSON object in one line, in ASCII, so that it cannot control a terminal.

    Attributes:
        worker: name of the worker, as claims name it; None before it is known.
    """

    worker: str | None = None

    def format(self, record: logging.LogRecord) -> str:
        """As in logging. A record about a job has `job_id`, `entrypoint` and `attempt`."""
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self.worker,
        }
        about = {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
        traceback = record.exc_text or (record.exc_info and self.formatException(record.exc_info))
        if traceback:
            about["traceback"] = traceback
        return json.dumps(said | about, default=str)


class JobFormatter(logging.Formatter):
    """Puts the job of a message before it, if the record names one that the message does not begin with.

    A record cannot control a terminal, and only its first line can look like a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """As in logging; lines after the first are indented."""
        return printable_lines(super().format(record)).replace("\n", INDENTED)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """As in logging."""
        job_id, entrypoint = getattr(record, "job_id", None), getattr(record, "entrypoint", None)
        named = job_id and entrypoint and not record.message.startswith(f"job {job_id}")
        record.about = f"[{printable(f'{entrypoint} {job_id}')}] " if named else ""
        return super().formatMessage(record)


@contextmanager
def log_to_stderr(level: str, program: str, log_format: LogFormat = LogFormat.TEXT) -> Iterator[logging.Formatter]:
    """Log the messages of jqueue and of the program that the block imports.

    Of other loggers, such as the clients of stores, only warnings are logged: they would say too much. If the program
    gives the root logger a handler, its setup stays. Loggers that its setup has disabled work again after the block.

    Args:
        level: the lowest level to log.
        program: the name of its logger.
        log_format: text or JSON.

    Yields:
        The formatter of the log.
    """
    handler: logging.Handler = logging.StreamHandler()
    formatter: logging.Formatter = JobFormatter(PLAIN)
    if log_format is LogFormat.JSON:
        formatter = JSONFormatter()
    elif sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        formatter = JobFormatter(IN_COLOURS, datefmt="[%X]")
    handler.setFormatter(formatter)
    names = [name for name in ("jqueue", program) if name]
    for name in names:
        logging.getLogger(name).setLevel(level)
    before, logging.lastResort = logging.lastResort, handler  # the root logger has no handler until the import is done
    try:
        yield formatter
    finally:
        logging.lastResort = before
    for each in logging.root.manager.loggerDict.values():
        if isinstance(each, logging.Logger) and any(f"{each.name}.".startswith(f"{name}.") for name in names):
            each.disabled = False  # logging.config disables all earlier loggers unless it is told not to
    if not logging.root.handlers:
        logging.basicConfig(handlers=[handler])
    elif log_format is LogFormat.JSON:
        logger.warning("--log-format json has no effect: the module of the worker sets up the log itself")
