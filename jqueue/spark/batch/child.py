"""The process of the handlers of a partition: it runs a worker on jobs that it has in memory since its fork.

Before a job begins, and when it has ended, a message says so. A message is in the pipe before the next instruction, so
the parent loses none of them, whatever a handler does to the process.
"""

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

import msgspec

from jqueue.connect import connect
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import RangeClaim
from jqueue.spark.batch.partition_queue import Message, PartitionQueue
from jqueue.spark.batch.worker_pickle import unpickled
from jqueue.spark.claims.outcomes import NOT_KEPT
from jqueue.worker import Worker
from jqueue.worker.in_process import end_with_parent
from jqueue.worker.retries import error_text

if TYPE_CHECKING:
    from jqueue.spark.batch.task import BatchTask

INTERRUPTED = 130
"""Exit code of a process that a KeyboardInterrupt has ended."""


def run_as_child(
    writer: Connection, task: BatchTask, claim: RangeClaim | None, jobs: Sequence[JobRecord], one_by_one: bool
) -> NoReturn:
    """Do the work of a forked process: see `work`. Then exit. Threads and tasks that handlers have left end with it."""
    code = 1
    try:
        gc.freeze()  # garbage collection must not close objects of the parent here
        os.setpgid(0, 0)  # processes that handlers start end with them; only the driver gets Ctrl-C
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)  # the defaults: the exit status names the signal
        faulthandler.enable(2)
        threading.Thread(target=end_with_parent, name="jqueue-parent", daemon=True).start()
        with open(writer.fileno(), "wb", closefd=False) as pipe:

            def send(message: Message) -> None:
                pipe.write(msgspec.json.encode(message) + b"\n")
                pipe.flush()

            work(task, claim, jobs, one_by_one, send, asyncio.Runner().run)
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
    claim: RangeClaim | None,
    jobs: Sequence[JobRecord],
    one_by_one: bool,
    send: Callable[[Message], object],
    run: Callable[..., object] = asyncio.run,
) -> None:
    """Do jobs, and report what becomes of them.

    Args:
        task: the task that they are of.
        claim: the claim of the range of the jobs; None if each is claimed by itself.
        jobs: the jobs to do.
        one_by_one: True to do one job at a time.
        send: sends a message.
        run: runs a coroutine.
    """
    try:
        worker = unpickled(task.worker)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        traceback.print_exc()
        send(Message(failure=f"the worker cannot be loaded on the executor: {error_text(error)}"))
        return
    crons, settings = [*worker.crons], worker.settings
    options = {name: handler.options for name, handler in worker.handlers.items()}
    try:
        _adapt(worker, task, one_by_one)
        run(_run(worker, task, claim, jobs, send))
    finally:  # without fork, other tasks of this process have the same worker
        worker.crons[:], worker.settings = crons, settings
        for name, handler in worker.handlers.items():
            handler.options = options[name]


def _adapt(worker: Worker, task: BatchTask, one_by_one: bool) -> None:
    """Change the settings of a worker. The driver declares limits and schedules, and commits the ends of jobs."""
    worker.crons.clear()
    worker.settings = replace(worker.settings, on_dead=None, health=None)
    if one_by_one:
        worker.settings = replace(worker.settings, concurrency=1)
    for handler in worker.handlers.values():
        options = replace(handler.options, max_running=None, rate=None)
        if options.seconds is None:
            options = replace(options, timeout=task.timeout)
        if task.results and options.keep_result is None:
            options = replace(options, keep_result=NOT_KEPT)
        if one_by_one and options.batch is not None:
            options = replace(options, batch=1)
        handler.options = options


async def _run(
    worker: Worker,
    task: BatchTask,
    claim: RangeClaim | None,
    jobs: Sequence[JobRecord],
    send: Callable[[Message], object],
) -> None:
    grace = to_seconds("cancel_grace", worker.settings.cancel_grace)
    limits = {
        name: handler.options.seconds + grace
        for name, handler in worker.handlers.items()
        if handler.options.seconds is not None and handler.home != "process"
    }
    make_queue = partial(PartitionQueue, jobs=jobs, claim=claim, limits=limits, send=send)
    try:
        async with connect(task.url, make_queue) as queue:
            report = await worker.run(queue, drain=True, signals=False)
    except Exception as error:
        traceback.print_exc()
        why = str(error) if isinstance(error, JQueueError) else f"the worker failed: {error_text(error)}"
        send(Message(failure=why))
    else:
        send(Message(is_over=True, is_stuck=report.stuck > 0))
