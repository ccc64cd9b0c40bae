"""Jobs done in child processes, so that a handler which ends its process costs its own job an attempt, and no other's.

A child does all jobs, as many at a time as its worker does. If it ends early, the jobs that it had begun are done
again, one at a time. A job that ends a process in which no other job has begun is to blame, and is charged; the others
are done. Jobs that were not begun go to another child, together. A child whose handlers do not stop in time is ended.
Without fork (Windows) there are no children: handlers run in the task itself, and a handler that ends the process fails
the task.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from jqueue.domain.job import JobRecord
from jqueue.domain.printable import counted
from jqueue.domain.segments import RangeClaim
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock
from jqueue.spark.batch.child import INTERRUPTED, BatchTask, Message, run_as_child, work
from jqueue.spark.claims.outcomes import Outcome, OutcomeKind

logger: Logger = logger_of("jqueue.spark")

LATE = 10.0
"""Seconds that a worker may take to stop a handler after its timeout and its grace."""

END = 30.0
"""Seconds that a worker may take to end after all jobs that it has begun."""

EXIT = 5.0
"""Seconds that a process may take to exit after its last message."""

CHECK_INTERVAL = 0.5
"""Seconds between two checks of a child."""

PAUSE = 0.002
"""Seconds between two reads of messages: a child that need not wake its parent at each message is twice as fast."""

CHUNK = 1 << 20
"""Bytes to read at once."""

MESSAGES = msgspec.json.Decoder(Message)

CAUSES = {
    "SIGKILL": ", perhaps because the system was out of memory",
    **dict.fromkeys(("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT"), ": it crashed"),
}
"""Likely causes of a signal."""


@dataclass
class ChildReport:
    """Report of a child about its jobs, and how it ended.

    Attributes:
        begun: ids of the jobs that it has begun.
        running: ids of the jobs that have not ended, with the times by which each must have ended.
        outcomes: what became of jobs, by id. Jobs that it has handed back are not among them.
        last: the last message.
        heard: time of the last message.
        death: how its process ended, if it ended early.
        is_overdue: True if handlers did not stop in time, so that the process was killed.
    """

    begun: set[str] = field(default_factory=set)
    running: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    last: Message = field(default_factory=Message)
    heard: float = 0.0
    death: str | None = None
    is_overdue: bool = False

    def receive(self, message: Message) -> None:
        """Take a message."""
        self.last, self.heard = message, SystemClock().monotonic()
        self.begun.update(message.begun)
        for job_id, limit in message.begun.items():
            self.running[job_id] = math.inf if limit is None else self.heard + limit + LATE
        for outcome in message.ended:
            self.running.pop(outcome.job_id, None)
            if outcome.kind != "handed_back":
                self.outcomes[outcome.job_id] = outcome

    @property
    def is_ended(self) -> bool:
        """True if the worker has ended, or has failed."""
        return self.last.is_over or self.last.failure is not None

    @property
    def due(self) -> float:
        """Time by which something must have happened: the next job has ended; or the worker, if none runs."""
        return min(self.running.values(), default=self.heard + END if self.begun else math.inf)


def do_jobs(
    task: BatchTask, claim: RangeClaim | None, jobs: Sequence[JobRecord]
) -> tuple[dict[str, Outcome], str | None]:
    """Do jobs in child processes. Return the outcomes by the ids of jobs; those without one are handed back.

    Also return why some were not done, if there is a reason common to all: the worker cannot be made, or fails.
    """
    outcomes = dict[str, Outcome]()
    suspects, rest = list[JobRecord](), list(jobs)
    while suspects or rest:
        one_by_one, batch = bool(suspects), suspects or rest
        report = _run(task, claim, batch, one_by_one)
        outcomes |= report.outcomes
        begun = [job for job in batch if job.id in report.running]
        later = [job for job in batch if job.id not in report.begun]
        why = report.last.failure
        if report.death is not None and not report.begun:
            why = f"{report.death} before it began a job"
        if why is not None and any(job.id not in outcomes for job in batch):
            return outcomes, why
        if report.death is None:
            begun, later = [], later if report.last.is_stuck and report.begun else []
        elif one_by_one:
            begun.reverse()  # the job that began last is the first of its next process
            if begun and len(report.begun) == 1:
                [job] = begun
                kind: OutcomeKind = "overdue" if report.is_overdue else "killed"
                outcomes[job.id] = Outcome(job.id, job.attempt, kind, error=report.death)
                begun = []
        elif begun:
            again = counted(len(begun), "job")
            logger.warning("%s; %s that it had begun will be done again, one by one", report.death, again)
        suspects, rest = (begun + later, rest) if one_by_one else (begun, later)
    return outcomes, None


def _run(task: BatchTask, claim: RangeClaim | None, jobs: Sequence[JobRecord], one_by_one: bool) -> ChildReport:
    """Have a child do jobs, wait until it has ended with all that it has started, and return its report."""
    report = ChildReport()
    if not hasattr(os, "fork"):
        work(task, claim, jobs, one_by_one, report.receive)
        return report
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=run_as_child, args=(writer, task, claim, jobs, one_by_one), name="jqueue-handlers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: their locks are not used
        process.start()
    writer.close()
    try:
        _listen(process, reader, report)
        process.join(EXIT)
    finally:
        _kill(process)
        process.join()
        reader.close()
    if not report.is_ended:
        report.death = report.death or _describe_exit(process.exitcode)
        if process.exitcode == INTERRUPTED:  # the worker has handed back all jobs, and the one to blame with them
            report.running |= dict.fromkeys(report.begun - report.outcomes.keys(), math.inf)
    return report


def _listen(process: BaseProcess, reader: Connection, report: ChildReport) -> None:
    """Read the messages of a child until the last one has come, or the child has ended, by itself or by force."""
    clock, part = SystemClock(), bytearray()
    while not report.is_ended:
        is_gone = process.exitcode is not None  # and will send nothing more; what it has started may hold the pipe
        if reader.poll(0 if is_gone else CHECK_INTERVAL):
            first, *lines = (chunk := os.read(reader.fileno(), CHUNK)).split(b"\n")
            part += first
            try:
                for line in lines:
                    report.receive(MESSAGES.decode(part))
                    part = bytearray(line)
            except (msgspec.MsgspecError, UnicodeError):
                report.death = "the process of the handlers wrote to a pipe of jqueue"
                return
            if not chunk:
                return
            time.sleep(PAUSE)
        elif is_gone:
            return
        if clock.monotonic() >= report.due and not is_gone:
            report.is_overdue = bool(report.running)
            why = "handlers did not stop in time" if report.running else "it still runs although its jobs are done"
            logger.warning("a process of handlers is ended: %s", why)
            _kill(process)


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
