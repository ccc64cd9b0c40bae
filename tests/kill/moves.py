"""Moves between queues that are killed, killed again elsewhere, and finished by the last child.

After each kill both queues are audited, and their workers claim all ready jobs and hand them back. No job may be lost,
or twice in a queue.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from jqueue import migrate
from tests.kill.kills import Kills
from tests.kill.tracing import ViolationError
from tests.moved_jobs import audit, drained, jobs_of, open_at

JOBS = 5
MOVES = {"file to vsqs": ("file", "vsqs"), "dirq-simple to file": ("dirq-simple", "file")}
NAMES = ("source", "dest")


class MoveKills(Kills):
    """The kills in one move."""

    _number = 0

    def begin(self) -> None:
        self._number += 1
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        """Enqueue jobs into the source, one of them dead."""
        source, _ = self._queues()
        for number in range(JOBS):
            await source.enqueue("work", b"%d" % number)
        await source.enqueue("failing", b"dead")
        [job] = await source.dequeue("failing")
        await source.nack(job, error="no", dead=True)
        self._ids = [job.id for job in await jobs_of(source)]

    def _queues(self) -> list[Any]:
        folder = self.folder / f"{self._number}"
        folder.mkdir(exist_ok=True)
        return [open_at(folder, kind, name) for kind, name in zip(MOVES[self.name], NAMES, strict=True)]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        source, dest = self._queues()

        async def move() -> None:
            await source.requeue_stale(0)  # the claims of the child before
            while (report := await migrate(source, dest)).left.in_progress and self.name.startswith("dirq"):
                # A lock whose owner was killed before it wrote its note ends only by age, while a consumer watches it.
                assert [] == await source.dequeue("nobody's")
                await asyncio.sleep(0.1)
            assert report.complete, report

        yield move

    def check(self, answered: bool) -> None:
        asyncio.run(self._check_queues())
        while self.trace(random.choice(self.points))[0].killed:
            self.counts["kills"] += 1
            asyncio.run(self._check_queues())
        trace, _ = self.trace(None)
        if trace.code != 0:
            raise ViolationError(f"the last move ended with {trace.code}")
        asyncio.run(self._check_end())

    async def _check_queues(self) -> None:
        """Check that no job is lost or twice in a queue."""
        source, dest = self._queues()
        await audit(source, dest, self._ids)
        for queue in (source, dest):
            jobs = await queue.dequeue(batch_size=99)
            assert [] == await queue.nack_many(jobs, charge=False)

    async def _check_end(self) -> None:
        """Check that all jobs are in the destination."""
        source, dest = self._queues()
        assert [] == await jobs_of(source)
        await audit(source, dest, self._ids)
        payloads = sorted(await drained(dest, "work"))  # jobs whose claim was revoked come later
        assert [b"%d" % number for number in range(JOBS)] == payloads, "the jobs are others"
        [dead] = await jobs_of(dest)
        assert ("dead", "no") == (dead.status, dead.error)
