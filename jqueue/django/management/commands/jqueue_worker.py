"""`manage.py jqueue_worker`: runs the tasks of a backend until it is told to stop, as `jqueue worker` runs handlers."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from jqueue.cli.worker import PLAIN, JobFormatter, serve
from jqueue.connect import connect_queue
from jqueue.django.api import task_backends
from jqueue.django.backend import JQueueBackend
from jqueue.django.worker import worker_of
from jqueue.domain.errors import InvalidJobError

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)
"""Lowest level of messages to log, by the verbosity of the command."""

SETTINGS = ("concurrency", "grace", "health", "name", "claim_timeout", "show_errors")
"""Options that are those of `WorkerSettings`."""


class Command(BaseCommand):
    """The command."""

    help = (
        "Runs tasks. SIGTERM, SIGHUP or Ctrl-C stops it: it claims no more tasks, gives running ones the grace period "
        "to finish, hands the rest back, and exits with 0. Exits with 1 if tasks failed with --drain, and with 2 if "
        "the queue cannot be used."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """See Django."""
        seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="alias in TASKS; default by default")
        parser.add_argument(
            "--queue", action="append", default=[], metavar="NAME", help="run only tasks of this queue; may be repeated"
        )
        parser.add_argument("--concurrency", type=int, metavar="NUMBER", help="tasks to run at once; 50 by default")
        parser.add_argument("--grace", **seconds, help="time for tasks to finish after SIGTERM; 30 by default")
        parser.add_argument(
            "--claim-timeout", **seconds, help="time after which the tasks of a lost worker run again; 300 by default"
        )
        parser.add_argument("--health", metavar="HOST:PORT", help="serve /healthz, /readyz and /metrics there")
        parser.add_argument("--name", help="name of the worker, with which its ids begin; worker by default")
        parser.add_argument("--drain", action="store_true", help="exit when no task is ready")
        parser.add_argument(
            "--show-errors", action="store_true", help="log messages and tracebacks of errors: they may quote arguments"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        alias = options["backend"]
        if alias not in task_backends:
            raise CommandError(f"TASKS has no backend {alias!r}: it has {', '.join(task_backends)}", returncode=2)
        backend = task_backends[alias]
        if not isinstance(backend, JQueueBackend):
            raise CommandError(f"the backend {alias!r} of TASKS is not a JQueueBackend", returncode=2)
        if problem := next((each for each in backend.check() if each.is_serious()), None):
            raise CommandError(f"{problem.msg} {problem.hint or ''}".strip(), returncode=2)
        self._log(LEVELS[options["verbosity"]])
        try:
            given = {name: options[name] for name in SETTINGS if options[name] is not None}
            worker = worker_of(backend, options["queue"], **given)
        except InvalidJobError as error:
            raise CommandError(str(error), returncode=2) from None
        if not worker.handlers:
            raise CommandError("no app has tasks: a worker finds those in the module `tasks` of an app", returncode=2)
        connections.close_all()  # of this thread, which runs no tasks
        queue = connect_queue(**backend.queue_options)
        if status := asyncio.run(serve(worker, queue, self.stderr.write, drain=options["drain"])):
            sys.exit(status)

    def _log(self, level: int) -> None:
        """Log the messages of jqueue to the standard error, unless LOGGING says what to do with them."""
        for name, each in logging.root.manager.loggerDict.items():
            if isinstance(each, logging.Logger) and f"{name}.".startswith("jqueue."):
                each.disabled = False  # LOGGING disables earlier loggers, unless it is told not to
        logger = logging.getLogger("jqueue")
        if not logger.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(JobFormatter(PLAIN))
            logger.addHandler(handler)
            logger.setLevel(level)
