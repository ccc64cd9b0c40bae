"""Kills at the system calls of commits on a queue in a file.

A child notes its operations and its writes in a journal. After a kill, the queue is what the plain model makes of the
operations whose writes landed: of all of them, if the child had its answer. The next process goes on: it reads the
history, serves each job once and in order, and removes what the killed process has left.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from jqueue import DirectQueue, Job, JobStatus, Limits, LocalFileSystemStorage
from jqueue.domain.errors import HistoryDamagedError, QueueMissingError
from jqueue.operations import Ack, CloseGroup, Enqueue, Nack, OpenGroup, RecordStep
from jqueue.ports.observer import Observer
from jqueue.worker.steps import Steps
from tests.journal import PREFIX, Journal, Journals, objects_of, payload_of
from tests.kill.kills import SECONDS, Kills
from tests.kill.tracing import ViolationError
from tests.simulation.answers_audit import OF_MANY_CALLS
from tests.simulation.chain import COMPLETED, QUEUED, Version, attempt_of, status_of
from tests.simulation.history import Call

MEMORY = 1 << 26
OLD = tuple(f"old-{number}" for number in range(1, 10))
LARGE = bytes(range(256)) * 10
LATER = timedelta(days=3)
PLAIN = Limits()


class Watch(Observer):
    """Notes when an object was created."""

    def __init__(self) -> None:
        self.created = asyncio.Event()

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        if call == "create" and error is None:
            self.created.set()


class Memory:
    """Memory that a child shares with this process. Writing to it is no system call at which it could be killed."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, MEMORY)

    def clear(self) -> None:
        """Forget what was written."""
        self._map[:PREFIX] = bytes(PREFIX)

    def write(self, data: bytes) -> None:
        """Append some bytes."""
        place = PREFIX + int.from_bytes(self._map[:PREFIX])
        self._map[place : place + len(data)] = data
        self._map[:PREFIX] = (place + len(data) - PREFIX).to_bytes(PREFIX)

    def read(self) -> bytes:
        """Return what was written."""
        return self._map[PREFIX : PREFIX + int.from_bytes(self._map[:PREFIX])]


Calls = Callable[[DirectQueue, Watch], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """Some calls on a queue.

    Attributes:
        calls: makes the calls that are killed.
        before: makes the calls before.
        limits: of the queue that makes them.
        before_limits: of the queue that makes those before.
        calls_made: system calls that must be seen, or the wrong process was watched.
    """

    calls: Calls
    before: Calls | None = None
    limits: Limits = PLAIN
    before_limits: Limits = PLAIN
    calls_made: frozenset[str] = frozenset({"openat", "flock", "write", "fsync", "pwrite64", "rename"})


async def _enqueue(queue: DirectQueue, watch: Watch, *ids: str, payload: bytes | None = None) -> None:
    jobs = [Enqueue("t", payload_of(each) if payload is None else payload, job_id=each) for each in ids or ("new",)]
    await queue.enqueue_many(jobs)


async def _claimed(queue: DirectQueue, watch: Watch) -> None:
    await _enqueue(queue, watch, *OLD)
    await queue.dequeue(batch_size=2)


async def _in_segments(queue: DirectQueue, watch: Watch) -> None:
    for first in range(0, len(OLD), 3):
        await _spill(queue, watch, *OLD[first : first + 3])


async def _spill(queue: DirectQueue, watch: Watch, *ids: str) -> None:
    """Commit, wait until a segment is written, and name it with the next commit."""
    watch.created.clear()
    await _enqueue(queue, watch, *ids)
    await watch.created.wait()
    await queue.pause("nothing")
    await queue.resume("nothing")


async def _apply(queue: DirectQueue, watch: Watch) -> None:
    [job] = [job async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS, id_prefix=OLD[0])]
    await queue.apply(Ack(job.claim), Enqueue("t", payload_of("new"), job_id="new"))


async def _take(queue: DirectQueue, watch: Watch) -> None:
    first, second = await queue.dequeue(batch_size=2)
    await queue.cancel(OLD[5])
    await queue.apply(Ack(first), Nack(second, error="boom"))


async def _range(queue: DirectQueue, watch: Watch) -> None:
    claim = await queue.claim_lease("t", 3)
    assert claim is not None
    assert list(OLD[:3]) == [job.id async for job in queue.read_lease(claim)]
    await queue.end_lease(claim, failed={OLD[1]: "boom"}, worked_on=2)


async def _many_segments(queue: DirectQueue, watch: Watch) -> None:
    for number in range(15):
        await _spill(queue, watch, f"many-{number:02}")


async def _with_history(queue: DirectQueue, watch: Watch) -> None:
    await queue.configure(history=3600)
    await _enqueue(queue, watch, *OLD)


async def _move_history(queue: DirectQueue, watch: Watch) -> None:
    """Add so many events that they move to an object, and let the next commit drop them from the queue."""
    await _enqueue(queue, watch, *(f"event-{number:04}" for number in range(1000)), payload=b"")
    await watch.created.wait()
    await queue.pause("nothing")


