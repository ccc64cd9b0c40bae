"""Unique keys: no two live jobs have the same key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jqueue.domain.errors import DuplicateJobError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class KeysContract(QueueContractBase):
    """While a job with a unique key is queued, scheduled or in progress, no second job can have that key."""

    @pytest.mark.parametrize("state", ["queued", "scheduled", "in progress", "given back"])
    async def test_a_live_job_holds_its_key(self, make_queue: QueueFactory, state: str) -> None:
        async with self.queues(make_queue, 2, ["unique_keys", "delay"]) as [queue, other]:
            delay = HOUR if state == "scheduled" else None
            holder = await queue.enqueue("work", b"payload", unique_key="the-key", delay=delay)
            if state in ("in progress", "given back"):
                [job] = await queue.dequeue()
                if state == "given back":
                    await queue.nack(job)
            held = await self.held(queue, holder)
            before = await self.fingerprint(queue)
            assert held == await other.enqueue("other", b"another", unique_key="the-key")
            with pytest.raises(DuplicateJobError, match="the-key") as raised:
                await other.enqueue("work", b"another", unique_key="the-key", on_conflict="raise")
            assert (raised.value.unique_key, raised.value.job_id) == ("the-key", holder.id)
            assert before == await self.fingerprint(queue)

    @pytest.mark.parametrize("state", ["queued", "in progress", "dead", "acked"])
    async def test_an_id_that_is_taken_is_refused_if_asked(self, make_queue: QueueFactory, state: str) -> None:
        async with self.queues(make_queue, 2, ["job_ids", "unique_keys", "dead_letters"]) as [queue, other]:
            there = await queue.enqueue("work", b"payload", job_id="the-id")
            if state != "queued":
                [job] = await queue.dequeue()
                if state != "in progress":
                    await (queue.ack(job) if state == "acked" else queue.nack(job, dead=True))
            before = await self.fingerprint(queue)
            with pytest.raises(DuplicateJobError, match="Job id 'the-id' is taken: that job ") as raised:
                await other.enqueue("work", b"another", job_id="the-id", on_conflict="raise")
            assert (raised.value.unique_key, raised.value.job_id) == (None, "the-id")
            many = [Enqueue("work", b"%d" % n, job_id=f"{n}-id", on_conflict="raise") for n in range(5)]
            with pytest.raises(DuplicateJobError):
                await other.enqueue_many([*many, Enqueue("work", job_id="the-id", on_conflict="raise")])
            assert before == await self.fingerprint(queue)
            assert there.id == (await other.enqueue("work", b"another", job_id="the-id")).id

    async def test_other_keys_are_free(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["unique_keys"]) as [queue]:
            enqueued = [
                await queue.enqueue("work", b"payload", unique_key=key, on_conflict="raise")
                for key in ("the-key", "The-key", "the-key ", None, None)
            ]
            assert len(set(ids(enqueued))) == 5

    @pytest.mark.parametrize("ending", ["ack", "cancel", "dead", "purge"])
    async def test_a_job_that_is_not_live_holds_no_key(self, make_queue: QueueFactory, ending: str) -> None:
        async with self.queues(make_queue, 1, ["unique_keys", "dead_letters"]) as [queue]:
            first = await queue.enqueue("work", b"payload", unique_key="the-key")
            if ending == "cancel":
                await queue.cancel(first.id)
            elif ending == "purge":
                assert await queue.purge(status=JobStatus.QUEUED) == 1
            else:
                [job] = await queue.dequeue()
                await (queue.ack(job) if ending == "ack" else queue.nack(job, dead=True))
            second = await queue.enqueue("work", b"payload", unique_key="the-key", on_conflict="raise")
            assert first.id != second.id

    async def test_a_job_that_has_expired_holds_neither_its_key_nor_its_id(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["unique_keys", "expiry", "job_ids"]) as [queue]:
            past = await self.time(queue) - HOUR
            await queue.enqueue("work", b"too late", unique_key="the-key", expires_at=past)
            await queue.enqueue("work", b"too late", job_id="the-id", expires_at=past)
            await queue.enqueue("work", b"in time", unique_key="the-key")
            await queue.enqueue("work", b"in time", job_id="the-id")
            served = await queue.dequeue("work", batch_size=9)
            assert [job.payload for job in served] == [b"in time"] * 2, (
                "an expired job kept a new one with its key or id out"
            )

    async def test_a_queued_job_is_replaced_if_asked(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["unique_keys"]) as [queue, other]:
            old = await queue.enqueue("work", b"old", unique_key="the-key")
            between = await queue.enqueue("work", b"between")
            new = await other.enqueue("work", b"new", unique_key="the-key", on_conflict="replace")
            assert await self.find(queue, old) is None
            assert [between.id, new.id] == ids(await queue.dequeue(batch_size=9)), "the new job must be served last"

    async def test_a_job_in_progress_is_not_replaced(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["unique_keys"]) as [queue]:
            job = await self.one_job(queue, unique_key="the-key")
            before = await self.fingerprint(queue)
            with pytest.raises(DuplicateJobError, match="in_progress"):
                await queue.enqueue("work", b"new", unique_key="the-key", on_conflict="replace")
            assert before == await self.fingerprint(queue)
            await queue.ack(job)

    async def test_a_key_may_be_kept_for_a_while_after_the_ack(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["unique_keys"]) as [queue, other]:
            job = await self.one_job(queue, unique_key="the-key", unique_for=HOUR)
            await queue.ack(job)
            finished = await other.enqueue("work", b"again", unique_key="the-key")
            assert (finished.id, finished.status) == (job.id, JobStatus.COMPLETED)
            with pytest.raises(DuplicateJobError, match="acked") as raised:
                await other.enqueue("work", b"again", unique_key="the-key", on_conflict="raise")
            assert raised.value.job_id == job.id
            assert await queue.dequeue() == []
            new = await other.enqueue("work", b"again", unique_key="the-key", on_conflict="replace")
            assert [new.id] == ids(await queue.dequeue())

    async def test_a_kept_key_is_free_when_its_time_is_over(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["unique_keys"]) as [queue]:
            job = await self.one_job(queue, unique_key="the-key", unique_for=timedelta(seconds=self.moment))
            await queue.ack(job)

            async def is_free() -> bool:
                return (await queue.enqueue("work", b"again", unique_key="the-key")).id != job.id

            await self.until(is_free)
            assert len(await queue.dequeue(batch_size=9)) == 1

    async def test_a_key_is_not_kept_for_a_job_that_was_not_acked(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["unique_keys"]) as [queue]:
            first = await queue.enqueue("work", b"payload", unique_key="the-key", unique_for=HOUR)
            await queue.cancel(first.id)
            second = await queue.enqueue("work", b"payload", unique_key="the-key", on_conflict="raise")
            assert first.id != second.id
