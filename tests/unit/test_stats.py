"""Figures and warnings about the size of a queue."""

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.limits import Limits
from jqueue.operations import Enqueue


async def test_ids_of_finished_jobs_do_not_make_an_empty_queue_look_full():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=30_000))
    for number in range(30):
        await queue.enqueue_many(
            [Enqueue("t", b"", job_id=f"a long id of a job {number}-{each}") for each in range(20)]
        )
        await queue.ack_many(await queue.dequeue(batch_size=20))
    stats = await queue.stats()
    assert stats.size > 0.5 * stats.size_limit
    assert () == stats.warnings


async def test_a_queue_more_than_half_full_by_the_count_of_enqueue_warns():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=30_000))
    await queue.enqueue_many([Enqueue("t", b"x" * 1000)] * 12)
    [warning] = (await queue.stats()).warnings
    assert "% full" in warning


async def test_a_queue_that_jobs_of_many_entrypoints_fill_says_why_they_stay_in_its_object():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=150_000))
    await queue.enqueue_many([Enqueue(f"of {number}", b"x" * 100) for number in range(256)])
    [full] = (await queue.stats()).warnings
    assert "% full" in full
    await queue.enqueue("of 256")
    _, warning = (await queue.stats()).warnings
    assert "257 entrypoints have waiting jobs" in warning
    assert "at most 256 segments" in warning
