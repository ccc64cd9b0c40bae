"""`manage.py jqueue_worker`: runs the tasks of a backend until it is told to stop, as `jqueue worker` runs handlers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

import django
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from jqueue.cli.help import RefusedError
from jqueue.cli.worker import (
    MOST_PROCESSES,
    PLAIN,
    SOME_DIED,
    JobFormatter,
    JSONFormatter,
    LogFormat,
    Program,
    run_worker,
    supervise,
)
from jqueue.django.api import task_backends
from jqueue.django.backend import JQueueBackend
from jqueue.django.worker import worker_of
from jqueue.domain.errors import InvalidJobError
from jqueue.runtime.first_process import go_on_in_child

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG, logging.DEBUG)
"""Lowest level of messages to log, by the verbosity of the command."""

OPTIONS = (
    *("backend", "queue", "concurrency", "grace", "claim_timeout", "health", "name", "drain", "processes", "reload"),
    *("show_errors", "log_format", "verbosity", "max_jobs", "max_memory"),
)
"""Options that the worker needs, in this process or in others."""


class Command(BaseCommand):
    """The command."""

    help = (
        "Runs tasks. SIGTERM, SIGHUP or Ctrl-C stops it: it claims no more tasks, gives running ones the grace period "
        "to finish, hands the rest back, and exits with 0. Exits with 1 if tasks failed with --drain, and with 2 if "
        "the queue cannot be used."
    )

    _is_own = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command in a process of its own. Elsewhere, `call_command` returns to a program that goes on."""
        go_on_in_child()
        self._is_own = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: CommandParser) -> None:
        """See Django."""
        seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
        parser.add_argument("--backend", default="default", metavar="ALIAS", help="alias in TASKS; default by default")
        parser.add_argument(
            *("--queue", "--queue-name"),
            action="append",
            default=[],
            metavar="NAME",
            help="run only tasks of this queue, or of several with commas between them; all by default",
        )
        parser.add_argument("--concurrency", type=int, metavar="NUMBER", help="tasks to run at once; 50 by default")
        parser.add_argument(
            "--processes", type=int, metavar="NUMBER", help="run so many processes, each with a worker of its own"
        )
        parser.add_argument("--max-jobs", type=int, metavar="NUMBER", help="end after so many, to be started anew")
        parser.add_argument("--max-memory", type=int, metavar="MIB", help="end after a task that leaves more in use")
        parser.add_argument("--grace", **seconds, help="time for tasks to finish after SIGTERM; 30 by default")
        parser.add_argument(
            "--claim-timeout", **seconds, help="time after which the tasks of a lost worker run again; 300 by default"
        )
        parser.add_argument("--health", metavar="HOST:PORT", help="serve /healthz, /readyz and /metrics there")
        parser.add_argument("--name", help="name of the worker, with which its ids begin; worker by default")
        parser.add_argument("--drain", "--batch", action="store_true", help="exit when no task is ready")
        parser.add_argument(
            "--reload",
            action="store_true",
            help="start anew when a Python file below this folder changes; in development",
        )
        parser.add_argument(
            "--show-errors", action="store_true", help="log messages and tracebacks of errors: they may quote arguments"
        )
        parser.add_argument(
            "--log-format", choices=get_args(LogFormat), default="text", help="text, or json with one object a line"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker."""
        if options["processes"] is not None and not 1 <= options["processes"] <= MOST_PROCESSES:
            raise CommandError(f"--processes must be from 1 to {MOST_PROCESSES}", returncode=2)
        try:
            url = _backend_of(options["backend"]).queue_options["url"]
            if options["processes"] or options["reload"]:
                _log(options)
            own = {"url": url, "is_own": self._is_own}
            status = supervise(partial(run_worker, _find), {**own, **{name: options[name] for name in OPTIONS}})
        except RefusedError as error:
            raise CommandError(str(error), returncode=2) from None
        if status and self._is_own:
            sys.exit(status)  # the log says why
        if status:
            text = "tasks failed: the log names them" if status == SOME_DIED else f"the worker ended with {status}"
            raise CommandError(text, returncode=status)


def _find(options: Mapping[str, Any]) -> Program:
    """Return the program of the command, and set up the log.

    Raises:
        RefusedError: the options of the command or of the backend are wrong, or there are no tasks.
    """
    if not apps.ready:
        django.setup()  # in a process of --processes or --reload
    backend, formatter = _backend_of(options["backend"]), _log(options)
    queues = dict.fromkeys(name.strip() for names in options["queue"] for name in names.split(","))
    unknown = sorted({*queues} - {*backend.queues, "*"})
    if backend.queues and unknown and not options["drain"]:  # a drain does what is left of a queue that was there
        names = ", ".join(sorted(backend.queues))
        raise RefusedError(f"QUEUES has no queue {unknown[0]!r}, only {names}: no task would ever come")
    try:
        worker = worker_of(backend, () if "*" in queues else [*queues])
    except InvalidJobError as error:
        raise RefusedError(str(error)) from None
    if not worker.handlers:
        raise RefusedError("no app has tasks: a worker finds those in the module `tasks` of an app")
    if options["is_own"]:
        connections.close_all()  # of this thread, which runs no tasks
    return Program(worker, [backend.queue_options], formatter)


def _backend_of(alias: str) -> JQueueBackend:
    """Return the backend with an alias.

    Raises:
        RefusedError: there is none, or its settings are wrong.
    """
    if alias not in task_backends:
        raise RefusedError(f"TASKS has no backend {alias!r}: it has {', '.join(task_backends)}")
    backend = task_backends[alias]
    if not isinstance(backend, JQueueBackend):
        raise RefusedError(f"the backend {alias!r} of TASKS is not a JQueueBackend")
    if problem := next((each for each in backend.check() if each.is_serious()), None):
        raise RefusedError(f"{problem.msg} {problem.hint or ''}".strip())
    return backend


def _log(options: Mapping[str, Any]) -> logging.Formatter:
    """Log the messages of jqueue to the standard error, unless LOGGING says what to do with them."""
    for name, each in logging.root.manager.loggerDict.items():
        if isinstance(each, logging.Logger) and f"{name}.".startswith("jqueue."):
            each.disabled = False  # LOGGING disables earlier loggers, unless it is told not to
    logger, is_json = logging.getLogger("jqueue"), options["log_format"] == "json"
    formatter = JSONFormatter() if is_json else JobFormatter(PLAIN)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.setLevel(LEVELS[options["verbosity"]])
    elif is_json:
        logger.warning("--log-format json has no effect: LOGGING has a handler for the log of jqueue")
    return formatter
