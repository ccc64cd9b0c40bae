"""The actor that claims ranges: many jobs of a segment as one. It ends most of them, job by job, in one operation."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict

from jqueue.domain.errors import ClaimLostError, JobNotFoundError, SegmentDamagedError
from jqueue.domain.job import Claim
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.segments import RangeClaim, RangeFailure
from tests.simulation.actors import CLAIM_TIMEOUTS
from tests.simulation.chain import jobs_of_range
from tests.simulation.workload import DEADLINE, Actor

LEFT = 0.25
"""Share of the ranges whose claims become stale. Some are ended when another actor has claimed their rows again."""


class Ranger(Actor):
    """Claims a range, keeps its claim alive for some time, and ends it."""

    held: RangeClaim

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
        dice, tag, held = self.dice, self.held.held.claim_timeout, self.held
        if not await self._is_readable():
            await self.call("end_range", self.queue.end_range(held, worked_on=0), claims=(), expected=(ClaimLostError,))
            return False
        self.world.claimed += [job.job_id for job in jobs]
        for _ in range(dice.choice([0, 0, 1, 3])):
            await asyncio.sleep(dice.choice([0.1, 0.5, 1.5]) * tag / 3)
            await self.call("beat_range", self.queue.heartbeat_many([held.claim]), claims=tuple(jobs))
        if dice.random() > LEFT:
            await self._end(held, jobs)
            return False
        self.world.left_ranges.append((held, jobs))
        return True

    async def _end_left_ranges(self) -> None:
        """End the stale claims on rows that this actor has just claimed, as a holder does that comes back too late."""
        claimed, left = self.held.held, self.world.left_ranges
        for each in [each for each in left if self.held.segment == each[0].segment and claimed.has(each[0].held.first)]:
            left.remove(each)
            await self._end(*each)

    async def _claim(self, entrypoint: str, rows: int, tag: float) -> list[Claim]:
        found = await self.queue.claim_range(entrypoint, rows, claim_timeout=tag)
        if found is None:
            return []
        self.held = found
        return [Claim(*each) for each in jobs_of_range(asdict(found.held), self.world.network.created)]

    async def _is_readable(self) -> bool:
        """Read the jobs of the claimed range, if its segment was ever damaged. Return False if they cannot be read."""
        damage = self.world.damage
        if damage is None or self.held.segment not in damage.names:
            return True
        return await self.call("read_range", self._read(), limit=10 * DEADLINE) is not False

    async def _read(self) -> bool:
        try:
            async for _ in self.queue.read_packed_range(self.held):
                pass
        except SegmentDamagedError:
            return False
        return True

    async def _end(self, held: RangeClaim, jobs: list[Claim]) -> None:
        """End the claim: most jobs are done, some have failed, some have a result, and nobody worked on the last."""
        dice, tag = self.dice, f"nack {self.world.tag()}"
        charge = dice.random() < 0.7
        failure = RangeFailure(tag, dice.choice([None, None, 3.0]), charge and dice.random() < 0.3, charge)
        worked_on = dice.choice([0, dice.randrange(len(jobs) + 1)]) if jobs and dice.random() < 0.3 else None
        ends = {job.job_id: self.pick((75, "done"), (20, "failed"), (5, "result")) for job in jobs[:worked_on]}
        failed = {job_id: failure for job_id, end in ends.items() if end == "failed"}
        results = {job_id: (tag, 5.0) for job_id, end in ends.items() if end == "result"}
        details: dict[str, Any] = {"claims": tuple(jobs), "operations": len(jobs)}
        for _ in range(dice.choice([1, 1, 1, 2])):  # repeating it changes nothing
            work = self.one(EndRange(held, failed, results=results, worked_on=worked_on))
            await self.call("end_range", work, expected=(ClaimLostError, JobNotFoundError), **details)
