"""Queues with a history, lakes of it, and runs that are killed: all without Spark, in this process."""

import asyncio
import shutil
from io import BytesIO
from itertools import count, repeat
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.direct import DirectQueue
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Enqueue
from jqueue.spark.lake.archive import Archiver
from jqueue.spark.lake.events import NO_ENTRYPOINT, ROWS, rows_of
from jqueue.spark.lake.marker import decode
from jqueue.spark.lake.store import MARKER, FolderFile, LakeStore, open_lake

FEW = 7
"""Number of events in the outbox above which it is moved."""


def work(path, do, few=FEW, kind=DirectQueue, **options):
    """Let `do` work with a queue that moves its events soon, and wait until they have moved."""

    async def go():
        queue = kind(LocalFileSystemStorage(path), limits=Limits(hot_bytes=options.pop("hot_bytes", None)), **options)
        async with queue:
            queue._engine.history.events_per_object = few
            if queue._engine.segments is not None:
                queue._engine.segments.writer.sizes = SegmentSizes(hot_bytes=1, fewest_rows=1, chunk_rows=4)
            if (await queue.read_state()).history is None:
                await queue.configure(history=1e9)
            result = await do(queue)
            await queue._engine.finish(10)
            return result

    return asyncio.run(go())


async def some_jobs(queue, number=12, entrypoint="mail"):
    """Make about three events for each of some jobs, in several commits."""
    for _ in range(0, number, 4):
        await queue.enqueue_many([Enqueue(entrypoint, b"payload")] * 4)
        jobs = await queue.dequeue(batch_size=4)
        for job in jobs[:-1]:
            await queue.ack(job)
        for job in jobs[-1:]:
            await queue.nack(job, error=ValueError("no"))
        await queue._engine.finish(10)


def history_of(path, name=None):
    """The events of a queue, as rows of a lake, the oldest first."""

    async def read():
        async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
            state = await queue.read_state()
            return state.queue, [event async for event in queue.history()]

    queue, events = asyncio.run(read())
    found = []
    for event in reversed(events):
        found.append((str(name or path), queue, *values_of(event), event.at.date().isoformat(), event.entrypoint))
    return found


def values_of(event):
    """An event in the columns of a lake, but for its queue."""
    return *(getattr(event, column) for column in ROWS.names[2:-1]), rows_of(event.rows)


def rows_in(lake, names):
    """The events in files of a lake, in order of queue and number."""
    rows = []
    for name in names:
        day, entrypoint = (part.partition("=")[2] for part in name.split("/")[:2])
        told = None if entrypoint == NO_ENTRYPOINT else unquote(entrypoint)
        table = pq.read_table(BytesIO((Path(lake) / name).read_bytes()), partitioning=None)
        rows += [(*row.values(), day, told) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row[0], row[2]))


def marker_of(lake):
    return decode(Path(f"{lake}{MARKER}").read_bytes(), str(lake))


def committed(lake):
    """The events of a lake: those in the files that its marker names."""
    return rows_in(lake, marker_of(lake).files)


def visible(lake):
    """The events in all files, as a program sees them that does not know the marker."""
    return rows_in(lake, [str(path.relative_to(lake)) for path in Path(lake).glob("day=*/*/[!.]*")])


def archive(lake, *queues, opening=LakeStore, **settings):
    """Archive queues without Spark."""
    settings = {"bytes_each": 2000, "many": 3, **settings}
    archiver = Archiver(str(lake), lambda task, lots: [task.do(lot) for lot in lots], opening=opening, **settings)
    return archiver.run([str(queue) for queue in queues])


class KilledError(Exception):
    """The process is killed, so that none of its later requests is done."""


class Kills:
    """Kills the run before or after one of its requests to the store of the lake; a call opens the store.

    Args:
        at: number of the request, from 0; -1: none.
        after: True if the store still does it.
    """

    def __init__(self, at, *, after=False):
        self.left = count(-at) if at >= 0 else repeat(-1)
        self.after = after
        self.requests: list[str] = []

    def __call__(self, url):
        def opening(url):
            folder, marker = open_lake(url)
            assert isinstance(folder, FolderFile)
            return _Folder(folder.path, self), _Marker(marker, self)

        return LakeStore(url, opening=opening)

    async def step(self, what, request):
        now = next(self.left)
        if now > 0 or (now == 0 and not self.after):
            request.close()
            raise KilledError(what)
        self.requests.append(what)
        answer = await request
        if now == 0:
            raise KilledError(what)
        return answer


class _Folder(FolderFile):
    def __init__(self, path, kills):
        super().__init__(path)
        self.kills = kills

    def beside(self, suffix):
        return _Folder(f"{self.path}{suffix}", self.kills)

    async def read(self):
        return await super().read()

    async def write(self, content, if_match=None):
        return await self.kills.step("write", super().write(content, if_match))

    async def remove(self):
        return await self.kills.step("remove", super().remove())


class _Marker:
    def __init__(self, marker, kills):
        self.marker = marker
        self.kills = kills

    async def read(self):
        return await self.marker.read()

    async def write(self, content, if_match=None):
        return await self.kills.step("commit", self.marker.write(content, if_match))


def copied(source, target):
    """Copy a lake, or a queue with the objects beside it, over another."""
    for path in Path(target).parent.glob(f"{Path(target).name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in Path(source).parent.glob(f"{Path(source).name}*"):
        there = f"{target}{path.name[len(Path(source).name) :]}"
        shutil.copytree(path, there) if path.is_dir() else shutil.copy2(path, there)
