"""A race: many writers commit to one object of an honest store, each as fast as it can, and all of them finish."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from jqueue import DirectQueue
from tests.object_stores import Store

DEADLINE = 300.0


class Finish(NamedTuple):
    """Outcome of a race.

    Attributes:
        seconds: seconds that each writer took for all its commits.
        commits: expected number of commits.
        version: number of commits in the object.
        lost: acknowledged jobs that are not in the object.
        slowest_call: seconds of the slowest commit.
    """

    seconds: list[float]
    commits: int
    version: int
    lost: list[str]
    slowest_call: float

    @property
    def is_fair(self) -> bool:
        """True if no job was lost and each commit was made once."""
        return not self.lost and self.version == self.commits


async def race(store: Store, writers: int, commits: int) -> Finish:
    """Let `writers` queue objects make `commits` commits each."""
    key, start = store.new_key(), asyncio.Event()
    slowest = [0.0]

    async def write(number: int) -> float:
        async with DirectQueue(store.open(key), deadline=DEADLINE) as queue:
            await queue.read_state()
            await start.wait()
            began = time.monotonic()
            for commit in range(commits):
                called = time.monotonic()
                await queue.enqueue("race", b"x", job_id=f"{number}-{commit}")
                slowest[0] = max(slowest[0], time.monotonic() - called)
            return time.monotonic() - began

    tasks = [asyncio.create_task(write(number)) for number in range(writers)]
    await asyncio.sleep(0.5)
    start.set()
    seconds = await asyncio.gather(*tasks)
    async with DirectQueue(store.open(key)) as queue:
        state = await queue.read_state()
    expected = {f"{number}-{commit}" for number in range(writers) for commit in range(commits)}
    lost = sorted(expected - {job.id for job in state.jobs})
    return Finish(sorted(seconds), writers * commits, state.version, lost, slowest[0])
