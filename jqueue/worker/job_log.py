"""Records of the log about jobs: the fields of such records, and the way to the worker from a process of handlers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from jqueue.domain.models import Job
from jqueue.ports.log import Logger, logger_of

logger: Logger = logger_of("jqueue.worker")


def about(job: Job) -> dict[str, Any]:
    """Return the `extra` of a record about a job. It has no payload."""
    return {"job_id": job.id, "entrypoint": job.entrypoint, "attempt": job.tries}


def log_about(job: Job, level: int, text: str, *values: Any) -> None:
    """Log a text that continues the name of a job."""
    name = job.id, job.entrypoint, job.tries
    logger.log(level, f"job %s (%s, attempt %d){text}", *name, *values, extra=about(job), stacklevel=2)


class Forwarder(logging.Handler):
    """The root handler of a process of handlers: the worker logs its records by `log_forwarded`.

    Args:
        send: sends the values of a record to the worker.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        try:
            self.format(record)  # sets its message and the text of its traceback
            here = {"msg": record.message, "args": None, "exc_info": None, "is_handled": self._is_handled(record)}
            self._send(vars(record) | here)
        except Exception:
            self.handleError(record)

    def _is_handled(self, record: logging.LogRecord) -> bool:
        """True if the program has set up another handler here that gets the record too."""
        logger: logging.Logger | None = logging.getLogger(record.name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def log_forwarded(values: dict[str, Any]) -> None:
    """In the worker: log a record of a process, as its own. Loggers with handlers in the process have logged it."""
    is_handled, record = values.pop("is_handled"), logging.makeLogRecord(values)
    if not is_handled:
        logging.getLogger(record.name).handle(record)
    elif logging.root.handlers:
        logging.root.handle(record)


def levels_of_loggers() -> dict[str, int]:
    """Return the level of each logger that is not disabled, by its name."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    return {each.name: each.level for each in loggers if isinstance(each, logging.Logger) and not each.disabled}


def forward_records(levels: dict[str, int], send: Callable[[dict[str, Any]], None]) -> None:
    """In the process: send records from these levels on to the worker, unless the root logger has a handler."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    if not logging.root.handlers:
        logging.root.addHandler(Forwarder(send))
