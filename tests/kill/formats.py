"""Kills at the system calls of each verb on a queue in an older format.

After a kill, each job is there once and whole, in its old or its new state, or locked or queued in between; an answered
call has been done; and the next process serves each job once, by a new attempt.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jqueue import Job, JobStatus, connect
from tests.kill.kills import Kills
from tests.kill.tracing import ViolationError

FORMATS = {
    "dirq-simple": "dirq://{}/queue?kind=simple",
    "dirq-queue": "dirq://{}/queue?kind=queue",
    "vsqs": "vsqs://{}/queue",
    "textq": "textq://{}/queue.tq",
}

Jobs = dict[bytes, Job]
Verb = Callable[[Any, Jobs], Awaitable[Any]]

DEAD, HELD_JOB, WAITING, NEW = b"dead\n job", b"held\n job", b"waiting\n job", b"new\n job"
HEADERS = {"large": "x" * 2000}

VERBS: dict[str, Verb] = {
    "enqueue": lambda queue, jobs: queue.enqueue("work", NEW, headers=HEADERS),
    "dequeue": lambda queue, jobs: queue.dequeue(),
    "heartbeat": lambda queue, jobs: queue.heartbeat(jobs[HELD_JOB]),
    "ack": lambda queue, jobs: queue.ack(jobs[HELD_JOB]),
    "nack": lambda queue, jobs: queue.nack(jobs[HELD_JOB], error="e" * 2000),
    "hand-back": lambda queue, jobs: queue.nack(jobs[HELD_JOB], charge=False),
    "bury": lambda queue, jobs: queue.nack(jobs[HELD_JOB], dead=True),
    "redrive": lambda queue, jobs: queue.redrive(jobs[DEAD].id),
    "cancel": lambda queue, jobs: queue.cancel(jobs[WAITING].id),
}

CALLS = {f"{verb} on {form}": (verb, form) for form, verb in itertools.product(FORMATS, VERBS)}

Summary = dict[bytes, tuple[JobStatus, int]]
"""The status and the attempt of each job, by its payload."""


class FormatKills(Kills):
    """The kills in one verb on a queue in one format."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder / "place")
        verb, form = CALLS[name]
        self._verb, self._url = VERBS[verb], FORMATS[form].format(self.folder)
        self._jobs: Jobs = {}
        self._before: Summary = {}
        self._after: Summary = {}

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._jobs = asyncio.run(_prepare(self._url))
        self._before = asyncio.run(_summary(self._url))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        async with connect(self._url) as queue:
            await queue.read_state()
            yield lambda: self._verb(queue, self._jobs)

    def look(self) -> None:
        self._after = asyncio.run(_summary(self._url))

    def check(self, answered: bool) -> None:
        summary = asyncio.run(_summary(self._url))
        self.counts["done"] += summary == self._after
        if answered and summary != self._after:
            raise ViolationError(f"it was answered, and the queue is {summary}")
        for payload in self._before.keys() | self._after.keys() | summary.keys():
            states = [self._before.get(payload), self._after.get(payload)]
            now = summary.get(payload)
            between = now is not None and states != [None, None] and states[0] != states[1] and now[0] != JobStatus.DEAD
            if now not in states and not between:
                raise ViolationError(f"{payload!r} was never to be {now}")
        asyncio.run(self._go_on(summary))

    async def _go_on(self, summary: Summary) -> None:
        """Serve all jobs as the next process."""
        async with connect(self._url) as queue:
            await queue.requeue_stale(0)
            await queue.redrive()
            jobs = await queue.dequeue(batch_size=100)
            if sorted(job.payload for job in jobs) != sorted(summary):
                raise ViolationError(f"the next process served {[job.payload for job in jobs]}")
            for job in jobs:
                if job.attempt <= self._before.get(job.payload, (None, 0))[1]:
                    raise ViolationError(f"attempt {job.attempt} of {job.payload!r} was used twice")
                if (job.entrypoint, dict(job.headers)) != ("work", HEADERS):
                    raise ViolationError(f"the note of {job.payload!r} was lost")
            if await queue.ack_many(jobs) or (await queue.read_state()).jobs:
                raise ViolationError("the next process could not finish the jobs")


async def _prepare(url: str) -> Jobs:
    """Make a dead, a claimed and a waiting job, and return them."""
    async with connect(url, stale_timeout=3600) as queue:
        for payload in (DEAD, HELD_JOB, WAITING):
            await queue.enqueue("work", payload, headers=HEADERS)
        dead, held = await queue.dequeue(batch_size=2)
        await queue.nack(dead, dead=True)
        jobs = {job.payload: job for job in (await queue.read_state()).jobs}
        return {**jobs, HELD_JOB: held}


async def _summary(url: str) -> Summary:
    """Return the jobs as a new process reads them."""
    async with connect(url) as queue:
        state = await queue.read_state()
    summary = {job.payload: (job.status, job.attempt) for job in state.jobs}
    if len(summary) != len(state.jobs):
        raise ViolationError("a job is there twice")
    return summary