async def _large(queue: DirectQueue, watch: Watch) -> None:
    await _enqueue(queue, watch, "large", payload=LARGE)


EFFECTS = Memory()
"""A byte for each time that a step was done."""


async def _steps(queue: DirectQueue, watch: Watch) -> None:
    """Do ten steps as a worker does, every other one with a large result."""
    [job] = [job async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS, id_prefix=OLD[0])]
    steps = Steps(job, queue, None)

    async def effect(number: int) -> str:
        EFFECTS.write(b".")
        return "x" * (number % 2 * 300)

    for number in range(10):
        await steps.do(f"step {number}", partial(effect, number), lambda: False)


async def _with_group(queue: DirectQueue, watch: Watch) -> None:
    """Claim all jobs of a closed group. One job follows when all are done, another one when all have ended."""
    then, end = (Enqueue("t", payload_of(each), new_id=each) for each in ("then", "end"))
    await queue.apply(OpenGroup("group", then, end))
    await queue.enqueue_many([Enqueue("t", payload_of(each), job_id=each, group="group") for each in OLD[:3]])
    await queue.apply(CloseGroup("group"))
    await queue.dequeue(batch_size=3)


async def _end_group(queue: DirectQueue, watch: Watch) -> None:
    claims = [job.claim async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS)]
    await queue.ack(claims[0])
    await queue.ack_many(claims[1:])


async def _with_child(queue: DirectQueue, watch: Watch) -> None:
    """Let a job wait for two that are claimed."""
    await _claimed(queue, watch)
    await queue.enqueue("t", payload_of("child"), job_id="child", after=OLD[:2])


async def _end_parents(queue: DirectQueue, watch: Watch) -> None:
    claims = [job.claim async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS)]
    await queue.ack(claims[0])
    await queue.ack(claims[1])


async def _collect(queue: DirectQueue, watch: Watch) -> None:
    await queue.cancel("large")
    await queue.collect()


_SPILLING = Limits(hot_bytes=1)
_WITH_OBJECTS = Limits(object_bytes=100)
_COMMIT = Case.calls_made
_CREATION = _COMMIT | {"link", "unlink"}

CASES = {
    "first-enqueue": Case(_enqueue),
    "enqueue": Case(_enqueue, _claimed),
    "dequeue": Case(lambda queue, _: queue.dequeue(), _claimed),
    "apply": Case(_apply, _claimed),
    "look": Case(lambda queue, _: queue.read_state(), _claimed, calls_made=frozenset({"openat"})),
    "spill": Case(_spill, _claimed, _SPILLING, calls_made=_CREATION),
    "merge": Case(_spill, _many_segments, _SPILLING, _SPILLING, calls_made=_CREATION),
    "take": Case(_take, _in_segments, before_limits=_SPILLING),
    "range": Case(_range, _in_segments, before_limits=_SPILLING),
    "large": Case(_large, _claimed, _WITH_OBJECTS, calls_made=_CREATION),
    "steps": Case(_steps, _claimed, _WITH_OBJECTS, calls_made=_CREATION),
    "group": Case(_end_group, _with_group),
    "parents": Case(_end_parents, _with_child),
    "history": Case(_move_history, _with_history, calls_made=_CREATION),
    "collect": Case(_collect, _large, _WITH_OBJECTS, _WITH_OBJECTS),
}

CHILD = "the child"


