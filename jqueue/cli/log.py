"""The log of `jqueue worker` on the standard error: coloured for people, plain for machines, each line with its job."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.logging import RichHandler

from jqueue.domain.printable import printable
from jqueue.ports.log import printable_lines

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(about)s%(message)s"
IN_COLOURS = "%(about)s%(message)s"
INDENTED = "\n    "


class JobFormatter(logging.Formatter):
    """Puts the job of a message before it, if the record names one: records of `ctx.logger` do.

    A record cannot control a terminal, and only its first line can look like a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """As in logging; lines after the first are indented."""
        return printable_lines(super().format(record)).replace("\n", INDENTED)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """As in logging."""
        job_id, entrypoint = getattr(record, "job_id", None), getattr(record, "entrypoint", None)
        record.about = f"[{printable(f'{entrypoint} {job_id}')}] " if job_id and entrypoint else ""
        return super().formatMessage(record)


def log_to_stderr(level: str, program: str) -> None:
    """Log the messages of jqueue and of the program itself.

    Of other loggers, such as the clients of stores, only warnings are logged: they would say too much. A program that
    has set up its log itself keeps its setup.

    Args:
        level: the lowest level to log.
        program: the name of its logger.
    """
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(JobFormatter(IN_COLOURS, datefmt="[%X]"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(JobFormatter(PLAIN))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("jqueue", program):
        if name:
            logging.getLogger(name).setLevel(level)
