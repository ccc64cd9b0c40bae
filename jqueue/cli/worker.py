"""`jqueue worker app:worker URL...`: runs the worker of a program on its queues, until it is told to stop.

Errors of the program are shown without our own frames. The log goes to the standard error: coloured in a terminal,
plain in a pipe, or JSON.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console
from rich.logging import RichHandler

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, Create, MustExist
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import UNUSABLE, note
from jqueue.cli.supervisor import RENEW, Supervisor, changes_in
from jqueue.connect import connect
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.tasks import end_tasks
from jqueue.domain.errors import InvalidJobError, InvalidURLError, JQueueError, QueueMissingError, StorageFatalError
from jqueue.domain.printable import counted, printable
from jqueue.domain.stats import QueueStats
from jqueue.formats.queue import StoreQueue
from jqueue.ports.log import Logger, logger_of, printable_lines
from jqueue.ports.storage import describe, storage_of
from jqueue.runtime.system import process_name
from jqueue.runtime.tasks import all_at_once
from jqueue.worker import Worker
from jqueue.worker.handler_options import WorkerSettings
from jqueue.worker.queue_health import SILENCE_LIMIT, log_silence, name_of, raise_if_final
from jqueue.worker.signals import handle_signals, leave_at_signals


def find_worker(target: str) -> Worker:
    """Return the worker that MODULE:NAME means. Modules of the current folder count, as for `python -m`.

    Raises:
        RefusedError: there is none, or it has no handlers.
        typer.Exit: the module cannot be imported. The error has been printed.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise RefusedError("give the worker as MODULE:NAME; app:worker means `worker` in app.py")
    if module_name.endswith(".py") or "/" in module_name:
        raise RefusedError("give the module, not its file: app:worker means `worker` in app.py in this folder")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise RefusedError(f"the module {module_name!r} is neither in this folder nor installed") from None
        typer.echo(f"jqueue: the module {module_name!r} could not be imported:", err=True)
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(NOT_THE_PROGRAM):
            frames = frames.tb_next
        traceback.print_exception(error.with_traceback(frames))
        raise typer.Exit(UNUSABLE) from None
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Worker):
        what = f"has no {name!r}" if value is None else f"has a {name!r} of type {type(value).__name__}"
        raise RefusedError(f"the module {module_name} {what}: a jqueue.worker.Worker is needed")
    if not value.handlers:
        raise RefusedError(f'{target} has no handlers: register one with @{name}.handler("name")')
    return value


NOT_THE_PROGRAM = (__file__, importlib.__file__, "<frozen importlib")
"""Beginnings of the file names of our frames and of the import system's, in a traceback of the program's import."""

logger: Logger = logger_of("jqueue.worker")

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(about)s%(message)s"
IN_COLOURS = "%(about)s%(message)s"
STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "about", "taskName"))
"""The attributes of a record that are not its `extra`."""
INDENTED = "\n    "


LogFormat = Literal["text", "json"]
"""The format of the log."""


class JSONFormatter(logging.Formatter):
    """Makes each record one JSON object in one line, in ASCII, so that it cannot control a terminal.

    Attributes:
        worker: name of the worker, as claims name it; None before it is known.
    """

    worker: str | None = None

    def format(self, record: logging.LogRecord) -> str:
        """As in logging, with the `extra` of the record. A name that the object has already begins with `extra_`."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self.worker,
        }
        if traceback := record.exc_text or (record.exc_info and self.formatException(record.exc_info)):
            values["traceback"] = traceback
        extra = {name: value for name, value in vars(record).items() if name not in STANDARD}
        values |= {f"extra_{name}" if name in values else f"{name}": value for name, value in extra.items()}
        try:
            return json.dumps(values, default=str, allow_nan=False)
        except (TypeError, ValueError):  # a value has NaN, itself, or keys that are no text
            return json.dumps({name: None if value is None else str(value) for name, value in values.items()})


class JobFormatter(logging.Formatter):
    """Begins a message with its job, if the record names a job and the message does not begin with it.

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
def log_to_stderr(level: str, target: str, log_format: LogFormat = "text") -> Iterator[logging.Formatter]:
    """Log the messages of jqueue and of the program that the block imports.

    Of other loggers, such as the clients of stores, only warnings are logged: they would say too much. If the program
    gives the root logger a handler, its setup stays. Loggers that its setup has disabled work again after the block.

    Args:
        level: the lowest level to log.
        target: MODULE:NAME of its worker. Its logger has the name of the package; empty if there is no program.
        log_format: text or JSON.

    Yields:
        The formatter of the log.
    """
    handler: logging.Handler = logging.StreamHandler()
    formatter: logging.Formatter = JobFormatter(PLAIN)
    if log_format == "json":
        formatter = JSONFormatter()
    elif sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        formatter = JobFormatter(IN_COLOURS, datefmt="[%X]")
    handler.setFormatter(formatter)
    names = [name for name in ("jqueue", re.split("[.:]", target)[0]) if name]
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
    elif log_format == "json":
        logger.warning("--log-format json has no effect: the module of the worker sets up the log itself")


