"""Kills at the system calls of each verb on a queue in an older format.

    python -m tests.kill.format_kills
    python -m tests.kill.format_kills --format vsqs --verb ack --both

A child makes one call, and is killed at one system call after the other. After a kill, each job is there once and
whole, in its old or its new state, or locked or queued in between; an answered call has been done; and the next process
serves each job once, by a new attempt. The exit codes are those of `python -m tests.kill`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from jqueue import Job, JobStatus, connect
from tests.kill.children import at_most, warm_up
from tests.kill.tracing import START, Point, ViolationError, trace_call, why_not

HELD, VIOLATED, UNAVAILABLE = 0, 1, 2
SECONDS = 60.0

FORMATS = {
    "dirq-simple": "dirq://{}/queue?kind=simple",
    "dirq-queue": "dirq://{}/queue?kind=queue",
    "vsqs": "vsqs://{}/queue",
    "textq": "textq://{}/queue.tq?settle=0.001",
    "textq-hiding": "textq://{}/queue.tq?settle=0.001&hide=true",
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

Summary = dict[bytes, tuple[JobStatus, int]]
"""The status and the attempt of each job, by its payload."""


class FormatKills:
    """The kills in one verb.

    Args:
        folder: an empty folder.
        form: name of the format.
        verb: name of the verb.
    """

    def __init__(self, folder: Path, form: str, verb: str) -> None:
        self._folder, self._verb = folder / "place", VERBS[verb]
        self._name = f"{verb} on {form}"
        self._url = FORMATS[form].format(self._folder)
        self._before: Summary = {}
        self._after: Summary = {}

    def run(self, both: bool, every: int) -> int:
        """Kill at points, and return the number of kills. The arguments are those of `tests.kill.Kills`.

        Raises:
            ViolationError: a promise was not kept.
        """
        for _ in range(2):  # the second run and all later ones find everything imported
            trace, answered = self._trace(None)
            if trace.code != 0 or not answered:
                raise ViolationError(f"{self._name} ended with {trace.code}, though nobody killed it")
            self._after = asyncio.run(_summary(self._url))
        *before, last = [point for point in trace.points if both or not point.at_exit or point is trace.points[-1]]
        return sum(map(self._kill_at, [*before[random.randrange(every) :: every], last]))

    def _trace(self, point: Point | None) -> tuple[Any, bool]:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        jobs = asyncio.run(_prepare(self._url))
        self._before = asyncio.run(_summary(self._url))

        async def work(descriptor: int) -> None:
            async with connect(self._url) as queue:
                await queue.read_state()
                signal.raise_signal(START)
                await self._verb(queue, jobs)
                os.write(descriptor, b"!")

        return trace_call(lambda descriptor: asyncio.run(work(descriptor)), point, SECONDS, self._name)

    def _kill_at(self, point: Point) -> bool:
        trace, answered = self._trace(point)
        try:
            with at_most(SECONDS, "the next process"):
                self._check(asyncio.run(_summary(self._url)), answered)
                asyncio.run(self._go_on())
        except (ViolationError, TimeoutError) as error:
            raise ViolationError(f"{self._name}, killed at {point}: {error}") from error
        return bool(trace.killed)

    def _check(self, summary: Summary, answered: bool) -> None:
        if answered and summary != self._after:
            raise ViolationError(f"it was answered, and the queue is {summary}")
        for payload in self._before.keys() | self._after.keys() | summary.keys():
            states = [self._before.get(payload), self._after.get(payload)]
            now = summary.get(payload)
            between = now is not None and states != [None, None] and states[0] != states[1] and now[0] != JobStatus.DEAD
            if now not in states and not between:
                raise ViolationError(f"{payload!r} was never to be {now}")

    async def _go_on(self) -> None:
        """Serve all jobs as the next process."""
        summary = await _summary(self._url)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill in all verbs on all formats, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.format_kills")
    parser.add_argument("--format", action="append", choices=FORMATS, help="only this one; can be repeated")
    parser.add_argument("--verb", action="append", choices=VERBS, help="only this one; can be repeated")
    parser.add_argument("--both", action="store_true", help="at the entry and the exit of each system call")
    parser.add_argument("--every", type=int, default=1, help="2 kills at every second point, and so on")
    chosen = parser.parse_args(arguments)
    warm_up()
    if (reason := why_not()) is not None:
        print(f"System calls cannot be traced: {reason}", file=sys.stderr)
        return UNAVAILABLE
    for form in chosen.format or FORMATS:
        for verb in chosen.verb or VERBS:
            with tempfile.TemporaryDirectory(prefix="jqueue-kill-") as folder:
                try:
                    kills = FormatKills(Path(folder), form, verb).run(chosen.both, chosen.every)
                except ViolationError as error:
                    print(f"VIOLATION: {error}", file=sys.stderr)
                    return VIOLATED
            print(f"{form:14} {verb:10} {kills:5} kills", flush=True)
    return HELD


if __name__ == "__main__":
    sys.exit(main())
