"""Which jobs are served, in which order and at what time; unique keys; aging."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jqueue.domain.errors import DuplicateJobError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids

PAYLOADS = [
    b"",
    b"\0",
    b'"quoted": {}]},\n',
    bytes(range(256)),
    bytes(range(256)) * 400,
]


class OrderContract(QueueContractBase):
    """Jobs are served by priority, then in commit order, and come back unchanged."""

    async def test_jobs_of_one_priority_are_served_in_commit_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2) as [queue, worker]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(self.in_order)]
            assert enqueued == [job.id for _ in enqueued for job in await worker.dequeue("work")]

    async def test_a_lower_priority_is_served_first(self, make_queue: QueueFactory) -> None:
        priorities = [0, 5, -1, 2**31 - 1, 5, 0, -(2**31), -1]
        async with self.queues(make_queue, 1, ["priority"]) as [queue]:
            for number, priority in enumerate(priorities):
                await queue.enqueue("work", b"%d" % number, priority)
            served = [int(job.payload) for _ in priorities for job in await queue.dequeue("work")]
            assert served == sorted(range(len(priorities)), key=lambda number: priorities[number])

    async def test_a_batch_is_as_many_as_asked_for_or_as_there_are(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(5)]
            assert enqueued[:3] == ids(await queue.dequeue("work", batch_size=3))
            assert enqueued[3:] == ids(await queue.dequeue("work", batch_size=3))
            assert await queue.dequeue("work", batch_size=3) == []

    async def test_a_dequeue_takes_jobs_of_the_entrypoints_it_names(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue) as [queue]:
            for name in ("resize", "mail", "sum", "mail"):
                await queue.enqueue(name, b"payload")
            assert await queue.dequeue("nobody") == []
            assert [job.entrypoint for job in await queue.dequeue("mail")] == ["mail"]
            several = await queue.dequeue(["mail", "resize", "nobody"], batch_size=9)
            assert [job.entrypoint for job in several] == ["resize", "mail"]
            assert [job.entrypoint for job in await queue.dequeue(batch_size=9)] == ["sum"]

    @pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: f"{len(payload)} bytes")
    async def test_a_payload_comes_back_byte_for_byte(self, make_queue: QueueFactory, payload: bytes) -> None:
        async with self.queues(make_queue, 2) as [queue, other]:
            await queue.enqueue("work", payload)
            [job] = await other.dequeue("work")
            assert (type(job.payload), job.payload == payload) == (bytes, True)

    async def test_a_job_id_recently_finished_is_not_done_again(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["job_ids"]) as [queue, other]:
            await queue.ack(await self.one_job(queue, job_id="the-id"))
            for asked in (queue, other):
                finished = await asked.enqueue("work", b"payload", job_id="the-id")
                assert (finished.id, finished.status) == ("the-id", JobStatus.COMPLETED)
            assert await queue.dequeue() == []


class TimingContract(QueueContractBase):
    """Jobs become ready on time, consumers wait for them, and claims end when they are not confirmed."""

    async def test_a_wait_ends_with_nothing_when_it_is_over(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["wait"]) as [queue]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await queue.dequeue("work", wait=timedelta(seconds=self.moment)) == []
            assert loop.time() - began >= self.moment * 0.9, "the dequeue returned too early"

    async def test_a_claim_that_is_confirmed_lasts(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait", "heartbeat"]) as [queue, other]:
            timeout = 8 * self.moment
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue("work", claim_timeout=timeout)
            stealing = asyncio.create_task(other.dequeue("work", wait=timeout + 4 * self.moment))
            while not stealing.done():
                await queue.heartbeat(job)
                await asyncio.wait([stealing], timeout=self.moment)
            assert stealing.result() == [], "a claim was revoked although it was confirmed in time"
            await queue.ack(job)

    async def test_the_timeout_of_a_claim_is_its_own_and_not_that_of_who_looks(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["claim_timeout", "wait"]) as [queue]:
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue("work", claim_timeout=HOUR)
            assert await queue.dequeue("work", wait=4 * self.moment, claim_timeout=self.moment / 4) == []
            await queue.ack(job)

    async def test_a_job_whose_workers_vanish_is_dead_when_its_attempts_are_used_up(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait", "dead_letters"]) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload", max_attempts=2)
            for _ in range(2):
                assert len(await other.dequeue("work", wait=self.patience, claim_timeout=self.moment)) == 1

            async def is_dead() -> bool:
                await queue.dequeue("work")
                return (await self.held(queue, enqueued)).status is JobStatus.DEAD

            await self.until(is_dead)
            dead = await self.held(queue, enqueued)
            assert (dead.attempt, dead.failures, bool(dead.error)) == (2, 2, True)


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

    @pytest.mark.parametrize("state", ["queued", "dead", "acked"])
    async def test_an_id_that_is_taken_is_refused_if_asked(self, make_queue: QueueFactory, state: str) -> None:
        async with self.queues(make_queue, 2, ["job_ids", "unique_keys", "dead_letters"]) as [queue, other]:
            await queue.enqueue("work", b"payload", job_id="the-id")
            if state != "queued":
                [job] = await queue.dequeue()
                await (queue.ack(job) if state == "acked" else queue.nack(job, dead=True))
            before = await self.fingerprint(queue)
            with pytest.raises(DuplicateJobError, match="Job id 'the-id' is taken: that job ") as raised:
                await other.enqueue("work", b"another", job_id="the-id", on_conflict="raise")
            assert (raised.value.unique_key, raised.value.job_id) == (None, "the-id")
            with pytest.raises(DuplicateJobError):
                await other.enqueue_many(
                    [Enqueue("work", job_id=name, on_conflict="raise") for name in ("a", "the-id")]
                )
            assert before == await self.fingerprint(queue)

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

    async def test_a_queued_job_is_replaced_if_asked_and_one_in_progress_is_not(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["unique_keys"]) as [queue, other]:
            old = await queue.enqueue("work", b"old", unique_key="the-key")
            between = await queue.enqueue("work", b"between")
            new = await other.enqueue("work", b"new", unique_key="the-key", on_conflict="replace")
            assert await self.find(queue, old) is None
            assert [between.id, new.id] == ids(await queue.dequeue(batch_size=9)), "the new job must be served last"
            with pytest.raises(DuplicateJobError, match="in_progress"):
                await queue.enqueue("work", b"newer", unique_key="the-key", on_conflict="replace")

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


class AgingContract(QueueContractBase):
    """With aging, a job that has waited long enough is served first."""

    async def test_an_old_job_overtakes_an_urgent_one_that_came_much_later(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "priority"]) as [queue, other]:
            step = self.moment / 4
            await queue.configure(aging=step)
            old = await queue.enqueue("work", b"old", 3)
            await self.until_after(queue, old.created_at + timedelta(seconds=4 * step))
            late = await queue.enqueue("work", b"late", -1)
            assert [old.id, late.id] == ids(await other.dequeue("work", batch_size=9))
