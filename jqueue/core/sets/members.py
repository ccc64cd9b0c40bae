"""The parts of a `QueueSet`: its queues with ways to look at them, and the owner of each claim."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime

from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, QueueMissingError, shown
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import JobReference
from jqueue.domain.selection import FirstItems, Phase, phase_of, turn_of
from jqueue.domain.stats import QueueStats
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue, SupportsPeek

IDS_KEPT = 100_000
"""Maximum number of ids that are remembered with their queues; the oldest are dropped first."""

EMPTY_REGISTRY = ClaimRegistry()
"""A registry without claims, to check references to jobs."""

Names = str | Sequence[str] | None


@dataclass(eq=False)
class Member:
    """A queue of a set.

    Attributes:
        queue: the queue.
        served: the last turn in which one of its jobs was handed out; among equals, the lowest comes first.
    """

    queue: JobQueue
    served: int = 0

    async def peek(self, names: Names, batch_size: int, clock: Clock, deadline: float) -> list[Job]:
        """Return the jobs that the queue would hand out next, in order: none if there is no queue yet."""
        with suppress(QueueMissingError):
            if isinstance(self.queue, SupportsPeek):
                return await self.queue.peek(names, batch_size=batch_size, deadline=deadline)
            now = clock.now()
            ready = FirstItems(batch_size, turn_of)
            async for job in self.queue.iterate_jobs(JobStatus.QUEUED, entrypoint=names, deadline=deadline):
                if phase_of(job, now) is Phase.READY:
                    ready.add(job)
            return ready.found()
        return []

    async def until_ready(self, names: Names, wait: float, pause: float, deadline: float) -> bool:
        """Wait until a job is ready that was not ready at the last look, or until it is time to look again."""
        if isinstance(self.queue, SupportsPeek):
            return await self.queue.until_ready(names, wait=wait, deadline=deadline)
        await asyncio.sleep(min(wait, pause))
        return wait > pause

    async def stats(self, deadline: Duration | None) -> QueueStats | QueueMissingError:
        """Return the statistics of the queue, or an error if there is no queue yet."""
        try:
            return await self.queue.stats(deadline=deadline)
        except QueueMissingError as error:
            return error

    async def find(self, job_id: str, deadline: float | None) -> Job | None:
        """Return the current state of a job in this queue; None if it is not there."""
        with suppress(QueueMissingError):
            if isinstance(self.queue, SupportsPeek):
                return await self.queue.find(job_id, deadline=deadline)
            async with aclosing(self.queue.iterate_jobs(id_prefix=job_id, deadline=deadline)) as found:
                async for job in found:
                    if job.id == job_id:
                        return job
        return None


@dataclass(slots=True)
class HandedOutClaim:
    """A claim that a set has handed out.

    Attributes:
        member: the queue of the job.
        job: as it was handed out, without its payload.
        at: time at which it was handed out, which is its new age if it is given back; None if it was given back with
        its place kept.
        held: True until it is ended through the set.
    """

    member: Member
    job: Job
    at: datetime | None
    held: bool = True


class ClaimOwners:
    """Remembers the queue of each claim. Ids, and even claims, may be the same in two queues."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, list[HandedOutClaim]] = OrderedDict()

    def remember(self, member: Member, jobs: Iterable[Job], now: datetime) -> None:
        """Note that jobs of a queue were handed out."""
        for job in jobs:
            others = [
                handed
                for handed in self._by_id.pop(job.id, [])
                if handed.held and (handed.member is not member or handed.job.attempt != job.attempt)
            ]
            self._by_id[job.id] = [*others, HandedOutClaim(member, job.evolve(payload=b""), now)]
        while len(self._by_id) > IDS_KEPT:
            self._by_id.popitem(last=False)

    def known(self, reference: JobReference) -> list[HandedOutClaim]:
        """Return the claims that a reference may stand for."""
        checked(reference)
        if isinstance(reference, str):
            return [handed for handed in self._by_id.get(reference, ()) if handed.held]
        claim = reference.claim if isinstance(reference, Job) else reference
        found = [handed for handed in self._by_id.get(claim.job_id, ()) if handed.job.attempt == claim.attempt]
        if len(found) > 1 and isinstance(reference, Job):
            return [handed for handed in found if _same(handed.job, reference)]
        return found

    def ended(self, member: Member, reference: JobReference, *, keeps_its_place: bool = False) -> None:
        """Note that a claim was ended or lost."""
        for handed in self.known(reference):
            if handed.member is member:
                handed.held = False
                if keeps_its_place:
                    handed.at = None

    def since(self, member: Member, job: Job) -> datetime:
        """Return the time from which a job counts its age. If it was given back, that is the time of its last turn."""
        age = job.created_at if job.run_at is None else max(job.created_at, job.run_at)
        ages = [handed.at for handed in self._by_id.get(job.id, ()) if handed.member is member and handed.at]
        return max([age, *ages])


def checked(reference: JobReference) -> JobReference:
    """Return a reference to a job if it is valid.

    Raises:
        InvalidJobError: it is not a job, a claim or an id.
    """
    EMPTY_REGISTRY.find(reference)
    return reference


def _same(known: Job, given: Job) -> bool:
    return (known.entrypoint, known.created_at, known.sequence) == (given.entrypoint, given.created_at, given.sequence)


def ambiguous(job_id: str) -> InvalidJobError:
    """Return the error for an id or a claim that stands for jobs of several queues."""
    return InvalidJobError(f"{shown(job_id)} is the id of jobs in several queues of the set: pass the Job itself")


def in_order(found: Mapping[Member, Sequence[Job]], owners: ClaimOwners, most: int) -> list[tuple[Member, Job]]:
    """Return the next jobs of several queues: by priority, then by age, then from the queue that has waited longest.

    Each queue's own order is kept.

    Args:
        found: the jobs of each queue, in its order.
        owners: knows the age of the jobs.
        most: maximum number of jobs.
    """
    places = {member: 0 for member, jobs in found.items() if jobs}
    served = {member: member.served for member in places}
    chosen: list[tuple[Member, Job]] = []
    while places and len(chosen) < most:
        turn = max(served.values()) + 1

        def rank(member: Member) -> tuple[int, datetime, int]:
            job = found[member][places[member]]
            return job.priority, owners.since(member, job), served[member]

        best = min(places, key=rank)
        chosen.append((best, found[best][places[best]]))
        served[best] = turn
        places[best] += 1
        if places[best] == len(found[best]):
            del places[best]
    return chosen
