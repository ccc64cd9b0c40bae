"""`QueueSet`: takes jobs from several queues, of any formats, in turn."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any, NoReturn, Self, Unpack

from jqueue.core.queue_base import errors_of, is_same_place
from jqueue.core.workers import Describe
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import (
    InvalidJobError,
    JobNotFoundError,
    JQueueError,
    QueueClosedError,
    QueueMissingError,
    shown,
)
from jqueue.domain.job import Claim, Step
from jqueue.domain.job_options import takes_options
from jqueue.domain.models import Job
from jqueue.domain.operations.base import JobReference, Operation
from jqueue.domain.operations.dequeue import DequeueOptions
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.printable import counted
from jqueue.domain.stats import QueueStats, sum_of
from jqueue.ports.clock import Clock
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import Capabilities, JobQueue, SupportsWorkers, Wait, payload_of
from jqueue.runtime.queue_options import QueueOptions
from jqueue.runtime.system import SystemClock
from jqueue.runtime.tasks import to_the_end

logger: Logger = logger_of("jqueue")

IDS_KEPT = 100_000
"""Maximum number of ids that are remembered with their queues; the oldest are dropped first."""

SLOW = 2.0
"""Seconds for which a queue that does not answer delays the jobs of the others."""

PENALTY = 30.0
"""Seconds for which a queue that has failed is asked after the others."""

OF_ONE_QUEUE = dict.fromkeys(
    ("limits", "retention", "schedules", "groups", "staged", "history", "ranges", "parents"), False
)
"""Capabilities for calls to one queue, which a set lacks."""


def _refusal_of(verb: str) -> Any:
    async def refuse(self: QueueSet, *_: Any, **__: Any) -> NoReturn:
        raise _one_queue_error(verb)

    return functools.wraps(getattr(JobQueue, verb))(refuse)


@dataclass(eq=False)
class _Member:
    """A queue of a set.

    Attributes:
        queue: the queue.
        served: the last turn in which it had jobs.
        failed_until: time until which it is asked after the others, on the clock of the event loop.
    """

    queue: JobQueue
    served: int = 0
    failed_until: float = 0.0


class QueueSet(JobQueue):
    """Takes jobs from several queues, in turn.

        async with QueueSet(connect("queue.json"), connect("vsqs:///var/spool/mail")) as queues:
            [job] = await queues.dequeue(wait=30)
            await queues.ack(job)

    A worker runs on it as on any queue. The jobs of one dequeue come from one queue, in its order. An ack, nack or
    heartbeat goes to the queue that the job came from; an id or a claim that stands for jobs of several queues is
    refused with InvalidJobError. `stats` and `count` add up the figures of all queues. All other calls concern one
    queue, and must be made on it.

    Entering the block opens the queues that are not open; leaving it closes the ones that it opened.

    Args:
        queues: any queues, each once.
        deadline: longest time for a call of the set that gives no `deadline` of its own; 30 seconds by default.
        clock: source of the time for the worker of the set; the machine's clock by default.

    Each queue keeps the options that it was made with.
    """

    def __init__(
        self, *queues: JobQueue, deadline: Duration = timedelta(seconds=30), clock: Clock | None = None
    ) -> None:
        self.options: QueueOptions = QueueOptions(deadline=deadline, clock=clock or SystemClock())
        self.options.check()
        self._members: list[_Member] = []
        self._owners: OrderedDict[str, list[tuple[JobQueue, Job]]] = OrderedDict()
        self._stack: AsyncExitStack | None = None
        self._changed = asyncio.Event()
        self._turn = 0
        for queue in queues:
            self._members.append(self._new_member(queue))

    def __repr__(self) -> str:
        return f"QueueSet({', '.join(map(repr, self.queues))})"

    @property
    def queues(self) -> tuple[JobQueue, ...]:
        """The queues, in the order in which they were added."""
        return tuple(member.queue for member in self._members)

    @property
    def capabilities(self) -> Capabilities:
        """The common capabilities of all queues. A call about one job only needs those of that job's own queue."""
        several = [queue.capabilities for queue in self.queues]
        can = {name: all(getattr(one, name) for one in several) for name in Capabilities.__struct_fields__}
        return Capabilities(**{**can, **OF_ONE_QUEUE, "wait": True, "holders": True})

    # Adding and removing queues

    async def add(self, queue: JobQueue) -> None:
        """Add a queue. Calls that already wait for jobs wait for its jobs, too.

        Raises:
            InvalidJobError: it is not a queue, or is in the set already.
        """
        member = self._new_member(queue)
        self._members.append(member)
        try:
            await self._open(queue)
        except BaseException:
            self._members.remove(member)
            raise
        self._wake_waiting()

    def remove(self, queue: JobQueue) -> None:
        """Remove a queue. Claims on its jobs can be acked and nacked here as before.

        If the set has opened the queue, it stays open until the set is left.

        Raises:
            InvalidJobError: it is not in the set.
        """
        left = [member for member in self._members if member.queue is not queue]
        if len(left) == len(self._members):
            raise InvalidJobError("this queue is not in the set")
        self._members = left
        self._wake_waiting()

    def _new_member(self, queue: JobQueue) -> _Member:
        if not hasattr(queue, "dequeue") or getattr(queue, "blocks", False):
            raise InvalidJobError(
                f"a set is made of async queues, got {type(queue).__name__}: `connect(url)` makes one"
            )
        if any(is_same_place(queue, other) for other in self.queues):
            raise InvalidJobError("this queue is in the set already")
        return _Member(queue)

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Taking jobs

    @takes_options(DequeueOptions)
    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration | None = None,
        deadline: Duration | None = None,
        **options: Unpack[DequeueOptions],
    ) -> list[Job]:
        """Claim ready jobs of one queue: of the one with ready jobs that was served the longest time ago.

        A queue whose store does not answer is passed over after two seconds if others have jobs.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: maximum time to wait for the first job if none is ready.
            deadline: maximum time for the call, in addition to `wait`.

        Returns:
            The claimed jobs; an empty list if none was ready.

        Raises:
            StorageError: the store of a queue failed, and no other queue had jobs.
        """
        seconds = to_seconds("deadline", self.options.deadline if deadline is None else deadline)
        loop = asyncio.get_running_loop()
        end = loop.time() + (0.0 if wait is None else to_seconds("wait", wait))
        whole = wait if isinstance(wait, Wait) else Wait(0.0)
        whole.on_end(lambda: None)  # the first looks do not wait

        def claim(member: _Member, deadline: float, wait: float | None = None) -> Coroutine[Any, Any, list[Job]]:
            known = dict[str, Any](options)
            if not member.queue.capabilities.holders:
                known.pop("holder", None)
            return member.queue.dequeue(entrypoint, wait=wait, deadline=deadline, **known)

        while True:
            changed, failed = self._changed, dict[_Member, JQueueError]()
            now = loop.time()
            for member in sorted(self._members, key=lambda each: (each.failed_until > now, each.served)):
                try:
                    jobs = await claim(member, min(seconds, SLOW) if len(self._members) > 1 else seconds)
                except (InvalidJobError, QueueClosedError):
                    raise
                except JQueueError as error:
                    failed[member], member.failed_until = error, loop.time() + PENALTY
                    continue
                if jobs:
                    return self._handed_out(member, jobs)
            left = 0.0 if whole.ended else max(0.0, end - loop.time())
            asked = self._members if left else [member for member in failed if seconds > SLOW]
            if not left and not asked:
                if failed:
                    raise next(iter(failed.values()))
                return []
            waits = {member: Wait(left) for member in asked}
            calls = {asyncio.create_task(claim(each, seconds, own or None)): each for each, own in waits.items()}
            answer = await self._first_answer(calls, waits, changed, whole, left)
            if isinstance(answer, tuple):
                return self._handed_out(*answer)
            if changed.is_set() and loop.time() < end and not whole.ended:
                continue  # with the queues that are in the set now
            if answer is not None:
                raise answer
            return []

    async def _first_answer(
        self,
        tasks: dict[asyncio.Task[list[Job]], _Member],
        waits: dict[_Member, Wait],
        changed: asyncio.Event,
        whole: Wait,
        seconds: float,
    ) -> tuple[_Member, list[Job]] | BaseException | None:
        """Return the first queue that has jobs, and these jobs. Without any, return an error, or None.

        Jobs that other queues, or removed ones, have claimed at the same moment are handed back.

        Args:
            tasks: the calls.
            waits: their waits, which are ended if the set changes.
            changed: set when the set changes.
            whole: the wait of the caller, who may end it.
            seconds: maximum time to wait if there are no calls.
        """

        def end(_: object) -> None:
            for task, member in tasks.items():
                if not waits[member].end() and not task.cancelling():
                    task.cancel()

        change: asyncio.Task[Any] = asyncio.create_task(changed.wait())
        change.add_done_callback(end)
        whole.on_end(change.cancel)
        pending: set[asyncio.Task[Any]] = {*tasks} or {change}
        served = None
        try:
            while served is None and pending:
                timeout = None if tasks else seconds
                done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found = [task for task in tasks if task in done and not task.cancelled() and not task.exception()]
                served = next((task for task in found if tasks[task] in self._members and task.result()), None)
        finally:
            for task in (*tasks, change):
                task.cancel()
            try:
                await to_the_end(self._hand_back(tasks, served))
            except asyncio.CancelledError:
                if served is not None:  # nobody receives its jobs
                    await to_the_end(self._hand_back({served: tasks[served]}, None))
                raise
        if served is not None:
            return tasks[served], served.result()
        return next((error for task in tasks if not task.cancelled() and (error := task.exception())), None)

    async def _hand_back(
        self, tasks: dict[asyncio.Task[list[Job]], _Member], served: asyncio.Task[list[Job]] | None
    ) -> None:
        """Wait for calls, and hand back the jobs that they have claimed, except for those of `served`."""
        for task, member in tasks.items():
            await asyncio.wait([task])
            if task is served or task.cancelled() or task.exception() or not (jobs := task.result()):
                continue
            try:
                await member.queue.nack_many(jobs, charge=not member.queue.capabilities.uncharged)
            except JQueueError as error:
                logger.warning("%s could not be handed back, and will time out: %s", counted(len(jobs), "job"), error)

    def _handed_out(self, member: _Member, jobs: list[Job]) -> list[Job]:
        """Note that jobs of a queue were handed out, and return them."""
        self._turn += 1
        member.served, member.failed_until = self._turn, 0.0
        for job in jobs:
            known = [pair for pair in self._owners.pop(job.id, ()) if pair[0] is not member.queue]
            self._owners[job.id] = [*known, (member.queue, job.evolve(payload=b""))]
        while len(self._owners) > IDS_KEPT:
            self._owners.popitem(last=False)
        return jobs

    # Claims

    def owners_of(self, reference: JobReference) -> list[JobQueue]:
        """Return the queues whose job or claim a reference may stand for: those that handed one out here.

        Raises:
            InvalidJobError: it is not a job, a claim or an id, or no queue of this set handed it out.
        """
        if not isinstance(reference, Job | Claim | str):
            raise InvalidJobError(f"pass a Job, its claim or its id, got {type(reference).__name__}")
        claim = reference.claim if isinstance(reference, Job) else reference
        pairs = self._owners.get(claim if isinstance(claim, str) else claim.job_id, [])

        def fit(job: Job) -> tuple[bool, bool]:
            is_equal = isinstance(reference, Job) and job == reference.evolve(payload=b"")
            return job.claim == claim, is_equal

        best = max((fit(job) for _, job in pairs), default=None)
        queues = [queue for queue, job in pairs if fit(job) == best]
        if not queues and len(self._members) == 1:
            return [self._members[0].queue]
        if not queues:
            raise InvalidJobError(f"this set did not hand out {shown(str(claim))}: call its own queue")
        return queues

    def _owner(self, *references: JobReference) -> JobQueue:
        """Return the one queue of jobs or claims.

        Raises:
            InvalidJobError: there is none, or more than one.
        """
        if not references:
            raise _one_queue_error("an operation that names no job")
        several = [self.owners_of(reference) for reference in references]
        if any(len(owners) > 1 for owners in several):
            raise InvalidJobError("this is the id of jobs in several queues of the set: pass the Job itself")
        if len({id(owners[0]) for owners in several}) > 1:
            raise InvalidJobError("these jobs are in several queues: call apply once for each queue")
        return several[0][0]

    async def ack(self, job_id: JobReference, **options: Any) -> None:
        await self._owner(job_id).ack(job_id, **options)

    async def nack(self, job_id: JobReference, **options: Any) -> None:
        await self._owner(job_id).nack(job_id, **options)

    async def heartbeat(self, job_id: JobReference, **options: Any) -> None:
        await self._owner(job_id).heartbeat(job_id, **options)

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        return errors_of(await self.apply_each(*(Ack(job) for job in jobs), deadline=deadline))

    async def nack_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None, **options: Any
    ) -> list[Exception]:
        return errors_of(await self.apply_each(*(Nack(job, **options) for job in jobs), deadline=deadline))

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        lots: dict[JobQueue, list[JobReference]] = {}
        for job in jobs:
            for queue in self.owners_of(job):  # if a claim is in two queues, both get the heartbeat
                lots.setdefault(queue, []).append(job)
        answers = await _from_each(queue.heartbeat_many(lot, deadline=deadline) for queue, lot in lots.items())
        return list(chain.from_iterable(answers))

    def claim_age(self, job_id: JobReference) -> float | None:
        """Seconds since the store last confirmed a claim handed out here; None if the queue of the job cannot tell."""
        age = getattr(self._owner(job_id), "claim_age", None)
        return None if age is None else age(job_id)

    def open_payload(self, job: Job) -> AsyncGenerator[bytes, None]:
        """Yield the payload of a job in pieces: see `SupportsLargeValues`."""
        return payload_of(self._owner(job), job)

    async def step_result(self, job: Job, step: Step, **options: Any) -> Any:
        """Return the result of a step: see `SupportsLargeValues`."""
        owner: Any = self._owner(job)
        return await owner.step_result(job, step, **options)

    # Several operations

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations in one commit of one queue, all or nothing.

        All jobs that the operations name must be in one queue. An operation that names none, such as an `Enqueue`, is
        done in the same queue.

        Raises:
            InvalidJobError: the jobs are in several queues, or no job is named.
            JQueueError: an operation was refused; none of them was done.
        """
        if not operations:
            return []
        owner = self._owner(*(reference for operation in operations for reference in _references(operation)))
        return await owner.apply(*operations, deadline=deadline)

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations, each in the queue of its job. A refused one does not affect the others.

        Returns:
            The result of each operation, in order, or the JQueueError that refused it.
        """
        results: list[Any] = [None] * len(operations)
        lots: dict[JobQueue, list[int]] = {}
        for place, operation in enumerate(operations):
            try:
                lots.setdefault(self._owner(*_references(operation)), []).append(place)
            except InvalidJobError as error:
                results[place] = error
        answers = await asyncio.gather(
            *(queue.apply_each(*(operations[at] for at in lot), deadline=deadline) for queue, lot in lots.items()),
            return_exceptions=True,
        )
        for lot, answer in zip(lots.values(), answers, strict=True):
            if isinstance(answer, BaseException) and (len(lots) == 1 or not isinstance(answer, JQueueError)):
                raise answer
            for number, place in enumerate(lot):
                results[place] = answer if isinstance(answer, BaseException) else answer[number]
        return results

    # Figures

    async def count(self, *, deadline: Duration | None = None) -> int:
        """Return the number of jobs that are queued, scheduled or in progress, in all queues."""
        stats = await self.stats(deadline=deadline)
        return stats.ready + stats.scheduled + stats.waiting + stats.in_progress

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        """Add up the figures of all queues. An entrypoint is paused if it is in each queue that has it."""
        found = await asyncio.gather(*(queue.stats(deadline=deadline) for queue in self.queues), return_exceptions=True)
        missing = [each for each in found if isinstance(each, QueueMissingError)]
        for each in found:
            if isinstance(each, BaseException) and (each not in missing or len(missing) == len(found)):
                raise each
        absent = QueueStats(warnings=tuple(map(str, missing)))
        return sum_of(QueueStats, [each for each in found if isinstance(each, QueueStats)] + [absent])

    # Verbs that concern one queue, which a set refuses

    enqueue: Any = _refusal_of("enqueue")
    enqueue_many: Any = _refusal_of("enqueue_many")
    result: Any = _refusal_of("result")
    cancel: Any = _refusal_of("cancel")
    reschedule: Any = _refusal_of("reschedule")
    reprioritise: Any = _refusal_of("reprioritise")
    redrive: Any = _refusal_of("redrive")
    purge: Any = _refusal_of("purge")
    requeue_stale: Any = _refusal_of("requeue_stale")
    pause: Any = _refusal_of("pause")
    resume: Any = _refusal_of("resume")
    limit: Any = _refusal_of("limit")
    configure: Any = _refusal_of("configure")
    schedule: Any = _refusal_of("schedule")
    unschedule: Any = _refusal_of("unschedule")
    schedules: Any = _refusal_of("schedules")
    read_state: Any = _refusal_of("read_state")
    stop_worker: Any = _refusal_of("stop_worker")

    def iterate_jobs(self, *statuses: Any, **which: Any) -> NoReturn:
        raise _one_queue_error("iterate_jobs")

    def group(self, *args: Any, **jobs: Any) -> NoReturn:
        raise _one_queue_error("group")

    # Workers

    def attend(self, run: str, describe: Describe, stop: Callable[[], object]) -> None:
        """Add a worker to each queue: see `SupportsWorkers`."""
        for queue in self.queues:
            if isinstance(queue, SupportsWorkers):
                queue.attend(run, describe, stop)

    def leave(self, run: str) -> None:
        """Remove a worker from each queue."""
        for queue in self.queues:
            if isinstance(queue, SupportsWorkers):
                queue.leave(run)

    async def remove_left(self, deadline: Duration) -> None:
        """Remove the records of workers that have left from each queue."""
        await _from_each(each.remove_left(deadline) for each in self.queues if isinstance(each, SupportsWorkers))

    # Opening and closing

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            for queue in self.queues:
                await self._open(queue)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the queues that the set has opened, each by its own deadline."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def _open(self, queue: Any) -> None:
        """Open a queue that must be opened and is not open."""
        if self._stack is None or not hasattr(queue, "__aenter__"):
            return
        try:
            await queue.dequeue(batch_size=0)
        except QueueClosedError:
            await self._stack.enter_async_context(queue)


async def _from_each(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Wait for calls to several queues, also if one fails, and return their answers. The first error is raised then."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def _one_queue_error(what: str) -> InvalidJobError:
    return InvalidJobError(f"{what} concerns one queue, not a set of queues: call it on one queue of the set")


def _references(operation: object) -> Sequence[JobReference]:
    """Return the jobs that an operation names.

    Raises:
        InvalidJobError: it is not an operation.
    """
    if not isinstance(operation, Operation):
        raise InvalidJobError(f"apply takes operations such as Ack(job), got {type(operation).__name__}")
    return operation.references()
