"""A queue on a store of jobs keeps a mirror, and never answers from one that is out of date."""

import asyncio

from jqueue.domain.errors import ClaimLostError
from jqueue.formats import engine as store_engine
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue


async def test_a_claim_made_elsewhere_is_known_beside_claims_that_need_no_read(tmp_path):
    async with (
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue,
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as other,
    ):
        for number in range(4):
            await queue.enqueue("work", b"%d" % number)
        mine, lost = await queue.dequeue(batch_size=2)
        [theirs, more] = await other.dequeue(batch_size=2)
        assert await queue.ack_many([mine, theirs]) == []
        await other.nack(more)
        [error] = await queue.ack_many([lost, more])
        assert isinstance(error, ClaimLostError)


async def test_admin_calls_include_the_jobs_of_other_queue_objects(tmp_path):
    async with (
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue,
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as other,
    ):
        for number in range(4):
            await queue.enqueue("work", b"%d" % number)
        for nacking in (queue, other):
            for job in await nacking.dequeue(batch_size=2):
                await nacking.nack(job, dead=True)
        assert await queue.redrive() == 4
        for nacking in (queue, other):
            for job in await nacking.dequeue(batch_size=2):
                await nacking.nack(job, dead=True)
        assert await queue.purge() == 4
        for number in range(2):
            await queue.enqueue("work", b"%d" % number)
        assert [len(await claiming.dequeue(batch_size=1)) for claiming in (queue, other)] == [1, 1]
        assert await queue.requeue_stale(0) == 2


async def test_a_job_that_another_program_added_is_found_beside_a_call_that_needs_no_read(tmp_path):
    async with (
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue,
        StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as other,
    ):
        await queue.enqueue("work", b"1")
        theirs = await other.enqueue("work", b"2")
        _, found = await asyncio.gather(queue.enqueue("work", b"3"), queue.find(theirs.id))
        assert theirs.evolve(payload=b"") == found


async def test_only_the_last_acks_are_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(store_engine, "FINISHED_KEPT", 100)
    async with StoreQueue(DirqSimple(tmp_path / "queue", fsync=False)) as queue:
        for _ in range(4):
            await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(500)))
            jobs = await queue.dequeue(batch_size=500)
            assert await queue.ack_many(jobs) == []
        await queue.ack(jobs[-1])
        remembered = queue._writer.engine.draft.header.finished
        assert len(remembered) < 1_200, "the last thousand acks of the folder, and a few of its own"
