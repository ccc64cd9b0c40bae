"""The actor that claims ranges: many jobs of a segment as one. It ends most of them, job by job, in one operation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jqueue.domain.errors import ClaimLostError, JobNotFoundError, SegmentDamagedError
from jqueue.domain.models import Claim
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from tests.simulation.actors import CLAIM_TIMEOUTS, LOST
from tests.simulation.chain import jobs_of_range
from tests.simulation.workload import DEADLINE, Actor

LEFT = 0.25
"""Share of the ranges whose claims become stale. Some are ended when another actor has claimed their rows again."""


class Ranger(Actor):
    """Claims a range, keeps its claim alive for some time, and ends it."""

    held: RangeClaim
    _places: dict[Claim, int]

    async def step(self) -> None:
        """Claim one range, and end it. If its claim becomes stale, claim its jobs again."""
        entrypoint = None
        for _ in range(3):
            jobs = await self._try(entrypoint or self.entrypoint())
            if not jobs:
                await asyncio.sleep(self.dice.choice([0.2, 1.0]))
                continue
            await self._end_left_ranges()
            if not await self._leaves(jobs):
                return
            entrypoint = self.held.held.entrypoint
            await asyncio.sleep(1.1 * self.held.held.claim_timeout)

    async def _try(self, entrypoint: str) -> list[Claim]:
        """Claim a range, and return its jobs; none if the next job is not in a segment, or the call failed."""
        dice, rows = self.dice, self.dice.choice([1, 2, 5, 50])
        tag = dice.choice(CLAIM_TIMEOUTS) + self.world.tag() / 10_000
        work = self._claim(entrypoint, rows, tag)
        jobs = await self.call("claim_range", work, entrypoint=entrypoint)
        return jobs if isinstance(jobs, list) else []

    async def _leaves(self, jobs: list[Claim]) -> bool:
        """Work on the jobs of the claimed range. Return True if the claim on them was left to become stale."""
        dice, tag = self.dice, self.held.held.claim_timeout
        held, jobs, unread = await self._readable(jobs)
        claims = (*jobs, *unread)
        self.world.claimed += [job.job_id for job in jobs]
        for _ in range(dice.choice([0, 0, 1, 3])):
            await asyncio.sleep(dice.choice([0.1, 0.5, 1.5]) * tag / 3)
            await self.call("beat_range", self.queue.heartbeat_many([held.claim]), claims=claims)
        first = dice.randrange(1, len(jobs)) if len(jobs) > 1 and dice.random() < 0.4 else 0
        if first:
            until = self._places[jobs[first - 1]]
            among = [job for job in unread if self._places[job] < until]
            unread = [job for job in unread if job not in among]
            if not await self._end(held, jobs[:first], first, unread=among):
                return False  # perhaps it was not done: an end of the range would end these jobs otherwise
            await asyncio.sleep(dice.choice([0.0, 0.5, 1.5]) * tag / 3)
            rest = (*jobs[first:], *unread)
            await self.call("beat_range", self.queue.heartbeat_many([held.claim]), claims=rest)
        if dice.random() > LEFT:
            await self._end(held, jobs[first:], unread=unread)
            return False
        self.world.left_ranges.append((held, jobs[first:], unread))
        return True

    async def _end_left_ranges(self) -> None:
        """End the stale claims on rows that this actor has just claimed, as a holder does that comes back too late."""
        claimed, left = self.held.held, self.world.left_ranges
        for each in [each for each in left if self.held.segment == each[0].segment and claimed.has(each[0].held.first)]:
            left.remove(each)
            claim, jobs, unread = each
            await self._end(claim, jobs, unread=unread)

    async def _claim(self, entrypoint: str, rows: int, tag: float) -> list[Claim]:
        found = await self.queue.claim_range(entrypoint, rows, claim_timeout=tag)
        if found is None:
            return []
        self.held = found
        return [Claim(*each) for each in jobs_of_range(found.held.model_dump(), self.world.network.created)]

    async def _readable(self, jobs: list[Claim]) -> tuple[RangeClaim, list[Claim], list[Claim]]:
        """Read the jobs of the claimed range, if its segment was ever damaged.

        Returns:
            The claim on the jobs that can be read, these jobs, and the others.
        """
        self._places = {job: place for place, job in enumerate(jobs)}
        damage = self.world.damage
        if damage is None or self.held.segment not in damage.names:
            return self.held, jobs, []
        found = await self.call("read_range", self._read(), limit=10 * DEADLINE)
        if not isinstance(found, set):
            return self.held, jobs, []
        return self.held, [job for job in jobs if job.job_id in found], [job for job in jobs if job.job_id not in found]

    async def _read(self) -> set[str]:
        """Return the ids of the jobs of the claimed range that can be read. From now on, the claim is on these."""
        found: set[str] = set()
        try:
            async for rows in self.queue.read_packed_range(self.held):
                found |= {job_id for job_id, _ in rows}
        except SegmentDamagedError as error:
            self.held = self.held.without(error.rows)
        return found

    async def _end(
        self, held: RangeClaim, jobs: list[Claim], first: int | None = None, unread: Sequence[Claim] = ()
    ) -> bool:
        """End the claim: most jobs are done, some have failed, some are given back, and some are kept for a moment.

        Args:
            held: the claim.
            jobs: the ended jobs.
            first: their number, if others are left in the range.
            unread: the jobs beside them that could not be read: they are given back.

        Returns:
            True if the queue has answered.
        """
        dice, tag = self.dice, f"nack {self.world.tag()}"
        charge = dice.random() < 0.7
        failure = RangeFailure(tag, dice.choice([None, None, 3.0]), charge and dice.random() < 0.3, charge)
        chosen = [self.pick((70, "done"), (18, "failed"), (8, "returned"), (4, "kept")) for _ in jobs]
        nothing = dice.random() < 0.15
        ends = {job: "returned" if nothing and end == "done" else end for job, end in zip(jobs, chosen, strict=True)}
        failed = {job.job_id: failure for job, end in ends.items() if end == "failed"}
        back = tuple(job.job_id for job, end in ends.items() if end == "returned")
        kept = [job for job, end in ends.items() if end == "kept"]
        ended = tuple(job for job in [*jobs, *unread] if job not in kept)
        details: dict[str, Any] = {"claims": ended, "operations": len(jobs)}
        answered = False
        for _ in range(dice.choice([1, 2] if first else [1, 1, 1, 2])):  # repeating it changes nothing
            work = self.queue.end_range(
                held,
                failed=failed,
                returned=() if nothing else back,
                kept=[job.job_id for job in kept],
                nothing_done=nothing,
                jobs=first,
            )
            error = await self.call("end_range", work, expected=(ClaimLostError, JobNotFoundError), **details)
            answered = answered or not isinstance(error, Exception)
        for job in kept if answered else ():
            await self.call("ack", self.queue.ack(job), claims=(job,), expected=LOST)
        return answered
