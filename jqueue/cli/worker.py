"""`jqueue worker app:worker URL`: runs the worker of a program on a queue, until it is told to stop.

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
import sys
import traceback
from collections.abc import Callable, Container, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.on_queue import URL, Create, place_of
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import UNUSABLE, refusal
from jqueue.cli.supervisor import Supervisor, changes_in
from jqueue.connect import connect_queue
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.errors import (
    InvalidBlobError,
    InvalidJobError,
    InvalidURLError,
    JQueueError,
    QueueMissingError,
    StorageFatalError,
)
from jqueue.domain.printable import counted, printable
from jqueue.domain.stats import QueueStats
from jqueue.formats.queue import StoreQueue
from jqueue.ports.log import logger_of, printable_lines
from jqueue.ports.storage import describe
from jqueue.runtime.system import process_name
from jqueue.worker import Worker
from jqueue.worker.handler_options import WorkerSettings
from jqueue.worker.queue_health import SILENCE_LIMIT, log_silence, name_of
from jqueue.worker.signals import handle_signals, leave_at_signals


def find_worker(target: str) -> Worker:
    """Return the worker that MODULE:NAME means. Modules of the current folder count, as for `python -m`.

    Raises:
        typer.Exit: there is none, or it has no handlers. The reason has been printed.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise refusal("give the worker as MODULE:NAME; app:worker means `worker` in app.py")
    if module_name.endswith(".py") or "/" in module_name:
        raise refusal("give the module, not its file: app:worker means `worker` in app.py in this folder")
    found = _imported(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        what = f"has no {name!r}" if found is None else f"has a {name!r} of type {type(found).__name__}"
        raise refusal(f"the module {module_name} {what}: a jqueue.worker.Worker is needed")
    if not found.handlers:
        raise refusal(f'{target} has no handlers: register one with @{name}.handler("name")')
    return found


def _imported(module_name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise refusal(f"the module {module_name!r} is neither in this folder nor installed") from None
        typer.echo(f"jqueue: the module {module_name!r} could not be imported:", err=True)
        traceback.print_exception(error.with_traceback(_from_program(error.__traceback__)))
        raise typer.Exit(UNUSABLE) from None


def _from_program(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames from the program's first one on. Earlier frames are ours or the import system's."""
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


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


NAMED = 5
"""Largest number of entrypoints without a handler to name."""

SOME_DIED = 1
"""Exit code of `--drain` if jobs died."""

MOST_PROCESSES = 1000
"""Largest number of processes of one command."""

LAST_WAIT = 1.0
"""Seconds given to tasks that go on after the worker has ended."""


class Level(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def worker(
    context: typer.Context,
    target: Annotated[str, argument("MODULE:WORKER", "Module and name of the worker, such as app:worker.")],
    url: URL,
    concurrency: Annotated[
        int | None, option("NUMBER", "Jobs to run at once; by default the worker's own number.", min=1)
    ] = None,
    grace: Annotated[
        float | None, option("SECONDS", "Time for jobs to finish after SIGTERM; by default the worker's own.", min=0)
    ] = None,
    give_up_after: Annotated[
        float | None,
        option("SECONDS", "Time to retry a queue that is gone or unusable; by default the worker's own.", min=0),
    ] = None,
    show_errors: Annotated[
        bool, typer.Option("--show-errors", help="Log the messages and tracebacks of errors, which may quote payloads.")
    ] = False,
    health: Annotated[
        str | None, option("HOST:PORT", "Serve /healthz, /readyz and /metrics there, such as 127.0.0.1:8080.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is ready.")] = False,
    poll_interval: Annotated[
        float | None, option("SECONDS", "Longest time between two reads of an idle queue; 1 by default.", min=0.001)
    ] = None,
    processes: Annotated[
        int | None, option("NUMBER", "Run so many processes, each with a worker of its own.", min=1, max=MOST_PROCESSES)
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file below this folder changes; in development.")
    ] = False,
    create: Create = False,
    log_level: Annotated[
        Level, typer.Option(case_sensitive=False, help="Lowest level of messages to log.")
    ] = Level.INFO,
    log_format: Annotated[
        LogFormat, typer.Option(help="Format of the log: text, or json with one object a line.")
    ] = LogFormat.TEXT,
) -> None:
    """Run the worker of a program on a queue.

    SIGTERM, SIGHUP or Ctrl-C stops it: it claims no more jobs, gives running jobs the grace period to finish, hands
    the rest back, and exits with 0. A second signal stops it at once.

    Exits with 1 if jobs died during a run with --drain, and with 2 if the queue cannot be used.
    """
    # 0 is a value, too
    given = {name: value for name, value in context.params.items() if value is not None and value is not False}
    settings = {name: given[name] for name in given.keys() & {field.name for field in fields(WorkerSettings)}}
    options = {name: given[name] for name in given.keys() & {"create", "poll_interval"}}
    count = processes or 1
    run = partial(run_worker, target, url, settings, options, drain, log_level.value, log_format, count)
    if not processes and not reload:
        status = run()
    elif count > 1 and url.lower().startswith("memory:"):
        raise refusal("an in-memory queue is visible only to its own process: --processes needs a file or a store")
    else:
        with log_to_stderr(log_level.value, "", log_format):
            pass
        try:
            changes = changes_in(Path.cwd()) if reload else None
        except ImportError:
            raise refusal('--reload needs watchfiles: pip install "jqueue[reload]"') from None
        status = Supervisor(run, count, {0, SOME_DIED} if drain else {0}, changes).supervise()
    if status != 0:
        raise typer.Exit(status)


def run_worker(
    target: str,
    url: str,
    settings: dict[str, Any],
    options: dict[str, Any],
    drain: bool,
    log_level: str,
    log_format: LogFormat,
    count: int = 1,
    number: int = 1,
    usable: Callable[[], object] = lambda: None,
) -> int:
    """Run a worker, and return the exit status.

    Args:
        target: MODULE:NAME of the worker.
        url: the URL of the queue.
        settings: the settings of the worker that the command gives.
        options: the options of the queue that it gives.
        drain: True to end when no job is ready.
        log_level: the lowest level to log.
        log_format: text or JSON.
        count: number of processes.
        number: the number of this one, from 1 on. Among several, its name ends with it, and ports follow each other.
        usable: called once the worker is there, and its queue is not one that can never be used.

    Raises:
        typer.Exit: the worker cannot be run. The reason has been printed.
    """
    with log_to_stderr(log_level, target.partition(".")[0].partition(":")[0], log_format) as formatter:
        found = find_worker(target)
    try:
        found.settings = replace(found.settings, **settings)
        if count > 1:
            found.settings = _numbered(found.settings, number)
        queue = connect_queue(url, **options)
    except (InvalidURLError, InvalidJobError, ImportError) as error:
        raise refusal(str(error)) from None
    if isinstance(formatter, JSONFormatter):
        formatter.worker = f"{found.settings.name}@{process_name()}"
    fail = _logged if log_format is LogFormat.JSON else refusal
    gc.freeze()  # the modules of the program stay until the end: the garbage collector need not look at them
    return asyncio.run(_run(found, queue, fail, usable, drain=drain))


def _numbered(settings: WorkerSettings, number: int) -> WorkerSettings:
    """Return the settings of one of several processes: its name ends with its number, and each has a port."""
    health = settings.health
    if health is not None:
        host, _, port = health.rpartition(":")
        health = f"{host}:{int(port) + number - 1 if int(port) else 0}"
    return replace(settings, name=f"{settings.name}-{number}", health=health)


def _logged(message: str) -> typer.Exit:
    """Log the error that ends the worker, where standard error has one JSON object a line."""
    logger.error("%s", message)
    return typer.Exit(UNUSABLE)


async def _run(
    found: Worker,
    queue: BlobQueue | StoreQueue,
    fail: Callable[[str], typer.Exit],
    usable: Callable[[], object],
    *,
    drain: bool,
) -> int:
    """Run a worker until it ends, and return the status that the command exits with.

    Args:
        found: the worker.
        queue: its queue.
        fail: prints or logs the error that ends the worker.
        usable: called after the first look at the queue.
        drain: True to end when no job is ready.
    """
    status = 0
    stopped = asyncio.Event()
    with handle_signals(stopped.set):
        try:
            await _until_stopped(stopped, _log_queue(queue, found.handlers))
            if not stopped.is_set():
                usable()
                report = await found.run(queue, drain=drain)
                status = SOME_DIED if drain and report.dead else 0
        except (StorageFatalError, InvalidBlobError) as error:
            status = fail(f"{name_of(queue)} cannot be used: {error}").exit_code
        except (JQueueError, ImportError) as error:
            status = fail(str(error)).exit_code
        await _cancel_left_tasks(status)
        if status == 0:
            leave_at_signals()
    return status


async def _until_stopped(stopped: asyncio.Event, check: Coroutine[Any, Any, None]) -> None:
    """Wait for the first check of the queue, or until the worker is stopped."""
    checking, stopping = asyncio.create_task(check), asyncio.create_task(stopped.wait())
    await asyncio.wait([checking, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if checking.done():
        checking.result()


async def _cancel_left_tasks(status: int) -> None:
    """Cancel tasks that go on after the worker. If some do not end, exit the process at once."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=LAST_WAIT))[1]:
        logger.warning("some handlers still run although they were told to stop: the process exits now")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)  # or they would keep the process alive for ever


async def _log_queue(queue: BlobQueue | StoreQueue, handled: Container[str]) -> None:
    """Log the state of the queue. Raise if it can never be used; the worker waits for a queue that is away."""
    if isinstance(place_of(queue), InMemoryStorage):
        logger.warning("an in-memory queue is visible only to its own process: no other program can enqueue there")
    silence = asyncio.get_running_loop().call_later(SILENCE_LIMIT, log_silence, name_of(queue))
    try:
        stats: QueueStats = await queue.stats(deadline=10)
    except (StorageFatalError, InvalidBlobError):
        raise
    except QueueMissingError:
        logger.info("%s", QueueMissingError(describe(place_of(queue))))
        return
    except JQueueError as error:
        logger.warning("%s cannot be reached yet, retrying: %s", name_of(queue), error)
        return
    finally:
        silence.cancel()
    counts = f"{counted(stats.ready, 'ready job')}, {stats.scheduled:,} scheduled, {stats.dead:,} dead"
    logger.info("%s has %s%s", name_of(queue), counts, _unhandled(stats, handled))


def _unhandled(stats: QueueStats, handled: Container[str]) -> str:
    """Return the entrypoints with ready jobs that this worker will not claim, in words; empty if there are none."""
    known = (stats.entrypoints or {}).items()
    others = [f"{printable(name)} ({found.ready})" for name, found in known if found.ready and name not in handled]
    if not others:
        return ""
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"; this worker has no handler for the ready jobs of {', '.join(others[:NAMED])}{more}"
