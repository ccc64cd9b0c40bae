"""The verbs of a queue set: each call goes to the queue of its job."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from jqueue.core.calls.claim_registry import HeldClaim
from jqueue.core.queue_base import errors_of
from jqueue.core.queue_options import QueueOptions
from jqueue.core.sets.members import ClaimOwners, Member, ambiguous, checked
from jqueue.core.sets.merged import common, merged_state, merged_stats
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError, JQueueError, QueueMissingError
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.operations import Ack, Heartbeat, JobReference, Nack, Operation, Redriven
from jqueue.domain.stats import QueueStats
from jqueue.ports.queue import Capabilities, JobQueue, Operator, Producer

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def of_one_queue(
    verb: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[SetVerbs, Parameters], Coroutine[Any, Any, Result]]:
    """Return a set's method for a verb that concerns one queue as a whole. It takes the same arguments, and refuses."""

    @functools.wraps(verb)
    async def refuse(self: SetVerbs, /, *given: Parameters.args, **options: Parameters.kwargs) -> Result:
        raise _one_queue_error(verb.__name__)

    return refuse


class SetVerbs(JobQueue):
    """The verbs of a queue set, except `dequeue`.

    Args:
        options: see `QueueOptions`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = QueueOptions(**options)
        self.options.check()
        self._members: list[Member] = []
        self._claim_owners = ClaimOwners()

    @property
    def capabilities(self) -> Capabilities:
        """The common capabilities of all queues. A call about one job only needs those of that job's own queue."""
        return common(member.queue.capabilities for member in self._members)

    def _seconds(self, deadline: Duration | None) -> float:
        return to_seconds("deadline", self.options.deadline if deadline is None else deadline)

    def _no_claim(self, reference: object) -> NoReturn:
        raise InvalidJobError("a dequeue names no claim")

    # Verbs for one queue

    enqueue = of_one_queue(Producer.enqueue)
    enqueue_many = of_one_queue(Producer.enqueue_many)
    pause = of_one_queue(Operator.pause)
    resume = of_one_queue(Operator.resume)
    limit = of_one_queue(Operator.limit)
    configure = of_one_queue(Operator.configure)
    schedule = of_one_queue(Operator.schedule)
    unschedule = of_one_queue(Operator.unschedule)
    schedules = of_one_queue(Operator.schedules)

    # Claims

    async def ack(self, job_id: JobReference, *, result: Any = None, deadline: Duration | None = None) -> None:
        await self._one(Ack(job_id), lambda member: member.queue.ack(job_id, result=result, deadline=deadline))

    async def nack(
        self,
        job_id: JobReference,
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        charge: bool = True,
        deadline: Duration | None = None,
    ) -> None:
        said: dict[str, Any] = {"delay": delay, "error": error, "dead": dead, "charge": charge, "deadline": deadline}
        await self._one(Nack(job_id, charge=charge), lambda member: member.queue.nack(job_id, **said))

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        await self._one(Heartbeat((job_id,)), lambda member: member.queue.heartbeat(job_id, deadline=deadline))

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        return errors_of(await self.apply_each(*[Ack(checked(job)) for job in jobs], deadline=deadline))

    async def nack_many(
        self,
        jobs: Iterable[JobReference],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        charge: bool = True,
        deadline: Duration | None = None,
    ) -> list[Exception]:
        operations = [Nack(checked(job), delay, error, dead, charge) for job in jobs]
        return errors_of(await self.apply_each(*operations, deadline=deadline))

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        lots: dict[Member, list[JobReference]] = {}
        errors: list[JobNotFoundError] = []
        for job in [checked(job) for job in jobs]:
            owners = list(dict.fromkeys(handed.member for handed in self._claim_owners.known(job)))
            try:
                for owner in owners or [
                    await self._owner(job, deadline)
                ]:  # if a claim is in two queues, both get the heartbeat
                    lots.setdefault(owner, []).append(job)
            except JobNotFoundError as error:
                errors.append(error)
        calls = [member.queue.heartbeat_many(lot, deadline=deadline) for member, lot in lots.items()]
        results = await asyncio.gather(*calls, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
        for lost in results:
            assert not isinstance(lost, BaseException)
            errors += lost
        return errors

    def held_claim(self, job_id: JobReference) -> HeldClaim | None:
        """Return the record of a claim in its queue; None if it was not handed out here."""
        known = self._claim_owners.known(job_id)
        remembered = getattr(known[0].member.queue, "held_claim", None) if len(known) == 1 else None
        return None if remembered is None else remembered(job_id)

    def claim_age(self, job_id: JobReference) -> float | None:
        """Seconds since the store last confirmed a claim handed out here; None for an unknown claim."""
        known = self._claim_owners.known(job_id)
        age = getattr(known[0].member.queue, "claim_age", None) if len(known) == 1 else None
        return None if age is None else age(job_id)

    # Several operations

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations in one commit of one queue, all or nothing.

        All jobs that the operations name must be in one queue. An operation that names none, such as an `Enqueue`, is
        done in the same queue.

        Raises:
            InvalidJobError: the jobs are in several queues, or no job is named.
            JQueueError: an operation was refused; none of them was done.
        """
        named = [reference for operation in operations for reference in _references(operation)]
        owners = list(dict.fromkeys([await self._owner(reference, deadline) for reference in named]))
        if not operations:
            return []
        if not owners:
            raise _one_queue_error("an apply that names no job")
        if len(owners) > 1:
            raise InvalidJobError(
                "these jobs are in several queues, and a commit is for one queue: call apply once for each queue"
            )
        results = await owners[0].queue.apply(*operations, deadline=deadline)
        for operation in operations:
            self._note(owners[0], operation)
        return results

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations, each in the queue of its job. A refused one does not affect the others.

        Returns:
            The result of each operation, in order, or the JQueueError that refused it.
        """
        results: list[Any] = [None] * len(operations)
        lots: dict[Member, list[int]] = {}
        for place, operation in enumerate(operations):
            try:
                owners = dict.fromkeys([await self._owner(job, deadline) for job in _references(operation)])
                if len(owners) != 1:
                    raise _one_queue_error("an operation that names no job, or jobs of several queues,")
                lots.setdefault(next(iter(owners)), []).append(place)
            except JQueueError as error:
                results[place] = error
        calls = [
            member.queue.apply_each(*(operations[place] for place in places), deadline=deadline)
            for member, places in lots.items()
        ]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for (member, places), answer in zip(lots.items(), answers, strict=True):
            if isinstance(answer, BaseException) and (len(lots) == 1 or not isinstance(answer, JQueueError)):
                raise answer
            for number, place in enumerate(places):
                results[place] = answer if isinstance(answer, BaseException) else answer[number]
                if not isinstance(results[place], BaseException) or isinstance(results[place], ClaimLostError):
                    self._note(member, operations[place])
        return results

    def _note(self, member: Member, operation: Operation) -> None:
        """Note that an operation was carried out."""
        if operation.ends_claims:
            for reference in operation.references():
                self._claim_owners.ended(member, reference, keeps_its_place=operation.keeps_place)

    async def _one(self, operation: Operation, call: Callable[[Member], Any]) -> None:
        [reference] = operation.references()
        member = await self._owner(reference, None)
        try:
            await call(member)
        except ClaimLostError:
            self._note(member, operation)
            raise
        self._note(member, operation)

    # The queue of a job

    async def _owner(self, reference: JobReference, deadline: Duration | None) -> Member:
        """Return the queue of a job or a claim.

        Raises:
            InvalidJobError: it may be in several queues.
            JobNotFoundError: it is in none of them; ClaimLostError for a claim.
        """
        known = list(dict.fromkeys(handed.member for handed in self._claim_owners.known(reference)))
        job_id = reference if isinstance(reference, str) else Claim(*_claim(reference)).job_id
        if len(known) > 1:
            raise ambiguous(job_id)
        if known:
            return known[0]
        if len(self._members) == 1:
            return self._members[0]
        seconds = self._seconds(deadline)
        there = await self._find_in_all(job_id, seconds)
        if not isinstance(reference, str):
            there = _with_claim(_claim(reference).attempt, there)
        if len(there) > 1:
            raise ambiguous(job_id)
        if there:
            return there[0][0]
        if isinstance(reference, str):
            raise JobNotFoundError(job_id)
        raise ClaimLostError(*_claim(reference), "no queue of the set has this claim")

    # Operators

    async def cancel(self, job_id: str, *, running: bool = False, deadline: Duration | None = None) -> Job:
        return await (await self._member_with(job_id)).queue.cancel(job_id, running=running, deadline=deadline)

    async def reschedule(self, job_id: str, *, deadline: Duration | None = None, **when: Any) -> Job:
        return await (await self._member_with(job_id)).queue.reschedule(job_id, deadline=deadline, **when)

    async def reprioritise(self, job_id: str, priority: int, *, deadline: Duration | None = None) -> Job:
        return await (await self._member_with(job_id)).queue.reprioritise(job_id, priority, deadline=deadline)

    async def result(
        self, job_id: Job | str, *, timeout: Duration | None = None, deadline: Duration | None = None
    ) -> Any:
        member = await self._member_with(job_id.id if isinstance(job_id, Job) else job_id)
        return await member.queue.result(job_id, timeout=timeout, deadline=deadline)

    async def redrive(
        self, job_id: str | None = None, *, entrypoint: str | None = None, deadline: Duration | None = None
    ) -> Redriven:
        """Queue dead jobs again, each in its own queue, and return their number."""
        if job_id is not None:
            return await (await self._member_with(job_id)).queue.redrive(
                job_id, entrypoint=entrypoint, deadline=deadline
            )
        all_done = await self._of_all(lambda member: member.queue.redrive(entrypoint=entrypoint, deadline=deadline))
        return Redriven(sum(all_done), {job_id: holder for done in all_done for job_id, holder in done.left.items()})

    async def purge(self, *, deadline: Duration | None = None, **which: Any) -> int:
        return sum(await self._of_all(lambda member: member.queue.purge(deadline=deadline, **which)))

    async def requeue_stale(self, timeout: Duration, *, deadline: Duration | None = None) -> int:
        return sum(await self._of_all(lambda member: member.queue.requeue_stale(timeout, deadline=deadline)))

    async def _member_with(self, job_id: str) -> Member:
        """Return the queue of a job, which need not be claimed here."""
        if len(self._members) == 1:
            return self._members[0]
        there = await self._find_in_all(job_id, None)
        live = [member for member, job in there if job.status is not JobStatus.COMPLETED]
        owners = live or [member for member, _ in there]
        if len(owners) > 1:
            raise ambiguous(job_id)
        if not owners:
            raise JobNotFoundError(job_id)
        return owners[0]

    async def _find_in_all(self, job_id: str, seconds: float | None) -> list[tuple[Member, Job]]:
        """Return the queues that have a job of this id, each with the job.

        Queues may be added and removed meanwhile.
        """
        members = tuple(self._members)
        found = await asyncio.gather(*(member.find(job_id, seconds) for member in members))
        return [(member, job) for member, job in zip(members, found, strict=True) if job is not None]

    async def _of_all(self, call: Callable[[Member], Any]) -> list[Any]:
        return await asyncio.gather(*(call(member) for member in self._members))

    # Looking

    async def find(self, job_id: str, *, deadline: Duration | None = None) -> Job | None:
        """Return the current state of a job, without its payload; None if it is in none of the queues."""
        there = await self._find_in_all(job_id, self._seconds(deadline))
        if len(there) > 1:
            raise ambiguous(job_id)
        return there[0][1] if there else None

    async def count(self, *, deadline: Duration | None = None) -> int:
        """Return the number of jobs that are queued, scheduled or in progress, in all queues."""
        stats = await self.stats(deadline=deadline)
        return stats.ready + stats.scheduled + stats.in_progress

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        found: list[QueueStats | QueueMissingError] = await self._of_all(lambda member: member.stats(deadline))
        missing = [each for each in found if isinstance(each, QueueMissingError)]
        if missing and len(missing) == len(found):
            raise missing[0]
        return merged_stats(
            [each if isinstance(each, QueueStats) else QueueStats(warnings=(str(each),)) for each in found]
        )

    def iterate_jobs(
        self,
        *statuses: JobStatus,
        entrypoint: str | Sequence[str] | None = None,
        id_prefix: str = "",
        deadline: Duration | None = None,
    ) -> AsyncGenerator[Job, None]:
        which = {"entrypoint": entrypoint, "id_prefix": id_prefix, "deadline": deadline}
        return _chained([member.queue.iterate_jobs(*statuses, **which) for member in self._members])  # type: ignore[arg-type]

    async def read_state(self, *, deadline: Duration | None = None) -> QueueState:
        return merged_state(await self._of_all(lambda member: member.queue.read_state(deadline=deadline)))


async def _chained(several: Sequence[AsyncGenerator[Job, None]]) -> AsyncGenerator[Job, None]:
    """Yield the jobs of several queues, one queue after another. A queue that does not exist yet has none.

    Raises:
        QueueMissingError: none of the queues exists.
    """
    missing: list[QueueMissingError] = []
    for one in several:
        try:
            async with aclosing(one) as jobs:
                async for job in jobs:
                    yield job
        except QueueMissingError as error:
            missing.append(error)
    if missing and len(missing) == len(several):
        raise missing[0]


def _one_queue_error(what: str) -> InvalidJobError:
    return InvalidJobError(
        "a set of queues has no jobs, limits, retention, schedules, history or size_limit of its own: "
        f"{what} concerns one queue as a whole, so call it on one queue of the set"
    )


def _claim(reference: Job | Claim) -> Claim:
    return reference.claim if isinstance(reference, Job) else reference


def _with_claim(attempt: int, there: Iterable[tuple[Member, Job]]) -> list[tuple[Member, Job]]:
    """Return the queues in which a claim is current; if there are none, the queues in which it finished the job."""
    same = [(member, job) for member, job in there if job.attempt == attempt]
    current = [(member, job) for member, job in same if job.status is JobStatus.IN_PROGRESS]
    return current or [(member, job) for member, job in same if job.status is JobStatus.COMPLETED]


def _references(operation: object) -> Sequence[JobReference]:
    """Return the jobs that an operation names.

    Raises:
        InvalidJobError: it is not an operation.
    """
    if not isinstance(operation, Operation):
        raise InvalidJobError(f"apply takes operations such as Ack(job), got {type(operation).__name__}")
    return operation.references()
