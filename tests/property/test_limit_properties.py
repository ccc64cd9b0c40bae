"""Values at a limit are accepted and read back. Values one beyond are refused, and no byte changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage, InvalidJobError, Limits, QueueFullError
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock, run

pytestmark = pytest.mark.wide
FEW = settings(max_examples=10, deadline=None)


class Trial:
    """A queue with limits of its own, whose jobs stay in the blob; another queue object reads what it wrote."""

    def __init__(self, **limits):
        self.storage = InMemoryStorage(clock=VirtualClock())
        self.queue = DirectQueue(self.storage, limits=Limits(hot_bytes=None, **limits), clock=VirtualClock())

    async def job_bytes(self):
        """Bytes of the blob that the lines of the jobs take."""
        content, _ = await self.storage.read()
        return len(content) - content.index(b"\n")

    async def refuses(self, call, error=InvalidJobError):
        """A call is refused, and changes nothing."""
        before = await self.storage.read()
        with pytest.raises(error):
            await call
        assert before == await self.storage.read()


@FEW
@given(st.integers(4_000, 20_000), st.integers(0, 800), st.booleans())
def test_a_full_queue_takes_no_job_and_can_be_worked_off(room, size, together):
    async def try_it():
        trial = Trial(blob_bytes=room)
        queue = trial.queue
        taken = 0
        with pytest.raises(QueueFullError):
            for _ in range(room):
                await (queue.apply(Enqueue("t", b"x" * size)) if together else queue.enqueue("t", b"x" * size))
                taken += 1
        full, there = await queue.stats(), await trial.job_bytes()
        assert full.depth == taken
        assert there <= full.size_limit == int(room * 0.9)
        assert full.size_limit - there < size * 4 / 3 + 400 + 120 * taken, "another job would have fit"
        await trial.refuses(queue.enqueue("t", b"x" * size), QueueFullError)
        await trial.refuses(queue.enqueue_many([Enqueue("t", b"x" * size)] * taken), QueueFullError)
        jobs = await queue.dequeue(batch_size=taken)
        assert taken == len(jobs)
        assert [] == await queue.heartbeat_many(jobs)
        assert [] == await queue.nack_many(jobs[1:], error="e" * 3000)
        await queue.ack(jobs[0])
        assert taken - 1 == await queue.purge() + len(await queue.dequeue(batch_size=taken))

    run(try_it())


@FEW
@given(st.data())
def test_claims_and_short_errors_of_jobs_of_two_kilobytes_fit_into_the_free_tenth(data):
    async def try_it():
        room = 60_000
        trial = Trial(blob_bytes=room)
        queue = trial.queue
        with pytest.raises(QueueFullError):
            for _ in range(room):
                await queue.enqueue("t", b"x" * data.draw(st.integers(2000, 4000)), max_attempts=2)
        for _ in range(4):
            jobs = await queue.dequeue(batch_size=100)
            assert await trial.job_bytes() <= room
            acked = data.draw(st.integers(0, len(jobs)))
            await queue.ack_many(jobs[:acked])
            await queue.nack_many(jobs[acked:], error="e" * data.draw(st.integers(0, 40)))
            assert await trial.job_bytes() <= room

    run(try_it())
