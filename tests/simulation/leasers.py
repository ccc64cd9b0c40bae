"""The actor that claims leases: many jobs of a segment as one. It ends most of them, job by job, in one operation."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict

from jqueue.domain.errors import ClaimLostError, JobNotFoundError, SegmentDamagedError
from jqueue.domain.job import Claim
from jqueue.domain.operations.leases import EndLease
from jqueue.domain.segments import JobFailure, Lease, common
from tests.simulation.actors import CLAIM_TIMEOUTS
from tests.simulation.chain import jobs_of_lease
from tests.simulation.workload import DEADLINE, Actor

LEFT = 0.25
"""Share of the leases that become stale. Some are ended when another actor has claimed their rows again."""


class Leaser(Actor):
    """Leases rows, keeps the lease alive for some time, and ends it."""

    held: Lease

    async def step(self) -> None:
        """Lease rows, and end the lease. If it becomes stale, lease its rows again."""
        entrypoint = None
        for _ in range(3):
            jobs = await self._try(entrypoint or self.entrypoint())
            if not jobs:
                await asyncio.sleep(self.dice.choice([0.2, 1.0]))
                continue
            await self._end_left_leases()
            if not await self._leaves(jobs):
                return
            entrypoint = self.held.entrypoint
            await asyncio.sleep(1.1 * self.held.claim_timeout)

    async def _try(self, entrypoint: str) -> list[Claim]:
        """Lease rows, and return their jobs; none if the next job is not in a segment, or the call failed."""
        dice, rows = self.dice, self.dice.choice([1, 2, 5, 50])
        tag = dice.choice(CLAIM_TIMEOUTS) + self.world.tag() / 10_000
        work = self._claim(entrypoint, rows, tag)
        jobs = await self.call("claim_lease", work, entrypoint=entrypoint)
        return jobs if isinstance(jobs, list) else []

    async def _leaves(self, jobs: list[Claim]) -> bool:
        """Work on the jobs of the lease. Return True if it was left to become stale."""
        dice, tag, held = self.dice, self.held.claim_timeout, self.held
        if not await self._is_readable():
            await self.call("end_lease", self.queue.end_lease(held, worked_on=0), claims=(), expected=(ClaimLostError,))
            return False
        self.world.claimed += [job.job_id for job in jobs]
        for _ in range(dice.choice([0, 0, 1, 3])):
            await asyncio.sleep(dice.choice([0.1, 0.5, 1.5]) * tag / 3)
            await self.call("beat_lease", self.queue.heartbeat_many([held.claim]), claims=tuple(jobs))
        if dice.random() > LEFT:
            await self._end(held, jobs)
            return False
        self.world.left_leases.append((held, jobs))
        return True

    async def _end_left_leases(self) -> None:
        """End the stale leases of rows that this actor has just claimed, as a holder does that comes back too late."""
        claimed, left = self.held, self.world.left_leases
        for each in [each for each in left if claimed.segment == each[0].segment and _meet(claimed, each[0])]:
            left.remove(each)
            await self._end(*each)

    async def _claim(self, entrypoint: str, rows: int, tag: float) -> list[Claim]:
        found = await self.queue.claim_lease(entrypoint, rows, claim_timeout=tag)
        if found is None:
            return []
        self.held = found
        return [Claim(*each) for each in jobs_of_lease(found.id, asdict(found.entry), self.world.network.created)]

    async def _is_readable(self) -> bool:
        """Read the jobs of the lease, if its segment was ever damaged. Return False if they cannot be read."""
        damage = self.world.damage
        if damage is None or self.held.segment not in damage.names:
            return True
        return await self.call("read_lease", self._read(), limit=10 * DEADLINE) is not False

    async def _read(self) -> bool:
        try:
            async for _ in self.queue.read_packed_lease(self.held):
                pass
        except SegmentDamagedError:
            return False
        return True

    async def _end(self, held: Lease, jobs: list[Claim]) -> None:
        """End the lease: most jobs are done, some have failed, some have a result, and nobody worked on the last."""
        dice, tag = self.dice, f"nack {self.world.tag()}"
        charge = dice.random() < 0.7
        failure = JobFailure(tag, dice.choice([None, None, 3.0]), charge and dice.random() < 0.3, charge)
        worked_on = dice.choice([0, dice.randrange(len(jobs) + 1)]) if jobs and dice.random() < 0.3 else None
        ends = {job.job_id: self.pick((75, "done"), (20, "failed"), (5, "result")) for job in jobs[:worked_on]}
        failed = {job_id: failure for job_id, end in ends.items() if end == "failed"}
        results = {job_id: (tag, dice.choice([5.0, None])) for job_id, end in ends.items() if end == "result"}
        withheld = dice.random() < 0.5
        details: dict[str, Any] = {"claims": tuple(jobs), "operations": len(jobs)}
        for _ in range(dice.choice([1, 1, 1, 2])):  # repeating it changes nothing
            work = self.one(EndLease(held, failed, results=results, worked_on=worked_on, withheld=withheld))
            await self.call("end_lease", work, expected=(ClaimLostError, JobNotFoundError), **details)


def _meet(one: Lease, other: Lease) -> bool:
    """True if two leases of a segment have rows in common."""
    return bool(common(one.entry.spans, other.entry.spans))