class CommitKills(Kills):
    """The kills in one case."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self._case = CASES[name]
        self.calls_made = self._case.calls_made
        self._template, self._copy = folder / "template", folder / "copy"
        self._memory = Memory()
        self._commits = 0
        self._template.mkdir()
        if self._case.before is not None:
            asyncio.run(self._make(self._case.before))
        file = self._template / "queue.json"
        self._first = file.read_bytes() if file.exists() else None
        self._objects = asyncio.run(objects_of(_storage(self._template)))

    async def _make(self, calls: Calls) -> None:
        watch = Watch()
        async with DirectQueue(_storage(self._template), limits=self._case.before_limits) as queue:
            queue.observe(watch)
            await calls(queue, watch)

    def begin(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._template, self._copy)
        self._memory.clear()
        EFFECTS.clear()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        watch, journal = Watch(), Journal(CHILD, self._memory.write)
        queue = DirectQueue(journal.of(_storage(self._copy)), limits=self._case.limits)
        queue.observe(watch)
        queue.observe(journal.recorder)
        yield lambda: journal.record(Call(CHILD, OF_MANY_CALLS), self._case.calls(queue, watch))

    def look(self) -> None:
        self._commits = self._landed(answered=True).landed

    def check(self, answered: bool) -> None:
        """Check the queue and its folder, and let the next process serve the jobs."""
        journals = self._landed(answered=answered)
        self.counts["done"] += journals.landed == self._commits > 0
        recorded = sum(len(job.get("steps", ())) for job in journals.last.jobs.values())
        if not 0 <= len(EFFECTS.read()) - recorded <= 1:
            raise ViolationError(f"{len(EFFECTS.read())} steps were done, and a retry finds {recorded}")
        temporaries = list(self._copy.rglob(".*.tmp"))
        self.counts["temporaries"] += bool(temporaries)
        if len(temporaries) > 1:
            raise ViolationError(f"{len(temporaries)} temporary files are left")
        asyncio.run(_go_on(self._copy, journals.last))

    def _landed(self, *, answered: bool) -> Journals:
        """Compare the queue with the model, by the journal of the child.

        Raises:
            AssertionError: they differ, or the calls were answered and a write of theirs has not landed.
        """
        journals, file = Journals({CHILD: self._memory.read()}, self._objects), self._copy / "queue.json"
        journals.check(file.read_bytes() if file.exists() else None, self._first)
        if answered and journals.landed < journals.writes:
            raise ViolationError("the calls were answered, and their effect is not there")
        asyncio.run(_check_readable(self._copy, journals.last))
        return journals


class DaysLater(LocalFileSystemStorage):
    """The file as the process finds it that comes last: by its clock, segments left the queue some days ago."""

    def store_time(self) -> datetime:
        return super().store_time() + LATER


def _storage(folder: Path) -> LocalFileSystemStorage:
    return LocalFileSystemStorage(folder / "queue.json")


async def _check_readable(folder: Path, last: Version) -> None:
    """Check that a new process reads all jobs, and the whole history."""
    async with DirectQueue(_storage(folder)) as queue:
        try:
            jobs = {job.id async for job in queue.iterate_jobs()}
        except QueueMissingError:
            jobs = set()
        if jobs != last.jobs.keys():
            raise ViolationError(f"a new process reads {sorted(jobs)}")
        if last.history:
            await _check_history(queue, jobs)


async def _check_history(queue: DirectQueue, jobs: set[str]) -> None:
    """Check that the history has the addition of each job once, and no gap."""
    try:
        events = [event async for event in queue.history()]
    except HistoryDamagedError as error:
        raise ViolationError(str(error)) from error
    if sorted(event.number for event in events) != list(range(1, len(events) + 1)):
        raise ViolationError("the history has a gap, or an event twice")
    added = Counter(event.job_id for event in events if event.job_id is not None)
    if added != Counter(jobs):
        raise ViolationError(f"{len(jobs)} jobs were added, and the history has {len(events)} events")


async def _go_on(folder: Path, last: Version) -> None:
    """Serve every job once, in order, as the next process, and leave nothing beside the file."""
    _age(folder)
    for job_id, limits in (("next", _SPILLING), ("large-next", _WITH_OBJECTS)):
        watch = Watch()
        async with DirectQueue(_storage(folder), limits=limits, deadline=SECONDS) as queue:
            queue.observe(watch)
            await queue.enqueue("t", _expected(job_id), job_id=job_id)
            await watch.created.wait()  # the creation of an object removes the temporary files of others
    async with DirectQueue(_storage(folder), deadline=SECONDS) as queue:
        await queue.requeue_stale(0)
        served: list[Job] = []
        while jobs := await queue.dequeue(batch_size=1000, wait=0.01):
            for job in jobs:
                if job.payload != _expected(job.id):
                    raise ViolationError(f"the payload of {job.id} is not the one that was enqueued")
            served += jobs
            await queue.apply_each(RecordStep(jobs[0], "last", 1, "x" * 5000))  # an object with the results of others
            await queue.ack_many(jobs)
    pending = [group[name][0]["id"] for group in last.groups.values() for name in ("then", "on_end") if name in group]
    there = [job_id for job_id, job in last.jobs.items() if status_of(job) != COMPLETED]  # a child needs the others
    if sorted(job.id for job in served) != sorted([*there, *pending, "next", "large-next"]):
        raise ViolationError(f"the next process served {[job.id for job in served]}")
    new = {job_id for job_id, job in last.jobs.items() if (status_of(job), attempt_of(job)) == (QUEUED, 0)}
    places = [job.sequence for job in served if job.id in new]
    if places != sorted(places):
        raise ViolationError(f"jobs were served out of order: {places}")
    _age(folder)
    async with DirectQueue(DaysLater(folder / "queue.json")) as queue:
        for _ in range(2):  # each commit forgets segments that left it long ago, and each collection removes them
            await queue.enqueue("t", b"", job_id="last")
            await queue.cancel("last")
            await queue.collect()
    history = folder / "queue.json.history"
    left = {path for path in folder.rglob("*") if path.is_file() and history not in path.parents}
    left -= {folder / "queue.json", folder / "queue.json.lock"}
    if left:
        raise ViolationError(f"the next process has left {', '.join(sorted(path.name for path in left))}")


def _age(folder: Path) -> None:
    """Make all files some days older."""
    for path in folder.rglob("*"):
        os.utime(path, (path.stat().st_mtime - LATER.total_seconds(),) * 2)


def _expected(job_id: str) -> bytes:
    return LARGE if job_id.startswith("large") else b"" if job_id.startswith("event") else payload_of(job_id)
