"""Reads of a queue that claim nothing: peek, find and until_ready."""

import asyncio
import pickle
from datetime import UTC, datetime

import pytest

from jqueue import BrokerQueue, InMemoryStorage, JobStatus, QueueMissingError, QueueSet, connect, connect_queue
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
        await queue.dequeue()
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
        for job in (found, *await queue.peek(), pickle.loads(pickle.dumps(found))):
            assert "payload='<not loaded>'" in repr(job)
        assert "payload='<7 bytes>'" in repr((await queue.read_state()).jobs[0])
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


async def consumed(items):
    return [item async for item in items]


LOOKS = {
    "stats": lambda queue: queue.stats(),
    "peek": lambda queue: queue.peek("work"),
    "find": lambda queue: queue.find("an-id"),
    "iterate_jobs": lambda queue: consumed(queue.iterate_jobs()),
    "schedules": lambda queue: queue.schedules(),
    "settings": lambda queue: queue.configure(),
    "history": lambda queue: consumed(queue.history()),
    "jobs_at": lambda queue: queue.jobs_at(datetime.now(UTC)),
}
"""Calls that only look at a queue."""


class TestAQueueThatDoesNotExist:
    @pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
    async def test_a_look_is_an_error_that_names_the_place_and_creates_nothing(self, tmp_path, look):
        async with connect(tmp_path / "mistyped.json", BrokerQueue) as queue:
            with pytest.raises(QueueMissingError, match=r"no queue at .*mistyped\.json.*: check the URL"):
                await look(queue)
            assert [] == list(tmp_path.glob("*.json"))
            await queue.enqueue("work", job_id="an-id")
            if look not in (LOOKS["history"], LOOKS["jobs_at"]):  # there is no history yet
                await look(queue)

    @pytest.mark.parametrize("look", ["stats", "peek", "find", "iterate_jobs"])
    @pytest.mark.parametrize("url", ["vsqs://{}/q", "dirq://{}/q?kind=simple", "textq://{}/q.tq"])
    async def test_a_look_is_an_error_for_the_formats_of_older_programs(self, tmp_path, url, look):
        async with connect_queue(url.format(tmp_path)) as queue:
            with pytest.raises(QueueMissingError):
                await LOOKS[look](queue)
            await queue.enqueue("work")
            await LOOKS[look](queue)

    @in_virtual_time
    async def test_consumers_wait_for_it_and_the_state_is_empty_as_in_the_first_version(self):
        storage = InMemoryStorage(clock=VirtualClock())
        queue = blob(storage)
        assert () == (await queue.read_state()).jobs
        assert [] == await queue.dequeue("work")
        assert 0 == await queue.requeue_stale(0)
        waiting = asyncio.create_task(queue.dequeue("work", wait=60))
        await asyncio.sleep(10)
        job = await blob(storage).enqueue("work")
        assert [job.id] == [claimed.id for claimed in await waiting]

    async def test_a_set_serves_its_other_queues_and_warns_of_it(self, tmp_path):
        there = connect(tmp_path / "there.json", BrokerQueue)
        async with QueueSet(there, connect(tmp_path / "mistyped.json", BrokerQueue)) as queues:
            with pytest.raises(QueueMissingError):
                await queues.stats()
            await there.enqueue("work", job_id="an-id")
            stats = await queues.stats()
            assert 1 == stats.depth
            assert "mistyped.json" in stats.warnings[0]
            assert ["an-id"] == [job.id for job in await consumed(queues.iterate_jobs())]
            assert ["an-id"] == [job.id for job in await queues.dequeue("work")]
