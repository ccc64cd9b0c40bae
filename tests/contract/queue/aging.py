"""Aging: a job gains priority as it waits, so that urgent jobs cannot keep the others waiting forever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class AgingContract(QueueContractBase):
    """With aging, a job that has waited long enough is served first. A job that fails again and again is not."""

    async def later(self, queue: JobQueue, entrypoint: str = "work", **options: Any) -> Job:
        """Enqueue a job at a later time than all jobs before it."""
        await self.until_after(queue, await self.time(queue))
        return await queue.enqueue(entrypoint, b"payload", **options)

    async def test_an_old_job_overtakes_an_urgent_one_that_came_much_later(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["limits", "priority"]) as [queue, other]:
            step = self.moment / 4
            await queue.configure(aging=step)
            old = await queue.enqueue("work", b"old", 3)
            urgent = await queue.enqueue("work", b"urgent", -1)
            await self.until_after(queue, old.created_at + timedelta(seconds=4 * step))
            late = await queue.enqueue("work", b"late", -1)
            found = ids(await other.dequeue("work", batch_size=9))
            assert found.index(old.id) < found.index(late.id)
            assert found == [job.id for job in sorted([urgent, old, late], key=lambda job: _aged(job, step))]

    async def test_what_has_not_waited_long_enough_does_not_overtake(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "priority"]) as [queue]:
            await queue.configure(aging=HOUR)
            enqueued = [(await queue.enqueue("work", b"payload", priority)).id for priority in (2, 1, 2, 0, 1)]
            expected = [enqueued[number] for number in (3, 1, 4, 0, 2)]
            assert expected == ids(await queue.dequeue(batch_size=9))

    async def test_jobs_that_wait_already_age_from_when_it_is_switched_on_until_it_is_off(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["limits", "priority"]) as [queue, operator]:
            step = self.moment / 10
            old = [(await queue.enqueue("work", b"old", 1)).id for _ in range(3)]
            created = (await self.held(queue, old[-1])).created_at
            await self.until_after(queue, created + timedelta(seconds=2 * step))
            late = [(await queue.enqueue("work", b"late", 0)).id for _ in range(3)]
            assert late[:1] == ids(await queue.dequeue("work"))
            assert (await operator.configure(aging=step)).aging == step
            assert old[:1] == ids(await queue.dequeue("work"))
            assert (await operator.configure(aging=None)).aging is None
            assert late[1:2] == ids(await queue.dequeue("work"))
            await operator.configure(aging=timedelta(seconds=step))
            assert [*old[1:], late[2]] == ids(await queue.dequeue(["work", "other"], batch_size=9))

    async def test_a_job_that_fails_again_and_again_overtakes_nobody(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            await queue.configure(aging=self.moment)
            failing = await self.later(queue)
            for _ in range(4):
                [job] = await queue.dequeue("work")
                assert job.id == failing.id
                others = [(await self.later(queue)).id for _ in range(2)]
                await self.until_after(queue, await self.time(queue))
                await queue.nack(job)
                for other in others:
                    [served] = await queue.dequeue("work")
                    assert served.id == other, "the failed job was served before a job that waited longer"
                    await queue.ack(served)

    async def test_a_job_handed_back_unharmed_keeps_the_place_that_it_had(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "uncharged"]) as [queue]:
            await queue.configure(aging=self.moment)
            enqueued = [(await self.later(queue)).id for _ in range(3)]
            [job] = await queue.dequeue("work")
            await self.until_after(queue, await self.time(queue))
            await queue.nack(job)
            expected = [*enqueued[1:], enqueued[0]]
            for job in await queue.dequeue("work", batch_size=9):
                await queue.nack(job, charge=False)
            assert expected == ids(await queue.dequeue("work", batch_size=9)), "the hand-back undid an earlier failure"

    async def test_a_job_dead_and_redriven_goes_behind_those_that_wait(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "dead_letters"]) as [queue]:
            await queue.configure(aging=self.moment)
            dead = await self.one_job(queue)
            waiting = await self.later(queue)
            await self.until_after(queue, waiting.created_at)
            await queue.nack(dead, dead=True)
            assert await queue.redrive(dead.id) == 1
            assert [waiting.id, dead.id] == ids(await queue.dequeue("work", batch_size=9))

    async def test_a_delayed_job_ages_from_when_it_is_ready(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "delay"]) as [queue]:
            await queue.configure(aging=self.moment)
            together = Enqueue("work", b"delayed", delay=2 * self.moment), Enqueue("work", b"payload")
            delayed, waiting = await queue.enqueue_many(together)
            assert delayed.run_at is not None
            await self.until_after(queue, delayed.run_at)
            late = await queue.enqueue("work", b"late")
            assert [waiting.id, delayed.id, late.id] == ids(await queue.dequeue("work", batch_size=9))


def _aged(job: Job, step: float) -> float:
    """Return the rank of a job in a queue with this aging: a slow store may take longer than a step for a call."""
    return job.priority * step + job.created_at.timestamp()
