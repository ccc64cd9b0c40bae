"""`jqueue worker app:worker URL`: runs the worker of a program on a queue, until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Container, Coroutine
from enum import StrEnum
from typing import Annotated, Any

import typer

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.log import JSONFormatter, LogFormat, log_to_stderr
from jqueue.cli.on_queue import URL, Create, place_of
from jqueue.cli.printing import UNUSABLE, refusal
from jqueue.cli.program import find_worker
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
from jqueue.ports.log import logger_of
from jqueue.ports.storage import describe
from jqueue.runtime.system import process_name
from jqueue.worker import Worker
from jqueue.worker.opening import name_of
from jqueue.worker.queue_health import SILENCE_LIMIT, log_silence
from jqueue.worker.signals import handle_signals, leave_at_signals

logger = logger_of("jqueue.worker")

NAMED = 5
"""Largest number of entrypoints without a handler to name."""

SOME_DIED = 1
"""Exit code of `--drain` if jobs died."""

LAST_WAIT = 1.0
"""Seconds given to tasks that go on after the worker has ended."""


PollInterval = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Most seconds between two reads of a queue in which nothing is ready; 1 by default.",
        show_default=False,
    ),
]
GiveUpAfter = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Seconds to retry a queue that is gone or cannot be used; by default the worker's own.",
        show_default=False,
    ),
]


class Level(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:WORKER", help="Module and name of the worker, such as app:worker.", show_default=False
        ),
    ],
    url: URL,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Number of jobs to run at once; by default the worker's own.", show_default=False),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds for jobs to finish after SIGTERM; by default the worker's own.", show_default=False
        ),
    ] = None,
    give_up_after: GiveUpAfter = None,
    show_errors: Annotated[
        bool, typer.Option("--show-errors", help="Log the messages and tracebacks of errors, which may quote payloads.")
    ] = False,
    health: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /healthz, /readyz and /metrics there, such as 127.0.0.1:8080.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Exit when no job is ready.")] = False,
    poll_interval: PollInterval = None,
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
    with log_to_stderr(log_level.value, target.partition(".")[0].partition(":")[0], log_format) as formatter:
        found = find_worker(target)
    if isinstance(formatter, JSONFormatter):
        formatter.worker = f"{found.name}@{process_name()}"
    found.concurrency = concurrency or found.concurrency
    found.grace = found.grace if grace is None else grace
    found.give_up_after = found.give_up_after if give_up_after is None else give_up_after
    found.show_errors = found.show_errors or show_errors
    found.health = health or found.health
    try:
        queue = connect_queue(url, create=create, **({"poll_interval": poll_interval} if poll_interval else {}))
    except (InvalidURLError, InvalidJobError, ImportError) as error:
        raise refusal(str(error)) from None
    fail = _logged if log_format is LogFormat.JSON else refusal
    gc.freeze()  # the modules of the program stay until the end: the garbage collector need not look at them
    if (status := asyncio.run(_run(found, queue, fail, drain=drain))) != 0:
        raise typer.Exit(status)


def _logged(message: str) -> typer.Exit:
    """Log the error that ends the worker, where standard error has one JSON object a line."""
    logger.error("%s", message)
    return typer.Exit(UNUSABLE)


async def _run(found: Worker, queue: BlobQueue | StoreQueue, fail: Callable[[str], typer.Exit], *, drain: bool) -> int:
    """Run a worker until it ends, and return the status that the command exits with.

    Args:
        found: the worker.
        queue: its queue.
        fail: prints or logs the error that ends the worker.
        drain: True to end when no job is ready.
    """
    status = 0
    stopped = asyncio.Event()
    with handle_signals(stopped.set):
        try:
            await _until_stopped(stopped, _log_queue(queue, found.handlers))
            if not stopped.is_set():
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
