"""Jobs done in child processes, so that a handler which ends its process costs its own job an attempt, and no other's.

A child does all jobs, as many at a time as its worker does. If it ends early, the jobs that it had begun are done
again, one at a time. A job that ends a process in which no other job has begun is to blame: it is charged as the
options of its handler say. The others are done. Jobs that were not begun go to another child, together. A child whose
handlers do not stop in time is ended.
Without fork (Windows) there are no children: handlers run in the task itself, and a handler that ends the process fails
the task.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import cut_error
from jqueue.domain.models import job_of
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.batch.loop import PartitionLoop
from jqueue.spark.batch.marks import BEGUN, DONE, ENDED, HANDED_BACK, NEW, OVER, STUCK, WITHHELD, Marks
from jqueue.spark.batch.worker_pickle import unpickled
from jqueue.spark.claims import ClaimedJobs, Outcome, Staged
from jqueue.spark.staging import PREFIX, Staging
from jqueue.worker.in_process import end_with_parent
from jqueue.worker.processes import ProcessDied
from jqueue.worker.retries import HandlerTimeout, OutcomeKind, error_text

logger: Logger = logger_of("jqueue.spark")

LATE = 10.0
"""Seconds that a loop may take to stop a handler after its timeout and its grace."""

END = 30.0
"""Seconds that a loop may take to end after all jobs that it has begun."""

EXIT = 5.0
"""Seconds that a process may take to exit after its loop."""

CHECK_INTERVAL = 0.5
"""Seconds between two checks of a child."""

OVERDUE = "still ran after it was told to stop: its process was ended"

CAUSES = {
    "SIGKILL": ", perhaps because the system was out of memory",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"), ": it crashed"),
}
"""Likely causes of a signal."""

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


def do_jobs(task: BatchTask, jobs: ClaimedJobs) -> tuple[Staged, str | None]:
    """Do jobs in child processes.

    Returns:
        The outcomes, to be staged: jobs without one are handed back. And why some were not done, if the reason is
        common to all: the worker cannot be made, or fails.
    """
    with closing(Marks(len(jobs.rows))) as marks:
        failure = _do_all(task, jobs, marks)
        outcomes, states = marks.outcomes(), marks.states[: len(jobs.rows)]
    is_whole = set(states) <= {DONE, WITHHELD, ENDED}
    return _staged(jobs, states, outcomes), None if is_whole else failure


def _staged(jobs: ClaimedJobs, states: bytes, outcomes: Mapping[str, Outcome]) -> Staged:
    """Return the outcomes of the jobs of a partition.

    Args:
        jobs: the jobs.
        states: the state of each job: see `Marks`.
        outcomes: of jobs that are not simply done, by their ids.
    """

    def outcome(place: int) -> Outcome:
        job, state = jobs.job(place), states[place]
        kind: OutcomeKind = "succeeded" if state in (DONE, WITHHELD) else "handed_back"
        return outcomes.get(job.id) or Outcome(*job.claim, kind, withheld=state == WITHHELD)

    claim, last = jobs.claim, len(states.rstrip(bytes([NEW, BEGUN, HANDED_BACK])))
    if claim is None:
        return Staged(tuple(outcome(place) for place in range(last) if states[place] in (DONE, WITHHELD, ENDED)))
    left, withheld = len(states) - last, WITHHELD in states
    states = states.replace(bytes([WITHHELD]), bytes([DONE]))
    open_places = [place for place in range(last) if states[place] != DONE] if states.count(DONE) < last else []
    return Staged(tuple(map(outcome, open_places)), claim.id, last - len(open_places), left, withheld=withheld)


def _do_all(task: BatchTask, jobs: ClaimedJobs, marks: Marks) -> str | None:
    """Do jobs in one child process after the other. Return why no more are done, if the reason is common to all."""
    suspects, rest = list[int](), list(range(len(jobs.rows)))
    while suspects or rest:
        one_by_one, places = bool(suspects), suspects or rest
        death, is_overdue = _run(task, jobs, places, marks, one_by_one)
        later = [place for place in places if marks.states[place] == NEW]
        running = [place for place in places if marks.states[place] == BEGUN]
        if (failure := marks.failure()) is not None:
            return failure
        if death is not None and len(later) == len(places):
            return f"{death} before it began a job"
        for place in running:
            marks.states[place] = NEW
        if death is None:
            running, later = [], later if marks.end == STUCK and len(later) < len(places) else []
        elif one_by_one and len(places) - len(later) == 1:
            for place in running:
                error = HandlerTimeout(f"timed out, and {OVERDUE}") if is_overdue else ProcessDied(death)
                job = job_of(jobs.job(place))
                logger.warning("job %s (%s) failed: %s", job.id, job.entrypoint, error)
                marks.note(place, Outcome.of_error(unpickled(task.worker), job, error, killed=True))
            running = []
        elif running and not one_by_one:
            again = counted(len(running), "job")
            logger.warning("%s; %s that it had begun will be done again, one by one", death, again)
        suspects, rest = (running + later, rest) if one_by_one else (running, later)
    return None


def _run(
    task: BatchTask,
    jobs: ClaimedJobs,
    places: Sequence[int],
    marks: Marks,
    one_by_one: bool,
) -> tuple[str | None, bool]:
    """Have a child do jobs, and wait until it has ended with all that it has started.

    Returns:
        A description of the end of its process if it ended early, and True if it was killed as a handler did not stop.
    """
    marks.end = 0
    work_here = partial(work, task, jobs, places, marks, one_by_one=one_by_one)
    if not hasattr(os, "fork"):
        work_here()
        return None, False
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=run_as_child, args=(work_here,), name="jqueue-handlers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: their locks are not used
        process.start()
    try:
        is_overdue = _wait(process, places[0], marks)
    finally:
        _kill(process)
        process.join()
    return None if marks.end else _describe_exit(process.exitcode), is_overdue


def _wait(process: BaseProcess, first: int, marks: Marks) -> bool:
    """Wait until a child has ended, by itself or by force. Return True if a handler did not stop in time.

    Args:
        process: the child.
        first: the place of its first job.
        marks: has what becomes of its jobs.
    """
    clock, idle_since = SystemClock(), None
    while process.exitcode is None:
        process.join(CHECK_INTERVAL)
        now = clock.monotonic()
        running = marks.places(BEGUN)
        if running or marks.states[first] == NEW:
            idle_since, why = None, "handlers did not stop in time"
            is_late = any(now >= marks.due[place] + LATE for place in running)
        else:
            idle_since, why = idle_since or now, "it still runs although its jobs are done"
            is_late = now >= idle_since + (EXIT if marks.end else END)
        if is_late and process.exitcode is None:
            logger.warning("a process of handlers is ended: %s", why)
            return bool(running)
    return False


def _kill(process: BaseProcess) -> None:
    """Kill a child and all that it has started."""
    assert process.pid is not None
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may not lead its group yet


def _describe_exit(code: int | None) -> str:
    """Return a description of the end of a process, to be kept as the error of its job."""
    if code is None or code >= 0:
        return "the process of the handler ended" + ("" if code is None else f" with exit code {code}")
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"the process of the handler was ended by {name}{CAUSES.get(name, '')}"


# In the child


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
        loop = PartitionLoop(worker, task.staging.url, task.timeout, jobs, places, marks, one_by_one=one_by_one)
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
