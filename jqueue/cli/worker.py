"""`jqueue worker app:worker URL`: runs the worker of a program on a queue, until it is told to stop."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from jqueue.connect import connect
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, InvalidURLError, JQueueError, StorageFatalError
from jqueue.domain.stats import QueueStats
from jqueue.worker import Worker

UNUSABLE = 2
"""What it exits with if it could not begin."""

LAST_WAIT = 1.0
"""Seconds that tasks get which go on after the worker has ended."""


class Level(StrEnum):
    """How much is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def worker(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKER", help="Where the worker is, as in app:worker.", show_default=False),
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The queue's: s3://bucket/queue.json, or a path.", show_default=False)
    ],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Jobs at once, instead of what the worker says.", show_default=False)
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds for jobs to finish after SIGTERM, likewise.", show_default=False),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when no job is ready.")] = False,
    log_level: Annotated[Level, typer.Option(case_sensitive=False, help="What to log.")] = Level.INFO,
) -> None:
    """Run a worker.

    SIGTERM or Ctrl-C stops it: it claims no more jobs, finishes those that it has within the grace period, hands the
    others back, and exits with 0. A second signal stops it at once.
    """
    _log(log_level, target.partition(".")[0].partition(":")[0])
    found = _find(target)
    found.concurrency = concurrency or found.concurrency
    found.grace = found.grace if grace is None else grace
    try:
        queue = connect(url, BrokerQueue)
        asyncio.run(_run(found, queue, drain=drain))
    except (InvalidURLError, InvalidJobError, ImportError) as error:
        raise _refusal(str(error)) from None
    except (StorageFatalError, InvalidBlobError) as error:
        raise _refusal(f"the queue cannot be used: {error}") from None


async def _run(found: Worker, queue: BrokerQueue, *, drain: bool) -> None:
    await _look(queue)
    await found.run(queue, drain=drain)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=LAST_WAIT))[1]:
        logging.getLogger("jqueue.worker").warning("handlers go on although they were told to stop: they end now")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)  # or they would keep the process for ever


async def _look(queue: BrokerQueue) -> None:
    """Say what there is; a queue that can never be used is an error now, and one that is away is waited for."""
    logger = logging.getLogger("jqueue.worker")
    try:
        stats: QueueStats = await queue.stats(deadline=10)
    except (StorageFatalError, InvalidBlobError):
        raise
    except JQueueError as error:
        logger.warning("the queue cannot be reached yet: %s", error)
        return
    logger.info("the queue has %d jobs ready, %d scheduled, %d dead", stats.depth, stats.scheduled, stats.dead)


def _find(target: str) -> Worker:
    """The worker that MODULE:NAME means. The folder that one is in counts, as for `python -m`."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise _refusal("say where the worker is as MODULE:NAME: app:worker is `worker` in app.py")
    if module_name.endswith(".py") or "/" in module_name:
        raise _refusal("name the module, not its file: app:worker is `worker` in app.py, which is in this folder")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _refusal(f"there is no module {module_name!r} here, nor is it installed") from None
        raise
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        what = "nothing" if found is None else f"something of type {type(found).__name__}"
        raise _refusal(f"{module_name} has {what} called {name!r}, where a jqueue.worker.Worker is needed")
    return found


def _refusal(message: str) -> typer.Exit:
    typer.echo(f"jqueue: {message}", err=True)
    return typer.Exit(UNUSABLE)


def _log(level: Level, program: str) -> None:
    """Ours and the program's own, to the standard error: in colours for people, plain for machines.

    Others, such as the clients of stores, only warn: they would tell more than anybody wants to know. A program that
    has set up its log itself keeps what it has.
    """
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s", datefmt="[%X]"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for name in ("jqueue", program):
        if name:
            logging.getLogger(name).setLevel(level.value)
