"""The verbs of `SupportsLargeValues` for a queue set: each call goes to the queue of its job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from jqueue.core.sets.members import Member
from jqueue.core.sets.verbs import SetVerbs
from jqueue.core.verbs.large_values import payload_of
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.ports.queue import SupportsLargeValues


class SetLargeValueVerbs(SetVerbs, SupportsLargeValues):
    """The verbs of `SupportsLargeValues` for a queue set."""

    async def open_payload(self, job: Job) -> AsyncGenerator[bytes, None]:
        if not isinstance(job, Job):
            raise InvalidJobError(f"open_payload takes a Job from dequeue, got {type(job).__name__}")
        member = await self._member_of(job)
        async with aclosing(payload_of(member.queue, job)) as pieces:
            async for piece in pieces:
                yield piece

    async def payload_url(self, job: Job | str, lifetime: Duration, *, deadline: Duration | None = None) -> str:
        return await _supporting(await self._member_of(job)).payload_url(job, lifetime, deadline=deadline)

    async def result_url(self, job: Job | str, lifetime: Duration, *, deadline: Duration | None = None) -> str:
        return await _supporting(await self._member_of(job)).result_url(job, lifetime, deadline=deadline)

    async def collect(self, *, deadline: Duration | None = None) -> int:
        """Remove the objects that no job names, beside each queue of the set that keeps objects."""
        able = [member.queue for member in self._members if member.queue.capabilities.objects]
        until = None if deadline is None else asyncio.get_running_loop().time() + to_seconds("deadline", deadline)
        removed = 0
        for queue in able:
            if isinstance(queue, SupportsLargeValues):
                left = None if until is None else max(0.0, until - asyncio.get_running_loop().time())
                removed += await queue.collect(deadline=left)
        return removed

    async def _member_of(self, job: Job | str) -> Member:
        known = list(dict.fromkeys(handed.member for handed in self._claim_owners.known(job)))
        return known[0] if len(known) == 1 else await self._member_with(job.id if isinstance(job, Job) else job)


def _supporting(member: Member) -> SupportsLargeValues:
    if not isinstance(member.queue, SupportsLargeValues):
        raise InvalidJobError("the queue of this job has no objects, and so no URLs for payloads and results")
    return member.queue
