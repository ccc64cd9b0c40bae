"""The errors of a job's attempts never take more room than there is."""

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.limits import Limits
from jqueue.domain.operations.claims import ATTEMPT_ERROR_BYTES, ERRORS_KEPT
from jqueue.operations import Enqueue


async def failed(queue, times, error):
    """Return a job that has failed some times."""
    job = await queue.enqueue("work", b"")
    for _ in range(times):
        [claimed] = await queue.dequeue("work")
        await queue.nack(claimed, error=error)
    return (await queue.read_state()).find(job.id)


async def test_each_error_is_cut_and_only_the_last_are_kept():
    job = await failed(DirectQueue(InMemoryStorage()), 20, "\N{SNOWMAN}" * 5000)
    assert [16, 17, 18, 19, 20] == [error.attempt for error in job.errors]
    assert all(ATTEMPT_ERROR_BYTES - 3 < len(error.text.encode()) <= ATTEMPT_ERROR_BYTES for error in job.errors)


async def test_a_full_queue_drops_the_oldest_errors_first():
    storage = InMemoryStorage()
    queue = DirectQueue(storage, limits=Limits(blob_bytes=20_000))
    await queue.enqueue_many([Enqueue("work")] * 40)
    for _ in range(ERRORS_KEPT):
        jobs = await queue.dequeue("work", batch_size=40)
        assert [] == await queue.nack_many(jobs, error="e" * 2000)
    _, _, lines = (await storage.read())[0].partition(b"\n")
    assert len(lines) <= 20_000
    kept = [[error.attempt for error in job.errors] for job in (await queue.read_state()).jobs]
    assert all(attempts == [1, 2, 3, 4, 5][-len(attempts) :] for attempts in kept if attempts)
    assert any(len(attempts) < ERRORS_KEPT for attempts in kept)
