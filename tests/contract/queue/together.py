"""Several operations in one commit, and calls that end half-way: all or nothing, and no job claimed for no caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.operations import Ack, Cancel, Dequeue, Enqueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids


class TogetherContract(QueueContractBase):
    """Operations of one call are done together. A cancelled call is done once or not at all."""

    async def test_enqueue_many_is_one_commit(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["transactions", "priority"]) as [queue, other]:
            await queue.enqueue("work", b"payload")
            before = (await queue.read_state()).version
            jobs = await queue.enqueue_many(Enqueue("many", b"%d" % number, -number) for number in range(20))
            assert (await other.read_state()).version == before + 1
            assert [job.payload for job in jobs] == [b"%d" % number for number in range(20)]
            assert ids(jobs)[::-1] == ids(await other.dequeue("many", batch_size=99))

    async def test_enqueue_many_of_none_is_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            before = await self.fingerprint(queue)
            assert await queue.enqueue_many([]) == []
            assert before == await self.fingerprint(queue)

    async def test_enqueue_many_takes_an_async_iterable(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["transactions"]) as [queue, other]:

            async def given() -> AsyncIterator[Enqueue]:
                for number in range(20):
                    await asyncio.sleep(0)
                    yield Enqueue("many", b"%d" % number)

            jobs = await queue.enqueue_many(given())
            assert [job.payload for job in jobs] == [b"%d" % number for number in range(20)]
            assert ids(jobs) == ids(await other.dequeue("many", batch_size=99))

    async def test_an_async_iterable_that_fails_adds_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            before = await self.fingerprint(queue)

            async def failing() -> AsyncIterator[Enqueue]:
                yield Enqueue("many", b"good")
                raise LookupError

            with pytest.raises(LookupError):
                await queue.enqueue_many(failing())
            assert before == await self.fingerprint(queue)

    async def test_jobs_enqueued_together_know_of_each_other(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions", "unique_keys", "job_ids"]) as [queue]:
            first, same_key = await queue.enqueue_many([Enqueue("work", b"1", unique_key="the-key")] * 2)
            assert first == same_key
            first, same_id = await queue.enqueue_many([Enqueue("work", b"1", job_id="the-id")] * 2)
            assert first == same_id
            assert len((await queue.read_state()).jobs) == 2

    async def test_apply_may_claim_jobs_that_it_makes(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            enqueued, claimed = await queue.apply(Enqueue("work", b"payload"), Dequeue("work"))
            assert ids(claimed) == [enqueued.id]
            await queue.ack(enqueued.id)

    async def test_of_nothing_apply_makes_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            before = await self.fingerprint(queue)
            assert await queue.apply() == []
            assert before == await self.fingerprint(queue)

    async def test_a_refused_apply_takes_nothing_else_with_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions", "fencing"]) as [queue]:
            jobs = [await self.one_job(queue) for _ in range(4)]
            results = await asyncio.gather(
                *(queue.apply(Ack(job), Enqueue("next", b"good")) for job in jobs[:2]),
                queue.apply(Ack(jobs[2]), Enqueue("next", b"bad"), Cancel("no-such-job")),
                queue.ack(jobs[3]),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, BaseException)]
            assert [type(error) for error in refused] == [JobNotFoundError]
            state = await queue.read_state()
            assert [job.payload for job in state.jobs if job.entrypoint == "next"] == [b"good"] * 2
            assert [jobs[2].id] == [job.id for job in state.in_progress_jobs()]

    async def test_what_is_applied_together_is_seen_together(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, ["transactions"]) as [mover, enqueuer, observer]:
            await enqueuer.enqueue("work", b"payload")
            done = asyncio.Event()

            async def move() -> None:
                for _ in range(8):
                    [job] = await mover.dequeue("work")
                    await mover.apply(Ack(job), Enqueue("work", job.payload))
                done.set()

            async def observe() -> None:
                while not done.is_set():
                    assert len((await observer.read_state()).jobs) == 1, "one of two changes was seen without the other"
                    await asyncio.sleep(0)

            await asyncio.gather(move(), observe())

    async def test_a_waiting_dequeue_cancelled_when_its_job_comes_leaves_it_to_others(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["wait"]) as [queue, other]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await queue.ack(await self.one_job(queue))
            duration = loop.time() - began
            for number in range(self.cancellations):
                waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
                await asyncio.sleep(0)
                enqueueing = asyncio.create_task(queue.enqueue("work", b"%d" % number))
                await self._cancel_at(waiting, number, duration)
                enqueued = await enqueueing
                jobs = [] if waiting.cancelled() else waiting.result()
                jobs = jobs or await other.dequeue("work", wait=self.patience / 2)
                assert ids(jobs) == [enqueued.id], f"cancelled at moment {number}, the job stayed claimed"
                await other.ack(jobs[0])
