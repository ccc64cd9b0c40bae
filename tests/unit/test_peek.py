"""Reads of a queue that claim nothing: peek, find and until_ready."""

import asyncio

from jqueue import InMemoryStorage, JobStatus
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.virtual_time import VirtualClock
from tests.sets_of_queues import blob
from tests.virtual_world import in_virtual_time, now


class TestPeek:
    @in_virtual_time
    async def test_a_peek_shows_the_jobs_of_the_next_dequeue_and_changes_nothing(self):
        queue = blob()
        for number in range(6):
            await queue.enqueue("work", b"secret", number % 3, job_id=f"{number}", concurrency_key="one")
        await queue.enqueue("work", b"", 2, job_id="free")
        before = await queue.read_state()
        shown = await queue.peek(batch_size=9)
        assert before == await queue.read_state()
        assert ["0", "free"] == [job.id for job in shown]
        assert [b"", b""] == [job.payload for job in shown]
        assert ["0", "free"] == [job.id for job in await queue.dequeue(batch_size=9)]
        assert [] == await queue.peek()

    @in_virtual_time
    async def test_a_peek_sees_the_commits_of_another_queue_object(self):
        storage = InMemoryStorage(clock=VirtualClock())
        queue, other = blob(storage), blob(storage)
        await queue.enqueue("work", b"", job_id="a")
        await other.enqueue("work", b"", priority=-1, job_id="b")
        assert ["b"] == [job.id for job in await queue.peek()]
        await other.dequeue(batch_size=2)
        assert [] == await queue.peek()

    async def test_a_peek_sees_jobs_that_another_queue_object_puts_into_a_folder(self, tmp_path):
        queue = StoreQueue(VsqsFolder(tmp_path / "folder"))
        other = StoreQueue(VsqsFolder(tmp_path / "folder"))
        job = await other.enqueue("work", b"payload")
        assert [job.id] == [job.id for job in await queue.peek()]
        waiting = asyncio.create_task(queue.until_ready("mail", wait=30))
        await other.enqueue("mail", b"")
        assert await waiting
        await other.dequeue("work")
        assert [] == await queue.peek("work")
        assert not await queue.until_ready("work", wait=0.05)

    async def test_a_peek_beside_other_calls_sees_jobs_of_another_queue_object(self, tmp_path):
        queue = StoreQueue(VsqsFolder(tmp_path / "folder", fsync=False))
        other = StoreQueue(VsqsFolder(tmp_path / "folder", fsync=False))
        assert [] == await queue.peek()
        first = await other.enqueue("work", b"")
        own, seen = await asyncio.gather(queue.enqueue("work", b""), queue.peek(batch_size=9))
        assert first.id in [job.id for job in seen]
        assert own.id != first.id

    @in_virtual_time
    async def test_find_returns_a_job_by_its_id(self):
        queue = blob()
        await queue.enqueue("work", b"payload", job_id="here")
        found = await queue.find("here")
        assert found is not None
        assert (JobStatus.QUEUED, b"") == (found.status, found.payload)
        assert await queue.find("nowhere") is None
        [job] = await queue.dequeue()
        await queue.ack(job)
        finished = await queue.find("here")
        assert finished is not None
        assert (JobStatus.COMPLETED, 1) == (finished.status, finished.attempt)

    @in_virtual_time
    async def test_a_wait_ends_with_a_cron_entry_that_is_due(self):
        queue = blob()
        await queue.schedule("often", "* * * * *", "work")
        assert [] == await queue.peek()
        assert await queue.until_ready(wait=90)
        assert now() <= 60.1
