"""Moves between queues that are killed at each of their changes to files, restarted until they end, and audited.

    python -m tests.kill.migrations file vsqs --every 5

A child moves jobs, and kills itself at its n-th call that changes or opens a file, for n = 1, 2, … until a child ends
without a kill. After each kill both queues are audited, and their workers claim all ready jobs and hand them back.
Then other children are killed elsewhere, and a last one finishes the move. The exit code is 1 if a job was lost, or is
twice in a queue.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jqueue import migrate
from tests.kill.children import at_most, fork, warm_up
from tests.moved_jobs import PLACES, audit, drained, jobs_of, open_at

CHANGES = frozenset({"open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.setxattr", "os.truncate"})
"""Audit events of Python that come before a change of a file."""

JOBS = 5
SECONDS = 60.0


def move(folder: Path, pair: Sequence[str], last: int) -> None:
    """Move jobs, and kill this process at the change of a file below the folder with number `last`."""
    seen, below = 0, str(folder)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in CHANGES and arguments and below in str(arguments[0]):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        source, dest = (open_at(folder, kind, name) for kind, name in zip(pair, NAMES, strict=True))
        await source.requeue_stale(0)  # the claims of the child before
        while (report := await migrate(source, dest)).left.in_progress and pair[0].startswith("dirq"):
            # A lock whose owner was killed before it wrote its note ends only by age, while a consumer watches it.
            assert [] == await source.dequeue("nobody's")
            await asyncio.sleep(0.1)
        assert report.complete, report

    sys.addaudithook(hear)
    asyncio.run(run())


NAMES = ("source", "dest")


def was_killed(folder: Path, pair: Sequence[str], last: int) -> bool:
    """Return True if a child that moves the jobs was killed before it had finished."""
    with at_most(SECONDS, "a move"):
        _, status = os.waitpid(fork(lambda: move(folder, pair, last)), 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the move ended with {status}"
    return False


class TwoQueues:
    """One folder with two queues.

    Args:
        folder: the folder of both queues.
        pair: the kinds of the queues.
    """

    def __init__(self, folder: Path, pair: Sequence[str]) -> None:
        self.folder, self.pair = folder, pair
        self.ids: list[str] = []

    def _queues(self) -> list[Any]:
        return [open_at(self.folder, kind, name) for kind, name in zip(self.pair, NAMES, strict=True)]

    async def begin(self) -> None:
        """Enqueue jobs into the source, one of them dead."""
        source, _ = self._queues()
        for number in range(JOBS):
            await source.enqueue("work", b"%d" % number)
        await source.enqueue("failing", b"dead")
        [job] = await source.dequeue("failing")
        await source.nack(job, error="no", dead=True)
        self.ids = [job.id for job in await jobs_of(source)]

    async def look(self) -> None:
        """Check that no job is lost or twice in a queue."""
        source, dest = self._queues()
        await audit(source, dest, self.ids)
        for queue in (source, dest):
            jobs = await queue.dequeue(batch_size=99)
            assert [] == await queue.nack_many(jobs, charge=False)

    async def end(self) -> None:
        """Check that all jobs are in the destination."""
        source, dest = self._queues()
        assert [] == await jobs_of(source)
        await audit(source, dest, self.ids)
        payloads = sorted(await drained(dest, "work"))  # jobs whose claim was revoked come later
        assert [b"%d" % number for number in range(JOBS)] == payloads, "the jobs are others"
        [dead] = await jobs_of(dest)
        assert ("dead", "no") == (dead.status, dead.error)


def kill_everywhere(pair: Sequence[str], *, every: int, seed: int) -> int:
    """Kill moves at every `every`-th of their calls, and return the number of kills."""
    dice = random.Random(seed)
    kills, last = 0, 1
    while True:
        with tempfile.TemporaryDirectory(prefix="jqueue-moves-") as name:
            queues = TwoQueues(Path(name), pair)
            asyncio.run(queues.begin())
            killed = was_killed(queues.folder, pair, last)
            kills += killed
            asyncio.run(queues.look())
            again = killed
            while again:
                again = was_killed(queues.folder, pair, dice.randrange(1, 200))
                kills += again
                asyncio.run(queues.look())
            was_killed(queues.folder, pair, 0)
            asyncio.run(queues.end())
        if not killed:
            return kills
        last += every


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kills, and return the exit code."""
    parser = argparse.ArgumentParser(description="Kill moves between queues at all that they do to files.")
    parser.add_argument("source", choices=[kind for kind in PLACES if kind != "memory"])
    parser.add_argument("dest", choices=[kind for kind in PLACES if kind != "memory"])
    parser.add_argument("--every", type=int, default=1, help="at each n-th call")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = parser.parse_args(arguments)
    warm_up()
    print(f"seed {given.seed}")
    try:
        kills = kill_everywhere((given.source, given.dest), every=given.every, seed=given.seed)
    except AssertionError as error:
        print(f"VIOLATION: {error}. Seed {given.seed}", file=sys.stderr)
        return 1
    print(f"No job was lost or doubled by {kills} kills.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
