"""The process of the handlers of a partition. It has the jobs in memory since its fork."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import cut_error
from jqueue.spark.batch.loop import PartitionLoop
from jqueue.spark.batch.marks import OVER, Marks
from jqueue.spark.batch.worker_pickle import unpickled
from jqueue.spark.claims.held import ClaimedJobs
from jqueue.spark.staging import PREFIX, Staging
from jqueue.worker.in_process import end_with_parent
from jqueue.worker.retries import error_text

INTERRUPTED = 130
"""Exit code of a process that a KeyboardInterrupt has ended."""


@dataclass(frozen=True)
class BatchTask:
    """The settings of the tasks of a batch. They may be pickled.

    Attributes:
        worker: the pickle of the worker that does the jobs.
        staging: the place of the outcomes, beside the queue.
        write_id: the id of the batch, in the names of its staged objects.
        timeout: seconds that a handler may take that has no timeout of its own; None for no limit.
        awaited: ids of jobs that other jobs wait for.
    """

    worker: bytes = field(repr=False)
    staging: Staging
    write_id: str
    timeout: float | None = None
    awaited: frozenset[str] = frozenset()

    @property
    def marker(self) -> str:
        """The name of an object that exists while the batch goes on."""
        return f"{PREFIX}{self.write_id}-open"

    async def mark(self) -> None:
        """Stage this object."""
        async with self.staging.opened() as objects:
            await objects.write(self.marker, b"{}")


def run_as_child(work: Callable[..., None]) -> NoReturn:
    """Do the work of a forked process. Then exit. Threads and tasks that handlers have left end with it."""
    code = 1
    try:
        gc.freeze()  # garbage collection must not close objects of the parent here
        os.setpgid(0, 0)  # processes that handlers start end with them; only the driver gets Ctrl-C
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # the defaults: the exit status names the signal
        faulthandler.enable(2)
        threading.Thread(target=end_with_parent, name="jqueue-parent", daemon=True).start()
        work(run=asyncio.Runner().run)
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def work(
    task: BatchTask,
    jobs: ClaimedJobs,
    places: Sequence[int],
    marks: Marks,
    blamed: Mapping[int, str | None],
    *,
    one_by_one: bool = False,
    run: Callable[..., Any] = asyncio.run,
) -> None:
    """Do jobs of a partition, and mark what becomes of them.

    Args:
        task: the task of the partition.
        jobs: the jobs of the partition.
        places: the places of the jobs to do.
        marks: takes what becomes of them.
        blamed: by the places of other jobs: how they have ended the process before; None if a handler did not stop.
        one_by_one: True to do one job at a time.
        run: runs a coroutine.
    """
    try:
        worker = unpickled(task.worker)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        _end(marks, f"the worker cannot be loaded on the executor: {error_text(error)}")
        return

    async def perform() -> None:
        loop = PartitionLoop(worker, task.staging.url, task.timeout, jobs, places, marks, blamed, one_by_one=one_by_one)
        await worker.perform(loop)

    try:
        run(perform())
    except Exception as error:
        _end(marks, str(error) if isinstance(error, JQueueError) else f"the worker failed: {error_text(error)}")


def _end(marks: Marks, why: str) -> None:
    """Note why no more jobs are done, in the words of the error that is handled."""
    traceback.print_exc()
    marks.note_failure(cut_error(why))
    marks.end = OVER
