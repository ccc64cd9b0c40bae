"""Two queues that get the same calls: one keeps jobs in tiny segments, the other keeps all in its object.

A user must not be able to tell them apart. They draw the same ids, share one virtual clock, and each has several queue
objects. `picture` is everything that a user can see of a queue; `check_manifest` holds the manifest against the rows.
"""

import asyncio
import dataclasses
from collections import Counter
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Job, JobStatus, Limits
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.job_table import objects_of, unpacked
from jqueue.domain.segment_rows import RowsMissingError
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from tests.property.queue_machine import Draws
from tests.tiny_segments import segments_of


class PlainDirectQueue(DirectQueue):
    """A direct queue without bulk enqueues, which give out other ids and places than an `enqueue_many` of few jobs."""

    _bulk_threshold = None


class PlainBrokerQueue(BrokerQueue):
    """A broker without bulk enqueues."""

    _bulk_threshold = None


KINDS: dict[str, type[DirectQueue] | type[BrokerQueue]] = {"direct": PlainDirectQueue, "broker": PlainBrokerQueue}
TASKS = ("jqueue-segment", "jqueue-segments")
"""Names of the tasks that write segments and load rows ahead."""

LIMITS = Limits(object_bytes=200)

COMPARED_HEADER = (
    *("finished", "holds", "attempt_floor", "entrypoints", "recent", "schedules", "settings"),
    *("last_sequence", "queue"),
)
TOLD_OF_THE_BLOB = ("size", "size_limit", "warnings", "version", "segments", "segment_jobs", "segment_bytes")
"""Statistics that may differ: those of the object, and the version, as a row that has expired needs no commit."""


class World:
    """One queue with several queue objects.

    Args:
        sizes: for each queue object, the class of the queue, and the sizes of its segments; None: it writes none.
        limits: of all queue objects.
        claim_timeout: seconds after which a claim without a heartbeat is stale.
    """

    def __init__(self, sizes, limits, claim_timeout):
        self.storage = InMemoryStorage(clock=VirtualClock())
        self._sizes, self._limits, self._claim_timeout = sizes, limits, claim_timeout
        self._opened = 0
        self.queues = []

    async def open(self):
        """Open every queue object."""
        for number in range(len(self._sizes)):
            self.queues.append(await self._open(number))

    async def reopen(self, number):
        """Close one queue object, and open another in its place."""
        await self.queues[number].__aexit__(None, None, None)
        self.queues[number] = await self._open(number)

    async def close(self):
        """Close every queue object."""
        for queue in self.queues:
            await queue.__aexit__(None, None, None)

    async def _open(self, number):
        kind, sizes = self._sizes[number]
        self._opened += 1
        name = f"{kind}{self._opened}"
        queue = KINDS[kind](
            self.storage,
            stale_timeout=self._claim_timeout,
            limits=self._limits,
            holder=f"h{number}",
            clock=VirtualClock(),
            entropy=Draws(name),
        )
        queue._engine.entropy = Draws(f"engine-{name}")  # names of segments must not use up the ids of jobs
        if sizes is not None:
            written, loaded = sizes
            segments = segments_of(queue)
            segments.writer.sizes = SegmentSizes(**written)
            segments.loader.rows_kept, segments.loader.rows_ahead = loaded
        return await queue.__aenter__()

    async def waiting_rows(self):
        """Return all rows in segments that are not taken, read without the loader: segment, number and job."""
        header, reader = await self.queues[0].read_state(), self.queues[0]._engine.segments.reader
        found = []
        for name, segment in header.segments.items():
            index = await reader.index(name, segment)
            for _, rows in await reader.chunks(name, segment, index, range(segment.chunks)):
                found += [
                    (name, row, unpacked(job_id, entry)) for row, job_id, entry in rows if not segment.is_taken(row)
                ]
        return header, found

    async def bring_up(self, number):
        """Load all rows into a queue object, and drop what has expired."""
        queue = self.queues[number]
        loader = queue._engine.segments.loader
        kept, loader.rows_kept = loader.rows_kept, 1000
        await queue._engine.refresh()
        while not await self._has_all_rows(queue._engine):
            pass
        await queue.dequeue(batch_size=0)
        loader.rows_kept = kept

    @staticmethod
    async def _has_all_rows(engine):
        """Return True if all rows are loaded. If not, load some that are missing."""
        try:
            engine.draft.jobs.rows.require(list(engine.draft.jobs.rows.segments))
        except RowsMissingError as missing:
            await engine.segments.loader.load(missing.wanted, engine.draft, fresh=True)
            return False
        return True