NAMED = 5
"""Largest number of entrypoints without a handler to name."""

SOME_DIED = 1
"""Exit code of `--drain` if jobs died."""

USUAL = WorkerSettings()
"""The settings of a worker whose program sets none."""

HELP = {
    name: f"{text}. By default as the program sets it, else {usual}."
    for name, text, usual in (
        ("concurrency", "Jobs to run at once", USUAL.concurrency),
        ("grace", "Time for jobs to finish after SIGTERM", USUAL.grace),
        ("give_up_after", "Time to retry a queue that is gone or unusable", USUAL.give_up_after),
        ("max_jobs", "End after so many jobs, to be started anew", "no limit"),
        ("max_memory", "End, to be started anew, after a job that leaves more memory in use", "no limit"),
        ("health", "Serve /healthz, /readyz and /metrics there, such as 127.0.0.1:8080", "nowhere"),
    )
}
"""Help of the options that replace settings of the program."""

MOST_PROCESSES = 1000
"""Largest number of processes of one command."""


def worker(
    context: typer.Context,
    target: Annotated[str, argument("MODULE:WORKER", "Module and name of the worker, such as app:worker.")],
    url: URL,
    others: Annotated[list[str] | None, argument("URLS", "URLs of further queues for the same worker.")] = None,
    *,
    concurrency: Annotated[int | None, option("NUMBER", HELP["concurrency"], min=1)] = None,
    grace: Annotated[float | None, option("SECONDS", HELP["grace"], min=0)] = None,
    give_up_after: Annotated[float | None, option("SECONDS", HELP["give_up_after"], min=0)] = None,
    max_jobs: Annotated[int | None, option("NUMBER", HELP["max_jobs"], min=1)] = None,
    max_memory: Annotated[int | None, option("MIB", HELP["max_memory"], min=1)] = None,
    show_errors: Annotated[
        bool, typer.Option("--show-errors", help="Log the messages and tracebacks of errors, which may quote payloads.")
    ] = False,
    log_done: Annotated[
        bool, typer.Option("--log-done", help="Log each job that is done, with the seconds that it took.")
    ] = False,
    health: Annotated[str | None, option("HOST:PORT", HELP["health"])] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is ready.")] = False,
    poll_interval: Annotated[
        float | None, option("SECONDS", "Longest time between two reads of an idle queue. By default 1.", min=0.001)
    ] = None,
    processes: Annotated[
        int | None,
        option("NUMBER", "Processes to run, each with a worker of its own. By default 1.", min=1, max=MOST_PROCESSES),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file below this folder changes; in development.")
    ] = False,
    create: Create = False,
    must_exist: MustExist = False,
    log_level: Annotated[
        Literal["DEBUG", "INFO", "WARNING", "ERROR"],
        typer.Option(case_sensitive=False, help="Lowest level of messages to log."),
    ] = "INFO",
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of the log: text, or json with one object a line.")
    ] = "text",
) -> None:
    """Run the worker of a program on a queue, or on several.

    SIGTERM, SIGHUP or Ctrl-C stops it: it claims no more jobs, gives running jobs the grace period to finish, hands
    the rest back, and exits with 0. A second signal stops it at once.

    Exits with 1 if jobs died during a run with --drain, and with 2 if a queue cannot be used.
    """
    if processes or reload:
        with log_to_stderr(log_level, "", log_format):
            pass
    status = supervise(partial(run_worker, find_program), context.params)
    if status != 0:
        raise typer.Exit(status)


