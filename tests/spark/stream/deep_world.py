"""A queue in a file whose waiting jobs are in small segments, with streaming queries, and an audit of its jobs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.stream.query_claims import BatchSizes
from jqueue.spark.stream.source import ClaimReader
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.faults import FaultyObjects
from tests.spark.stream.stream_driver import Checkpoint, Sink
from tests.spark.stream.stream_world import LIMITS, StreamWorld
from tests.tiny_segments import in_segments, spilled

World = TypeVar("World", bound="DeepWorld")

SIZES = BatchSizes(singles=1000, ranges=10, least=4)


class DeepWorld(StreamWorld):
    """The same world with a deep queue: a batch has ranges and single jobs.

    Args:
        folder: has the file of the queue, which tasks read.
        options: of the query.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(**options)
        self.clock = FakeClock()
        self.memory = LocalFileSystemStorage(folder / "queue.json")  # type: ignore[assignment]
        self.storage = FaultyObjects(self.memory)
        self.options["path"] = str(folder / "queue.json")
        self.checkpoint, self.sink = Checkpoint(), Sink()

    def have(self, work: Callable[[DirectQueue], Any]) -> Any:
        """Run a function on the queue in place of another process, which moves waiting jobs to segments."""

        async def do() -> Any:
            async with in_segments(DirectQueue(self.memory, clock=self.clock, limits=LIMITS)) as queue:
                return await work(queue)

        return asyncio.run(do())

    def enqueue(self, count: int, entrypoint: str = "work", payload: bytes = b"payload", **fields: Any) -> list[str]:
        """Enqueue jobs, move them to segments, and return their ids."""

        async def work(queue: DirectQueue) -> list[str]:
            jobs = await queue.enqueue_many([Enqueue(entrypoint, payload, **fields)] * count)
            await spilled(queue)
            return [job.id for job in jobs]

        ids: list[str] = self.have(work) if count else []
        self.enqueued += ids
        return ids

    @property
    def jobs(self) -> list[Job]:
        """The jobs of the queue now."""

        async def work(queue: DirectQueue) -> list[Job]:
            return [job async for job in queue.iterate_jobs()]

        jobs: list[Job] = asyncio.run(work(DirectQueue(self.memory, clock=self.clock)))
        return [job for job in jobs if job.status != "completed"]

    @property
    def ranges(self) -> int:
        """Number of ranges that are claimed."""
        return len(self.have(lambda queue: queue.read_state()).ranges)

    def reader(self, **options: Any) -> ClaimReader:
        """A source of the query."""
        given = {**self.options, **{k: str(v) for k, v in options.items()}}
        return ClaimReader(given, SNAPSHOT_SCHEMA, opened=self.open, sizes=SIZES)


def filled(world: World) -> World:
    """Enqueue 25 jobs, of which some can be in ranges, and some cannot. Return the world."""
    world.enqueue(12)
    world.enqueue(2, keep_result=60)
    world.enqueue(11)
    return world