async def background(turns):
    """Let segments be written and rows be loaded, for a number of turns of the loop."""
    for _ in range(turns):
        if not any(task.get_name() in TASKS for task in asyncio.all_tasks()):
            return
        await asyncio.sleep(0)


def told(value):
    """Return an answer in a form in which two answers can be compared."""
    if isinstance(value, Job):
        return {name: getattr(value, name) for name in Job.model_fields}
    if isinstance(value, ClaimLostError):  # its text tells that the job has left, or where it is
        return type(value), value.job_id, value.attempt
    if isinstance(value, BaseException):
        return type(value), str(value)
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    return value


def is_expired(job, now):
    """Return True if a waiting job has expired, and is only dropped when it comes up."""
    return job.status is JobStatus.QUEUED and job.expires_at is not None and job.expires_at <= now


async def picture(world, now):
    """Return what a user sees of a queue, and the number of expired jobs that still stand in it."""
    queue = world.queues[-1]
    state, stats = await queue.read_state(), await queue.stats()
    jobs = [job async for job in queue.iterate_jobs()]
    jobs.sort(key=lambda job: job.id)
    assert len({job.id for job in jobs}) == len(jobs), "a job is in two places"
    expired = [job for job in jobs if is_expired(job, now)]
    seen = {name: getattr(state, name) for name in COMPARED_HEADER}
    seen["jobs"] = [told(job) for job in jobs if not is_expired(job, now)]
    seen["critical"] = [name for name in state.critical if name != "segments"]
    seen["schedules said"] = await queue.schedules()
    figures = {"": stats, **(stats.entrypoints or {})}
    seen["figures"] = {name: figures_of(each) for name, each in figures.items()}
    del seen["figures"][""]["totals"]  # the sum of the others, in the order in which they were added
    seen["holders"] = stats.holders
    return seen, stats.version, Counter(job.entrypoint for job in expired)


def figures_of(stats):
    """Return the figures of an entrypoint, or of all."""
    names = [field.name for field in dataclasses.fields(stats)]
    left_out = (*TOLD_OF_THE_BLOB, "entrypoints", "holders", "workers")
    return {name: getattr(stats, name) for name in names if name not in left_out}


async def check_manifest(world):
    """Check that the manifest tells the truth about the rows in segments."""
    header, rows = await world.waiting_rows()
    hot = {job.id for job in header.jobs}
    assert len({job.id for *_, job in rows}) == len(rows), "a job has two rows"
    assert not hot & {job.id for *_, job in rows}, "a job is in the blob, and waits in a segment"
    for name, segment in header.segments.items():
        jobs = [job for said, _, job in rows if said == name]
        assert len(jobs) == segment.waiting > 0
        assert {job.entrypoint for job in jobs} == {segment.entrypoint}
        assert all(job.status is JobStatus.QUEUED for job in jobs)
        since = [(job.run_at or job.created_at).timestamp() for job in jobs]
        assert segment.oldest <= min(since) + 1e-6
        assert segment.least <= min(job.sequence for job in jobs)
        assert segment.keys >= sum(job.unique_key is not None for job in jobs)
        assert segment.objects >= sum(len(list(objects_of(job))) for job in jobs)
        if segment.scheduled:
            assert segment.head.since <= min(since) + 1e-6
            assert since == sorted(since)
        else:
            rank = [
                (job.priority if segment.aging is None else job.priority * segment.aging + at, job.sequence)
                for job, at in zip(jobs, since, strict=True)
            ]
            assert rank == sorted(rank)
            assert (segment.head.rank(segment.aging), segment.head.sequence) <= min(rank)
    return len(header.segments)


def moment(loop):
    """Return the time that the queues see."""
    return EPOCH + timedelta(seconds=loop.time())
