"""The actor of jobs after jobs: it adds children to jobs that others have made, and families in one commit."""

from __future__ import annotations

from typing import Any

from jqueue.domain.errors import InvalidJobError, SegmentDamagedError
from jqueue.domain.operations.enqueue import Enqueue
from tests.simulation.workload import Actor


class Parent(Actor):
    """Adds jobs that wait for others, of random shapes."""

    async def step(self) -> None:
        """Add a family in one commit, or a child of jobs that are there, or not."""
        await self.pick((2, self._add_family), (3, self._add_child))()

    def _job(self, suffix: str, parents: list[str], most: int) -> dict[str, Any]:
        job_id = f"{self.moment}{suffix}"
        chosen = self.dice.sample(parents, min(len(parents), self.dice.randint(0, most)))
        details: dict[str, Any] = {"job_id": job_id, "max_attempts": self.dice.choice([None, None, 1])}
        if chosen:
            details |= {"after": tuple(chosen), "on_dead": self.dice.choice([None, "cancel", "run"])}
        if self.dice.random() < 0.15:
            details["delay"] = 5.0
        if self.dice.random() < 0.3:
            details["keep_result"] = self.dice.choice([1.0, 20.0])
        return details

    def _made(self, *ids: str) -> None:
        self.world.made += ids
        self.world.parents += ids

    async def _add_family(self) -> None:
        """Add a chain, a diamond, or anything between."""
        jobs: list[dict[str, Any]] = []
        for number in range(self.dice.randint(2, 6)):
            jobs.append(self._job(f"-{number}", [job["job_id"] for job in jobs], 3))
        ids = tuple(job["job_id"] for job in jobs)
        work = self.queue.enqueue_many([Enqueue(self.entrypoint(), b"", **job) for job in jobs])
        if not isinstance(await self.call("enqueue_many", work, job_ids=ids, operations=len(ids)), Exception):
            self._made(*ids)

    async def _add_child(self) -> None:
        """Add a child of some of the last jobs, some of which may be unknown by now."""
        details = self._job("", self.world.parents[-12:], 4)
        if self.dice.random() < 0.05:
            details["after"] = ("nobody",)
        work = self.queue.enqueue(self.entrypoint(), b"", **details)
        expected = (InvalidJobError, SegmentDamagedError)
        added = await self.call("enqueue", work, job_ids=(details["job_id"],), given=details, expected=expected)
        if not isinstance(added, Exception):
            self._made(details["job_id"])
