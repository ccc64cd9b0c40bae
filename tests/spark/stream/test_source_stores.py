"""The streaming source on real stores, a file and an S3 server, opened by URL as in the processes of Spark."""

import asyncio

import pytest

from jqueue import BrokerQueue, Limits
from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations import Enqueue
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.stream.source import ClaimReader
from tests.object_stores import BUCKET, store_of
from tests.spark.stream.stream_driver import Checkpoint, Killed, Query, Sink


@pytest.fixture
def file_url(tmp_path):
    return str(tmp_path / "queue.json")


@pytest.fixture
def s3_url(request):
    store = store_of(request, "seaweedfs")
    server = store.server
    return (
        f"s3://{server.access_key}:{server.secret_key}@{BUCKET}/{store.new_key().replace(' ', '%20')}"
        f"?endpoint_url={store.url}&region_name={server.region}"
    )


@pytest.fixture(
    params=["file_url", pytest.param("s3_url", marks=[pytest.mark.full, pytest.mark.xdist_group("seaweedfs")])]
)
def url(request):
    return request.getfixturevalue(request.param)


async def _into_segments(url):
    """Put jobs into segments, by a queue that keeps hardly any in its object."""
    async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
        jobs = await queue.enqueue_many([Enqueue("work", b"payload")] * 1500)
        assert (await queue.stats()).segment_jobs > 1000
        return jobs


async def _hot(url):
    async with connect(url, DirectQueue) as queue:
        return await queue.enqueue_many([Enqueue("work", b"payload")] * 250)


@pytest.mark.parametrize(
    ("fill", "most", "kill_at"),
    [(_hot, 100, step) for step in (2, 9, 13, 17, 40)] + [(_into_segments, 700, step) for step in (2, 7, 11, 40)],
)
def test_every_job_is_delivered_once_and_ended_if_the_driver_dies(url, fill, most, kill_at):
    jobs = asyncio.run(fill(url))
    checkpoint, sink, steps = Checkpoint(), Sink(), []

    def step(name):
        steps.append(name)
        if len(steps) == kill_at:
            raise Killed(name)

    def life():
        options = {"path": url, "maxJobsPerTrigger": str(most)}
        Query(lambda: ClaimReader(options, SNAPSHOT_SCHEMA), checkpoint, sink, step=step).run()

    if kill_at < 30:
        with pytest.raises(Killed):
            life()
    life()
    delivered = sink.ids if fill is _hot else sorted(sink.ids)
    assert ([job.id for job in jobs] if fill is _hot else sorted(job.id for job in jobs)) == delivered
    left = asyncio.run(_left(url))
    assert (0, 0) == (left.depth, left.in_progress)


async def _left(url):
    async with connect(url, DirectQueue) as queue:
        return await queue.stats()
