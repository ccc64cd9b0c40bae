"""Work with segments beside a queue file, killed at its system calls: `python -m tests.kill.segment_kills`.

Spills, merges, claims of rows, ranges and collections are killed, each from the same queue. After a kill, each job is
in one place, as it was after the last commit that landed. Each segment of the manifest is there, whole and true. The
next process goes on, removes the litter once it is old, and serves every job once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jqueue import DirectQueue, Job, JobStatus, JQueueError, LocalFileSystemStorage
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.operations import Ack, Enqueue, Nack
from tests.kill.children import at_most
from tests.kill.folder import Folder
from tests.kill.journal import payload_of
from tests.kill.ledger import ViolationError
from tests.kill.tiny_segments import IDLE, TINY, with_segments
from tests.kill.traced_kills import EVERY_COMMIT, EVERY_CREATION, TracedKills, run_all
from tests.kill.tracing import START
from tests.kill.whole_queue import WholeQueue, folder_of, read_whole

NEXT_SECONDS = 30.0
JOBS = 9
ENTRYPOINT = "t"
LITTER = ("of-a-killed-spill", "of-a-killed-merge")
A_DAY = 90_000.0

_TEMPORARY = re.compile(r"\.[\w-]+\.[\w-]+\.object\.tmp")

Summary = dict[str, tuple[JobStatus, int] | None]
"""The status and the attempt of each job, by its id. A job that was acked or cancelled has None."""

QUEUED, CLAIMED = JobStatus.QUEUED, JobStatus.IN_PROGRESS


class Case(NamedTuple):
    """Some calls on a queue.

    Attributes:
        name: name of the case.
        prepare: makes the calls before, and returns something for the calls.
        call: makes the calls.
        steps: the changes of the commits to the summary, in order.
        sizes: sizes of the segments that the calls write.
        creates: True if the calls create an object.
        kept: seconds after which the queue of the calls takes an object for old.
    """

    name: str
    prepare: Callable[[DirectQueue], Coroutine[Any, Any, Any]]
    call: Callable[[DirectQueue, Any], Awaitable[Any]]
    steps: Sequence[Summary]
    sizes: SegmentSizes = IDLE
    creates: bool = False
    kept: float = 3600.0


async def settled(queue: DirectQueue) -> None:
    """Wait until no segment is being written."""
    segments = queue._engine.segments
    assert segments is not None
    while tasks := [
        each._task for each in (segments.writer._spills, segments.writer._merges) if each._task is not None
    ]:
        await asyncio.wait(tasks)


async def enqueue(queue: DirectQueue, *job_ids: str) -> None:
    """Enqueue jobs in one commit."""
    await queue.enqueue_many(Enqueue(ENTRYPOINT, payload_of(job_id), job_id=job_id) for job_id in job_ids)


async def _hot(queue: DirectQueue) -> None:
    """Enqueue jobs that stay in the blob."""
    await enqueue(with_segments(queue, IDLE), *NAMES)


async def _in_segments(queue: DirectQueue) -> None:
    """Enqueue jobs, and let them move to three segments."""
    for first in range(0, JOBS, 3):
        await enqueue(with_segments(queue, SIZES_BEFORE), *NAMES[first : first + 3])
        await settled(queue)
    await queue.pause("nothing")


async def _in_a_range(queue: DirectQueue) -> Any:
    """Let jobs move to one segment, and claim some of them as a range."""
    await in_one_segment(queue)
    return await queue.claim_range(ENTRYPOINT, 5)


async def in_one_segment(queue: DirectQueue) -> None:
    """Enqueue jobs, and let them move to one segment."""
    await enqueue(with_segments(queue, SIZES_BEFORE), *NAMES)
    await settled(queue)
    await queue.pause("nothing")


async def _with_litter(queue: DirectQueue) -> None:
    """Let jobs move to segments, merge some, and leave objects as killed writers do."""
    await _in_segments(queue)
    with_segments(queue, TINY)
    queue._engine.retention = queue._engine.retention._replace(young=-1.0)
    await queue.resume("nothing")
    await settled(queue)
    await queue.pause("nothing")
    assert isinstance(queue.storage, LocalFileSystemStorage)
    for name in LITTER:
        await queue.storage.create_object(f".segments/{name}", b"litter")


async def _spill(queue: DirectQueue, _: Any) -> None:
    """Commit, let a segment be written, and name it with the next commit."""
    await enqueue(queue, "new")
    await settled(queue)
    await enqueue(queue, "second")
    await settled(queue)


async def _merge(queue: DirectQueue, _: Any) -> None:
    await queue.resume("nothing")
    await settled(queue)
    await queue.reprioritise(NAMES[4], 1)
    await settled(queue)


async def _take(queue: DirectQueue, _: Any) -> None:
    first, second = await queue.dequeue(batch_size=2)
    await queue.cancel(NAMES[5])
    await queue.apply(Ack(first), Nack(second, error="boom"))


async def _claim_range(queue: DirectQueue, _: Any) -> None:
    claim = await queue.claim_range(ENTRYPOINT, 5)
    assert claim is not None
    assert list(NAMES[:5]) == [job.id async for job in queue.read_range(claim)]


async def _end_range(queue: DirectQueue, claim: Any) -> None:
    await queue.end_range(claim, failed={NAMES[1]: "boom"}, returned=[NAMES[3]])


async def _revoke_range(queue: DirectQueue, _: Any) -> None:
    assert JOBS - 4 == await queue.requeue_stale(0)


async def _collect(queue: DirectQueue, _: Any) -> None:
    await queue.collect()


NAMES = tuple(f"old-{number}" for number in range(1, JOBS + 1))
SIZES_BEFORE = SegmentSizes(hot_bytes=0, fewest_rows=1, most_rows=12, chunk_rows=2, merged=1000, holes=1000)
_NONE: Summary = {}

CASES = {
    case.name: case
    for case in (
        Case("spill", _hot, _spill, [{"new": (QUEUED, 0)}, {"second": (QUEUED, 0)}], TINY, creates=True),
        Case("merge", _in_segments, _merge, [_NONE], TINY, creates=True),
        Case(
            "take",
            _in_segments,
            _take,
            [
                {NAMES[0]: (CLAIMED, 1), NAMES[1]: (CLAIMED, 1)},
                {NAMES[5]: None},
                {NAMES[0]: None, NAMES[1]: (QUEUED, 1)},
            ],
        ),
        Case("claim-range", in_one_segment, _claim_range, [dict.fromkeys(NAMES[:5], (CLAIMED, 1))]),
        Case(
            "end-range",
            _in_a_range,
            _end_range,
            [{**dict.fromkeys(NAMES[:5]), NAMES[1]: (QUEUED, 1), NAMES[3]: (QUEUED, 1)}],
        ),
        Case("revoke", _in_a_range, _revoke_range, [dict.fromkeys(NAMES[:5], (QUEUED, 1))]),
        Case("collect", _with_litter, _collect, [_NONE], kept=0.0),
    )
}


class Hasty(DirectQueue):
    """A queue that names a segment whose object is not there yet."""

    def break_it(self) -> None:
        """Create objects a little later than the writer believes."""
        assert self._engine.segments is not None
        writer, storage = self._engine.segments.writer, self.storage
        assert isinstance(storage, LocalFileSystemStorage)
        create = storage.create_object

        class Later:
            """Creates objects later."""

            async def create_object(self, suffix: str, content: bytes) -> None:
                self._task = asyncio.create_task(self._create(suffix, content))

            async def _create(self, suffix: str, content: bytes) -> None:
                await asyncio.sleep(0.05)
                await create(suffix, content)

        vars(writer)["_objects"] = Later()


class SegmentKills(TracedKills):
    """The kills in one case.

    Args:
        folder: folder for the queues of the cases.
        case: the case.
        hasty: True to use a writer that is broken on purpose.

    Attributes:
        littered: number of kills that left an object which nothing names.
    """

    def __init__(self, folder: Path, case: Case, hasty: bool) -> None:
        super().__init__(case.name)
        self.littered = 0
        self._case, self._hasty = case, hasty
        self._template = Folder(folder / case.name / "template", segments=True)
        self._folder = Folder(folder / case.name / "copy", segments=True)
        self._kept: Any = None
        self._before: WholeQueue | None = None
        if not hasty:
            self.expected = EVERY_COMMIT | (EVERY_CREATION if case.creates else frozenset())

    def begin(self) -> None:
        """Make a fresh copy of the queue, and the queue itself at first."""
        if self._before is None:
            self._kept = asyncio.run(self._case.prepare(DirectQueue(LocalFileSystemStorage(self._template.file))))
            self._before = read_whole(self._template.file)
        shutil.rmtree(self._folder.path, ignore_errors=True)
        shutil.copytree(self._template.path, self._folder.path)

    async def work(self, descriptor: int) -> None:
        """Make the calls, in the child."""
        queue = with_segments(self._queue(Hasty), self._case.sizes, self._case.kept)
        if self._hasty:
            queue.break_it()
        await queue.read_state()
        signal.raise_signal(START)
        await self._case.call(queue, self._kept)
        os.write(descriptor, b"!")

    def check(self, acknowledged: bool) -> bool:
        """Check the queue, and let the next process serve its jobs. Return True if all commits had landed."""
        assert self._before is not None
        with self._folder.locked(wait=False):
            self._folder.temporaries(1)
        whole = self._whole()
        stages = [_summary(self._before)]
        for step in self._case.steps:
            stages.append(_changed(stages[-1], step))
        found = _summary(whole)
        if found not in stages:
            raise ViolationError(f"the queue is neither what it was nor what it was to be, but {found}")
        if acknowledged and found != stages[-1]:
            raise ViolationError("the calls were acknowledged, and had no effect", 1)
        litter = self._litter(whole)
        if self._case.call is _collect:
            litter -= self._before.retired
        if acknowledged and self._case.call is _collect and litter:
            raise ViolationError("the collection was acknowledged, and has left litter")
        self.littered += bool(litter)
        with at_most(NEXT_SECONDS, "the next process"):
            asyncio.run(self._go_on(found))
        return not litter if self._case.call is _collect else self._is_done(whole)

    def _is_done(self, whole: WholeQueue) -> bool:
        """Return True if the segment was named that the calls write, or if the commits have landed without one."""
        assert self._before is not None
        if self._case.creates:
            return bool(whole.segments - self._before.segments)
        return whole.version - self._before.version >= len(self._case.steps)

    def _whole(self) -> WholeQueue:
        whole = read_whole(self._folder.file)
        if whole is None:
            raise ViolationError("the file is gone")
        if wrong := [job.id for job in whole.jobs if job.payload != payload_of(job.id)]:
            raise ViolationError(f"the payload of {wrong[0]} is not the one that was enqueued")
        return whole

    def _litter(self, whole: WholeQueue) -> set[str]:
        """Return the names of the files beside the queue that are neither segments nor were so lately.

        A segment that left the manifest lately counts as litter once that is `KEPT_SECONDS` ago. If this moment comes
        while a collection is under way, after its first look at the queue, only the next collection removes the file.
        """
        folder = folder_of(self._folder.file)
        return {path.name for path in folder.iterdir()} - whole.segments - whole.retired if folder.exists() else set()

    async def _go_on(self, found: Summary) -> None:
        """Enqueue, collect, and serve every job, as the next process."""
        queue = with_segments(self._queue(DirectQueue), TINY, kept=0.0)
        for name in self._litter(self._whole()):
            if _TEMPORARY.fullmatch(name):  # as if it were left there for a day
                path = folder_of(self._folder.file) / name
                os.utime(path, (path.stat().st_mtime - A_DAY,) * 2)
        try:
            await enqueue(queue, "next")
            await settled(queue)
            await queue.pause("nothing")
            await settled(queue)
        except JQueueError as error:
            raise ViolationError(f"the next writer failed: {error}") from error
        then = _summary(self._whole())
        status, _ = then.pop("next", None) or (None, 0)  # its attempt follows those of ended ranges
        if status is not QUEUED or then != found:
            raise ViolationError(f"the next commits were not to change {found} into {then}")
        with_segments(queue, IDLE, kept=0.0)
        await queue.resume("nothing")  # which names the last segment that was written
        retired = self._whole().retired
        await queue.collect()
        if litter := self._litter(whole := self._whole()) - retired:
            raise ViolationError(f"the next collection has left {', '.join(sorted(litter))}")
        await self._serve(queue, whole)

    async def _serve(self, queue: DirectQueue, before: WholeQueue) -> None:
        """Check that each job is served once, in order."""
        await queue.requeue_stale(0)
        expected = [job.id for job in self._whole().queued_jobs()]
        if {*expected} != {job.id for job in before.jobs}:
            raise ViolationError(f"a sweep has left {expected} of the queued jobs")
        served: list[Job] = []
        while jobs := await queue.dequeue(batch_size=4):
            served += jobs
        if expected != [job.id for job in served]:
            raise ViolationError(f"the jobs {expected} were served as {[job.id for job in served]}")
        await queue.apply(*map(Ack, served))
        left = self._whole()
        if left.jobs or left.segments or await queue.dequeue():
            raise ViolationError("a job is left after each was acked")

    def _queue(self, kind: Callable[..., Any]) -> Any:
        return kind(LocalFileSystemStorage(self._folder.file), deadline=NEXT_SECONDS)


def _summary(whole: WholeQueue) -> Summary:
    return {job.id: (job.status, job.attempt) for job in whole.jobs}


def _changed(before: Summary, step: Summary) -> Summary:
    return {job_id: there for job_id, there in (before | step).items() if there is not None}


def main(arguments: list[str] | None = None) -> int:
    """Kill in each case."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.segment_kills", description=__doc__)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--hasty", action="store_true", help="use a writer that is broken on purpose")
    parser.add_argument("--both", action="store_true", help="at entry and exit of each call")
    parser.add_argument("--every", type=int, default=1, help="2 kills at every second call, and so on")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        several = [SegmentKills(Path(folder), CASES[name], asked.hasty) for name in asked.case or CASES]
        return run_all(several, asked.both, "it was done", asked.every)


if __name__ == "__main__":
    sys.exit(main())
