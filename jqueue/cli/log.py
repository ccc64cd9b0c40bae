"""How `jqueue worker` logs: to the standard error, in colours for people, plain for machines, with each line's job."""

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
    """Says before a message which job it is about, if its record tells: those of `ctx.logger` do.

    Whatever a record holds, it does nothing to a terminal, and only its first line can look like one of the log.
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
    """Log what is ours and what is the program's own.

    Others, such as the clients of stores, only warn: they would tell more than anybody wants to know. A program that
    has set up its log itself keeps what it has.

    Args:
        level: from which level on.
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