class Program(NamedTuple):
    """A worker, and what its command runs it with."""

    worker: Worker
    queues: Sequence[Mapping[str, Any]]
    """Arguments of `connect` for each of its queues."""
    formatter: logging.Formatter
    """Of its log."""


def find_program(options: Mapping[str, Any]) -> Program:
    """Return the program of `jqueue worker`, and set up the log.

    Args:
        options: the parameters of the command, by name.

    Raises:
        RefusedError: there is no such worker.
        typer.Exit: its module cannot be imported. The error has been printed.
    """
    with log_to_stderr(options["log_level"], options["target"], options["log_format"]) as formatter:
        worker = find_worker(options["target"])
    gc.freeze()  # the modules of the program stay until the end: the garbage collector need not look at them
    shared = {name: options[name] for name in ("create", "must_exist", "poll_interval")}
    shared = {name: value for name, value in shared.items() if value not in (None, False)}
    return Program(worker, [{"url": url, **shared} for url in _urls_of(options)], formatter)


def _urls_of(options: Mapping[str, Any]) -> list[str]:
    return [options["url"], *(options.get("others") or ())]


def supervise(run: Callable[..., int], options: Mapping[str, Any]) -> int:
    """Run a worker in this process, or in others if `processes` or `reload` say so. Return the exit status.

    Args:
        run: takes the options, and the arguments that `Supervisor` hands over.
        options: the parameters of the command, by name. They are sent to the processes, and so is `run`. False as
            `is_own` says that a program has called the command, and goes on after it.

    Raises:
        RefusedError: the worker cannot be run.
    """
    processes, reload = options["processes"], options["reload"]
    if not processes and not reload:
        return run(options)
    if processes and processes > 1 and any(url.lower().startswith("memory:") for url in _urls_of(options)):
        raise RefusedError("an in-memory queue is visible only to its own process: --processes needs a file or a store")
    changes = changes_in(Path.cwd()) if reload else None
    final = {0, SOME_DIED} if options["drain"] else {0}
    status = Supervisor(partial(run, {**options, "is_own": True}), processes or 1, final, changes).supervise()
    if status == 0 and options.get("is_own", True):
        leave_at_signals()
    return status


def run_worker(
    find: Callable[[Mapping[str, Any]], Program],
    options: Mapping[str, Any],
    number: int = 1,
    usable: Callable[[], object] = lambda: None,
) -> int:
    """Run a worker, and return the exit status.

    Args:
        find: returns the program, given the options.
        options: the parameters of the command, by name. Those that are neither None nor False and have the name of a
            setting of the worker replace it.
        number: the number of this process, from 1 on. Among several, its name ends with it, and each has a port.
        usable: called once the worker is loaded and its queue can be used.

    Raises:
        RefusedError: the worker cannot be run.
        typer.Exit: its module cannot be imported. The error has been printed.
    """
    flags = {name: value for name, value in options.items() if value is not None and value is not False}  # 0 is a value
    worker, several, formatter = find(options)
    try:
        settings = {field.name: flags[field.name] for field in fields(WorkerSettings) if field.name in flags}
        worker.settings = replace(worker.settings, **settings)
        if (options["processes"] or 1) > 1:
            health = worker.settings.health
            if health is not None:
                host, _, port = health.rpartition(":")
                health = f"{host}:{int(port) + number - 1 if int(port) else 0}"
            worker.settings = replace(worker.settings, name=f"{worker.settings.name}-{number}", health=health)
        queues = [connect(**arguments) for arguments in several]
    except (InvalidURLError, InvalidJobError, ImportError) as error:
        raise RefusedError(str(error)) from None
    is_own, problems = options.get("is_own", True), list[str]()
    fail: Callable[[str], object] = note if is_own else problems.append
    if isinstance(formatter, JSONFormatter):
        formatter.worker = f"{worker.settings.name}@{process_name()}"
        fail = partial(logger.error, "%s") if is_own else fail
    renew = RENEW if options["processes"] or options["reload"] else 0
    runner = asyncio.Runner()
    try:
        status = runner.run(serve(worker, queues, fail, usable, drain=options["drain"], renew=renew, is_own=is_own))
    finally:
        if not asyncio.all_tasks(runner.get_loop()):  # it would wait for handlers that do not stop
            runner.close()
    if problems:
        raise RefusedError(problems[0])
    return status


