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


def _call_queue(url, work):
    async def do():
        async with connect(url, DirectQueue) as queue:
            return await work(queue)

    return asyncio.run(do())


async def _into_segments(url):
    """Put jobs into segments, by a queue that keeps hardly any in its object."""
    async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
        jobs = await queue.enqueue_many([Enqueue("work", b"payload")] * 1500)
        assert (await queue.stats()).segment_jobs > 1000
        return jobs


@pytest.mark.parametrize("kill_at", [2, 7, 11, 40])
def test_every_job_of_a_deep_queue_is_delivered_once_if_the_driver_dies(url, kill_at):
    jobs = asyncio.run(_into_segments(url))
    checkpoint, sink, steps = Checkpoint(), Sink(), []

    def step(name):
        steps.append(name)
        if len(steps) == kill_at:
            raise Killed(name)

    def life():
        options = {"path": url, "maxJobsPerTrigger": "700"}
        Query(lambda: ClaimReader(options, SNAPSHOT_SCHEMA), checkpoint, sink, step=step).run()

    if kill_at < 30:
        with pytest.raises(Killed):
            life()
    life()
    assert sorted(job.id for job in jobs) == sorted(sink.ids)
    assert 0 == _call_queue(url, lambda queue: queue.stats()).depth
    assert 0 == _call_queue(url, lambda queue: queue.stats()).in_progress


@pytest.mark.parametrize("kill_at", [2, 9, 13, 17, 40])
def test_every_job_is_delivered_once_and_acked_if_the_driver_dies(url, kill_at):
    jobs = _call_queue(url, lambda queue: queue.enqueue_many([Enqueue("work", b"payload")] * 250))
    checkpoint, sink, steps = Checkpoint(), Sink(), []

    def step(name):
        steps.append(name)
        if len(steps) == kill_at:
            raise Killed(name)

    def life():
        options = {"path": url, "maxJobsPerTrigger": "100"}
        Query(lambda: ClaimReader(options, SNAPSHOT_SCHEMA), checkpoint, sink, step=step).run()

    if kill_at < 30:
        with pytest.raises(Killed):
            life()
    life()
    assert [job.id for job in jobs] == sink.ids
    assert () == _call_queue(url, lambda queue: queue.read_state()).jobs
