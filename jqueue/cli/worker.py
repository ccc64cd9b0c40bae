"""`jqueue worker app:worker URL`: runs the worker of a program on a queue, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Container
from enum import StrEnum
from typing import Annotated

import typer

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.adapters.storage.names import describe, printable
from jqueue.cli.log import log_to_stderr
from jqueue.cli.on_queue import URL, is_absent, place_of
from jqueue.cli.printing import refusal
from jqueue.cli.program import find_worker
from jqueue.connect import connect_queue
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.job_store.queue import StoreQueue
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, InvalidURLError, JQueueError, StorageFatalError
from jqueue.domain.stats import QueueStats
from jqueue.worker import Worker

NAMED = 5
"""So many entrypoints without a handler are named."""

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
    url: URL,
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
    log_to_stderr(log_level.value, target.partition(".")[0].partition(":")[0])
    found = find_worker(target)
    found.concurrency = concurrency or found.concurrency
    found.grace = found.grace if grace is None else grace
    try:
        queue = connect_queue(url)
        asyncio.run(_run(found, queue, drain=drain))
    except (InvalidURLError, InvalidJobError, ImportError) as error:
        raise refusal(str(error)) from None
    except (StorageFatalError, InvalidBlobError) as error:
        raise refusal(f"the queue cannot be used: {error}") from None


async def _run(found: Worker, queue: BlobQueue | StoreQueue, *, drain: bool) -> None:
    await _look(queue, found.handlers)
    await found.run(queue, drain=drain)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left and (await asyncio.wait(left, timeout=LAST_WAIT))[1]:
        logging.getLogger("jqueue.worker").warning("handlers go on although they were told to stop: they end now")
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)  # or they would keep the process for ever


async def _look(queue: BlobQueue | StoreQueue, handled: Container[str]) -> None:
    """Say what there is; a queue that can never be used is an error now, and one that is away is waited for."""
    logger = logging.getLogger("jqueue.worker")
    if isinstance(place_of(queue), InMemoryStorage):
        logger.warning("a queue in memory is this process's alone, and ends with it: nobody else can enqueue there")
    try:
        stats: QueueStats = await queue.stats(deadline=10)
    except (StorageFatalError, InvalidBlobError):
        raise
    except JQueueError as error:
        logger.warning("the queue cannot be reached yet: %s", error)
        return
    if await is_absent(queue, stats):
        logger.info("there is no queue at %s yet: it is made with the first job", describe(place_of(queue)))
        return
    counts = f"{stats.depth} jobs ready, {stats.scheduled} scheduled, {stats.dead} dead"
    logger.info("the queue has %s%s", counts, _unhandled(stats, handled))


def _unhandled(stats: QueueStats, handled: Container[str]) -> str:
    """The entrypoints with ready jobs that this worker will not claim, in words; nothing if there are none."""
    known = (stats.entrypoints or {}).items()
    others = [f"{printable(name)} ({found.depth})" for name, found in known if found.depth and name not in handled]
    if not others:
        return ""
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"; this worker has no handler for those of {', '.join(others[:NAMED])}{more}"