async def serve(
    worker: Worker,
    queues: Sequence[BlobQueue | StoreQueue],
    fail: Callable[[str], object],
    usable: Callable[[], object] = lambda: None,
    *,
    drain: bool,
    renew: int,
    is_own: bool,
) -> int:
    """Run a worker until it ends, and return the status that the command exits with.

    Args:
        worker: the worker.
        queues: its queues.
        fail: prints or logs the error that ends the worker.
        usable: called after the first look at the queues.
        drain: True to end when no job is ready.
        renew: added to the status if another worker must take the place of this one.
        is_own: True if the process ends with the worker. Otherwise, the program that has called it goes on.
    """
    status, stopped = 0, asyncio.Event()
    with handle_signals(stopped.set):
        try:
            looks = all_at_once(*(_log_queue(queue, worker.handlers) for queue in queues))
            look = asyncio.create_task(looks)
            await asyncio.wait([look, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
            if not stopped.is_set():
                look.result()
                usable()
                report = await worker.run(*queues, drain=drain)
                status = (SOME_DIED if drain and report.dead else 0) + (renew if report.worn else 0)
        except (JQueueError, ImportError) as error:
            status, is_final = UNUSABLE, isinstance(error, StorageFatalError)
            which = name_of(queues[0]) if len(queues) == 1 else "a queue of the worker"
            fail(f"{which} cannot be used: {error}" if is_final else str(error))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await end_tasks(left)
        if not all(task.done() for task in left):
            logger.warning("some handlers still run although they were told to stop: the worker ends without them")
        if is_own and not all(task.done() for task in left):
            logging.shutdown()
            print(end="", flush=True)
            os._exit(status)  # or they would keep the process alive for ever
        if is_own and status in (0, renew):
            leave_at_signals()
    return status


async def _log_queue(queue: BlobQueue | StoreQueue, handled: Container[str]) -> None:
    """Log the state of the queue. Raise if it can never be used; the worker waits for a queue that is away."""
    if isinstance(storage_of(queue), InMemoryStorage):
        logger.warning("an in-memory queue is visible only to its own process: no other program can enqueue there")
    silence = asyncio.get_running_loop().call_later(SILENCE_LIMIT, log_silence, name_of(queue))
    try:
        stats: QueueStats = await queue.stats(deadline=10)
    except QueueMissingError:
        logger.info("%s", QueueMissingError(describe(storage_of(queue))))
        return
    except JQueueError as error:
        raise_if_final(error)
        logger.warning("%s cannot be reached yet, retrying: %s", name_of(queue), error)
        return
    finally:
        silence.cancel()
    waiting = {name: each.ready for name, each in (stats.entrypoints or {}).items() if each.ready}
    others = [f"{printable(name)} ({ready})" for name, ready in waiting.items() if name not in handled]
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    logger.log(
        logging.WARNING if others else logging.INFO,
        "%s has %s, %s in progress, %s scheduled, %s dead%s",
        name_of(queue),
        counted(stats.ready, "ready job"),
        f"{stats.in_progress:,}",
        f"{stats.scheduled:,}",
        f"{stats.dead:,}",
        f"; this worker has no handler for the ready jobs of {', '.join(others[:NAMED])}{more}" if others else "",
    )
