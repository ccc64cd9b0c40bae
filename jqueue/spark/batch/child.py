"""The process of the handlers of a partition: it runs a worker on jobs that it has in memory since its fork.

Before a job begins, and when it has ended, a message says so. A message is in the pipe before the next instruction, so
the parent loses none of them, whatever a handler does to the process.

The jobs are a queue for the worker. It hands out jobs that the driver has claimed, and passes on what becomes of them;
the driver tells the queue, and keeps the claims alive. A heartbeat of the worker is a look at the queue, which tells of
lost claims and cancelled jobs. Everything else that a handler may ask of `ctx.queue` is a call of the queue itself.
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
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import msgspec
from msgspec import structs

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.workers import Describe
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, JobCancelledError, JobNotFoundError, JQueueError
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import cut_error
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import JobReference, Operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.rules import Schedule
from jqueue.domain.segments import RangeClaim
from jqueue.ports.queue import Capabilities
from jqueue.ports.storage import ObjectStoragePort
from jqueue.spark.batch.worker_pickle import unpickled
from jqueue.spark.claims.outcomes import NOT_KEPT, Outcome, outcome_of
from jqueue.spark.staging import PREFIX, Staging
from jqueue.worker.in_process import end_with_parent
from jqueue.worker.retries import error_text
from jqueue.worker.run import Run

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
        results: True to answer with the results of jobs, and to leave the end of ranges to the driver.
    """

    worker: bytes = field(repr=False)
    staging: Staging
    write_id: str
    timeout: float | None = None
    results: bool = False

    @property
    def marker(self) -> str:
        """The name of an object that exists while the batch goes on."""
        return f"{PREFIX}{self.write_id}-open"

    async def mark(self) -> None:
        """Stage this object."""
        async with self.staging.opened() as objects:
            await objects.write(self.marker, b"{}")


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of the process of handlers.

    Attributes:
        begun: ids of jobs that begin now, with the seconds after which each must have ended, or None for no limit.
        ended: outcomes of jobs.
        failure: why no more jobs are done.
        is_over: True if the worker has ended.
        is_stuck: True if the worker has ended as handlers did not stop that hold all slots.
    """

    begun: dict[str, float | None] = {}
    ended: tuple[Outcome, ...] = ()
    failure: str | None = None
    is_over: bool = False
    is_stuck: bool = False


class PartitionQueue(DirectQueue):
    """A queue of jobs that are claimed already. One run of a worker uses it, on one event loop.

    Args:
        storage: of the queue itself.
        jobs: the jobs, in the order in which they are handed out.
        claim: the claim of their range; None if each is claimed by itself.
        limits: by entrypoint: seconds after which a job that has begun must have ended.
        send: sends a message.
    """

    def __init__(
        self,
        storage: ObjectStoragePort,
        *,
        jobs: Sequence[JobRecord],
        claim: RangeClaim | None,
        limits: Mapping[str, float],
        send: Callable[[Message], object],
    ) -> None:
        super().__init__(storage)
        self._preparation = structs.replace(self._preparation, object_bytes=None)  # results travel with their outcomes
        self._waiting = deque(jobs)
        self._range = claim
        self._limits = limits
        self._send = send
        self._begun: dict[str, int] = {}  # ids and attempts, which the garbage collector need not visit
        self._cancelled: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        """Everything but ranges: their jobs are handed out one by one."""
        return structs.replace(super().capabilities, ranges=False)

    def attend(self, run: str, describe: Describe, stop: Callable[[], object]) -> None:
        """Do nothing: the driver, not the partition, commits."""

    def offer(self, url: str | None = None) -> None:
        """Do nothing, as in `attend`."""

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        """Return no schedules to a worker that starts: it has none to miss. A call of a handler reads the queue."""
        return await super().schedules(deadline=deadline) if self._begun else []

    async def dequeue(
        self, entrypoint: str | Sequence[str] | None = None, *, wait: Duration | None = None, **options: Any
    ) -> list[Job]:
        """Hand out jobs of these entrypoints. Once all are handed out, no others will come."""
        count = options.get("batch_size", 1)
        names = (entrypoint,) if isinstance(entrypoint, str) else entrypoint
        taken, passed = list[JobRecord](), list[JobRecord]()
        while self._waiting and len(taken) < count:
            job = self._waiting.popleft()
            (taken if names is None or job.entrypoint in names else passed).append(job)
        self._waiting.extendleft(reversed(passed))
        if taken:
            self._begun.update((job.id, job.attempt) for job in taken)
            # the worker itself stops a job that has a timeout of its own
            limits = {job.id: None if job.timeout else self._limits.get(job.entrypoint) for job in taken}
            self._send(Message(begun=limits))
        elif wait is not None and count:
            await asyncio.sleep(to_seconds("wait", wait))
        return [job_of(job.evolve(cancel_requested=True) if job.id in self._cancelled else job) for job in taken]

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        """Return the errors of lost claims and cancelled jobs, by a look at the queue."""
        view, claims = await self.view(deadline=deadline), [self._claims.find(job) for job in jobs]
        if self._range is None:
            held = [job for job in view.records.values() if job.status is JobStatus.IN_PROGRESS]
            lost = set(claims) - {Claim(job.id, job.attempt) for job in held}
            self._cancelled = {job.id for job in held if job.cancel_requested}
        else:
            whole = view.header.ranges.get(self._range.id)
            is_ours = whole is not None and whole.claims == self._range.attempt
            lost = set() if is_ours else set(claims)
            self._cancelled = set(whole.cancelled) if whole is not None else set()
        if lost:
            self._send(Message(ended=tuple(Outcome(*claim, "handed_back") for claim in lost)))
        return [
            ClaimLostError(*claim) if claim in lost else JobCancelledError(*claim)
            for claim in claims
            if claim in lost or claim.job_id in self._cancelled
        ]

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass on what became of jobs, each by itself. Any other call goes to the queue itself."""
        claims = [self._claim_of(operation) for operation in operations]
        if None in claims:
            return await super().apply_each(*operations, **options)
        ended, answers = list[Outcome](), list[JQueueError | None]()
        for operation, claim in zip(operations, claims, strict=True):
            refusal = None
            if claim is not None and isinstance(operation, Ack) and operation.result is operation.keep_result is None:
                ended.append(Outcome(*claim, "done"))  # most are so: the general way takes ten times as long
            else:
                try:
                    ended.append(outcome_of([operation.prepared(self._preparation)]))
                except JQueueError as error:
                    refusal = error
            answers.append(refusal)
        self._send(Message(ended=tuple(ended)))
        return answers

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass on what became of a job, with the jobs to enqueue. Any other call goes to the queue itself.

        Raises:
            InvalidJobError: an operation beside the ack does not enqueue a job, or the ack is not the last.
        """
        if not any(map(self._claim_of, operations)):
            return await super().apply(*operations, **options)
        prepared = [operation.prepared(self._preparation) for operation in operations]
        self._send(Message(ended=(outcome_of([*operations[:-1], prepared[-1]]),)))
        return [None] * len(operations)

    def _claim_of(self, operation: Operation) -> Claim | None:
        """Return the claim that an operation ends; None if it ends none of a job that was handed out."""
        claim = self._claims.find(operation.job) if isinstance(operation, Ack | Nack) else None
        return claim if claim is not None and self._begun.get(claim.job_id) == claim.attempt else None


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
    run: Callable[..., Message] = asyncio.run,
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
        send(Message(failure=cut_error(f"the worker cannot be loaded on the executor: {error_text(error)}")))
        return
    handlers = {name: worker.wrap(handler) for name, handler in worker.handlers.items()}
    for handler in handlers.values():  # the driver declares the limits, and commits the ends of jobs
        options = replace(handler.options, max_running=None, rate=None, rate_per_key=None)
        if options.seconds is None:
            options = replace(options, timeout=task.timeout)
        if task.results and options.keep_result is None:
            options = replace(options, keep_result=NOT_KEPT)
        if one_by_one and options.batch is not None:
            options = replace(options, batch=1)
        handler.options = options
    settings = replace(worker.settings, on_dead=None, health=None, max_jobs=None, max_memory=None)
    if one_by_one:
        settings = replace(settings, concurrency=1)
    grace = to_seconds("cancel_grace", settings.cancel_grace)
    limits = {
        name: handler.options.seconds + grace
        for name, handler in handlers.items()
        if handler.options.seconds is not None and handler.home != "process"
    }

    async def run_worker() -> Message:
        make_queue = partial(PartitionQueue, jobs=jobs, claim=claim, limits=limits, send=send)
        try:
            async with connect(task.staging.url, make_queue) as queue:
                report = await worker.perform(Run(settings, handlers, (), queue, drain=True, signals=False))
        except Exception as error:
            traceback.print_exc()
            why = str(error) if isinstance(error, JQueueError) else f"the worker failed: {error_text(error)}"
            return Message(failure=cut_error(why))
        return Message(is_over=True, is_stuck=report.stuck > 0)

    send(run(run_worker()))
