"""Results, errors and rules stay within the size limit of the queue's object, and whoever gives them is told."""

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits
from jqueue.domain.errors import JobFailedError, QueueFullError, ResultNotKeptError
from jqueue.domain.limits import ENTRYPOINTS_KEPT
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.rules import Pause, Resume
from jqueue.operations import Enqueue

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


async def size_of(storage):
    data, _ = await storage.read()
    return len(data)


@both
async def test_results_of_60_kb_stay_within_the_limit_and_acks_say_which_were_dropped(kind):
    storage = InMemoryStorage()
    async with kind(storage) as queue:
        await queue.configure(blob_bytes=1_000_000)
        await queue.enqueue_many([Enqueue("t", b"", job_id=f"{n}", keep_result=3600) for n in range(40)])
        jobs = await queue.dequeue(batch_size=40)
        dropped = [await queue.apply(Ack(job, "x" * 60_000)) for job in jobs[:20]]
        dropped += [[result] for result in await queue.apply_each(*[Ack(job, "x" * 60_000) for job in jobs[20:]])]
        assert await size_of(storage) <= 1_000_000
        kept = [job for job, [lost] in zip(jobs, dropped, strict=True) if lost is None]
        assert 13 <= len(kept) <= 16
        assert "x" * 60_000 == await queue.result(kept[0])
        with pytest.raises(
            ResultNotKeptError, match=r"its result of 60,002 bytes was not kept: the queue had no room"
        ) as found:
            await queue.result(jobs[-1], timeout=0)
        assert 60_002 == found.value.dropped
        assert [60_002] == await queue.apply(Ack(jobs[-1], "x" * 60_000)), "an ack that is repeated says the same"
        stats = await queue.stats()
        assert (40, 40 - len(kept)) == (stats.completed, stats.results_dropped)
        assert f"{40 - len(kept)} results were dropped because the queue had no room" in stats.warnings[-1]


@both
async def test_long_errors_stay_within_the_limit_shortened_first_and_then_dropped(kind):
    storage = InMemoryStorage()
    async with kind(storage, limits=Limits(blob_bytes=100_000)) as queue:
        await queue.enqueue_many([Enqueue("t", b"x" * 160, job_id=f"{n}") for n in range(180)])
        jobs = await queue.dequeue(batch_size=180)
        for start in range(0, 180, 30):
            nacks = [Nack(job, error=f"{start} " + "é" * 2000, dead=True) for job in jobs[start : start + 30]]
            assert not [result for result in await queue.apply_each(*nacks) if isinstance(result, Exception)]
        assert await size_of(storage) <= 100_000
        state = {job.id: job for job in (await queue.read_state()).dead_jobs()}
        sizes = [len((state[job.id].error or "").encode()) for job in jobs]
        whole, short, gone = (
            [size for size in sizes if low <= size <= high] for low, high in ((2000, 2048), (100, 120), (0, 0))
        )
        assert (180, True, True, True) == (len(whole) + len(short) + len(gone), bool(whole), bool(short), bool(gone))
        last = state[jobs[-1].id]
        assert (None, True) == (last.error, last.error_dropped > 2000)
        with pytest.raises(JobFailedError, match=r"is dead .*bytes of its error were not kept"):
            await queue.result(last)
        assert len(short) + len(gone) == (await queue.stats()).errors_dropped


async def test_a_full_queue_drops_the_traceback_of_an_error_before_the_error():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=4000))
    await queue.enqueue("t", b"x" * 1500)
    for frames, kept in (("mail.py:17 in send\n" * 10, True), ("mail.py:17 in send\n" * 50, False)):
        [job] = await queue.dequeue()
        await queue.apply(Nack(job, error="no such address " * 40, traceback=frames))
        [job] = (await queue.read_state()).jobs
        assert ("no such address " * 40, 0) == (job.error, job.error_dropped)
        assert job.traceback == (frames if kept else None)


async def test_a_result_no_larger_than_the_payload_that_it_replaces_always_fits():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=100_000))
    await queue.enqueue_many([Enqueue("t", b"x" * 8000, keep_result=60)] * 8)
    await queue.configure(blob_bytes=1)
    jobs = await queue.dequeue(batch_size=8)
    assert [None] * 8 == await queue.apply_each(*[Ack(job, "y" * 10_000) for job in jobs])


async def test_a_thousand_entrypoints_have_limits_and_one_more_is_refused():
    queue = DirectQueue(InMemoryStorage())
    await queue.apply(*[Pause(f"{n}") for n in range(ENTRYPOINTS_KEPT)])
    for call in (queue.pause("one more"), queue.limit("one more", running=1)):
        with pytest.raises(QueueFullError, match="1000 entrypoints have limits or pauses"):
            await call
    await queue.limit("7", running=1)
    await queue.apply(Resume("8"), Pause("one more"))
