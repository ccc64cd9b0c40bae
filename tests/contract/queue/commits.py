"""Several operations in one commit, and changes by operators: all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jqueue.domain.errors import DuplicateJobError, InvalidJobError
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids


class TogetherContract(QueueContractBase):
    """Operations of one call are done together. A cancelled call is done once or not at all."""

    async def test_an_async_iterable_that_fails_adds_nothing(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            before = await self.fingerprint(queue)

            async def failing() -> AsyncIterator[Enqueue]:
                yield Enqueue("many", b"good")
                raise LookupError

            with pytest.raises(LookupError):
                await queue.enqueue_many(failing())
            assert before == await self.fingerprint(queue)

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


class ChangesContract(QueueContractBase):
    """A change that the state of a job does not allow is refused: the error names the state, and nothing changes."""

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

    async def test_of_several_things_an_invalid_one_is_refused_for_itself(self, make_queue: QueueFactory) -> None:
        wrong: Any = "text"
        async with self.queues(make_queue, 1, ["transactions"]) as [queue]:
            results = await queue.apply_each(Enqueue("work", b"1"), Enqueue("work", wrong), Enqueue("work", b"2"))
            assert isinstance(results[1], InvalidJobError)
            assert ids([results[0], results[2]]) == ids(await queue.dequeue("work", batch_size=9))
