"""An enqueue of a large payload that is killed at each of its changes to files, and audited.

    python -m tests.kill.payload_kills

A child enqueues a job with a large payload, and kills itself at its n-th call that changes or opens a file, for
n = 1, 2, … until a child ends without a kill. After each kill the queue must be readable, each job must have its whole
payload, and an object that no job names is only litter. The exit code is 1 if that does not hold.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from jqueue import DirectQueue, Limits, LocalFileSystemStorage
from tests.kill.children import at_most, fork, warm_up
from tests.kill.migrations import CHANGES

PAYLOAD = bytes(range(256)) * 1000
SECONDS = 60.0


def queue_in(folder: Path, **options: Any) -> DirectQueue:
    return DirectQueue(LocalFileSystemStorage(folder / "queue.json"), limits=Limits(object_bytes=1000), **options)


def enqueue(folder: Path, last: int) -> None:
    """Enqueue a job, and kill this process at the change of a file below the folder with number `last`."""
    seen, below = 0, str(folder)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in CHANGES and arguments and below in str(arguments[0]):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

    queue = queue_in(folder)
    sys.addaudithook(hear)
    asyncio.run(queue.enqueue("work", PAYLOAD))


def was_killed(folder: Path, last: int) -> bool:
    """Return True if a child that enqueues was killed before it had finished."""
    with at_most(SECONDS, "an enqueue"):
        _, status = os.waitpid(fork(lambda: enqueue(folder, last)), 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, f"the enqueue ended with {status}"
    return False


async def audit(folder: Path) -> tuple[int, int]:
    """Check the queue, and return the number of its jobs and of the objects that no job names."""
    queue = queue_in(folder)
    jobs = await queue.dequeue(batch_size=9)
    assert all(job.payload == PAYLOAD for job in jobs), "a job has lost its payload"
    state = await queue.read_state()
    assert () == state.set_aside
    assert () == state.dead_jobs()
    storage = queue.storage
    assert isinstance(storage, LocalFileSystemStorage)
    named = {job.payload_object.suffix for job in jobs if job.payload_object is not None}
    found = {each.suffix for each in await storage.list_beside(".payloads/")}
    assert named <= found
    await queue.enqueue("work", PAYLOAD)  # the queue can be used
    return len(jobs), len(found - named)


def kill_everywhere() -> tuple[int, int]:
    """Kill enqueues at each of their calls. Return the number of kills, and of kills that left an object as litter."""
    kills = littered = 0
    while True:
        with tempfile.TemporaryDirectory(prefix="jqueue-payloads-") as name:
            folder = Path(name)
            asyncio.run(queue_in(folder).enqueue("first", PAYLOAD))
            killed = was_killed(folder, kills + 1)
            jobs, litter = asyncio.run(audit(folder))
            if not killed:
                assert (2, 0) == (jobs, litter)
                return kills, littered
            assert jobs in (1, 2), "the first job is lost"
            assert litter <= 1
            kills, littered = kills + 1, littered + litter


def main() -> int:
    """Run it, and print the numbers."""
    warm_up()
    kills, littered = kill_everywhere()
    print(f"{kills} kills, {littered} of them between the object and the commit.")
    return 0 if littered else 1


if __name__ == "__main__":
    sys.exit(main())
