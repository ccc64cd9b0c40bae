"""The queue that a worker uses in the process of its handlers."""

import asyncio
from typing import Any

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import Ack, Enqueue, Nack
from jqueue.spark.batch.children import in_order
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.worker import Context, Rate, Worker


class Partition:
    """A partition queue with its reports and the real queue behind it."""

    def __init__(self, count=3):
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.made: list[Any] = []
        self.real = DirectQueue(InMemoryStorage())
        self.jobs = [Job(id=f"job {number}", entrypoint="work", payload=b"", attempt=2) for number in range(count)]
        self.rows = PartitionRows.of_jobs(self.jobs)
        self.queue = PartitionQueue(self.rows, self.begun.append, self.ended.extend, make_queue=self.make)

    @property
    def outcomes(self):
        return in_order(self.rows, self.ended)

    def make(self):
        self.made.append(self.real)
        return self.real


async def test_jobs_are_handed_out_once_in_order_and_reported_first():
    partition = Partition(5)
    assert partition.jobs[:2] == await partition.queue.dequeue("work", batch_size=2)
    assert partition.jobs[2:] == await partition.queue.dequeue(["work"], batch_size=10, wait=30)
    assert [] == await partition.queue.dequeue("work", batch_size=10)
    assert [partition.jobs[:2], partition.jobs[2:]] == partition.begun


async def test_a_waiting_dequeue_waits_when_no_jobs_are_left():
    partition = Partition(0)
    waiting = asyncio.create_task(partition.queue.dequeue("work", wait=60))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    assert [] == await partition.queue.dequeue("work", wait=0.001)
    assert [] == await partition.queue.dequeue("work", batch_size=0, wait=60)


async def test_outcomes_are_reported_without_a_call_of_the_queue():
    partition = Partition()
    first, second, third = await partition.queue.dequeue("work", batch_size=3)
    results = await partition.queue.apply_each(Ack(first), Nack(second.claim, error="no", delay=3))
    assert [None, None] == results
    assert [None, None] == await partition.queue.apply(Enqueue("next", b""), Ack(third))
    assert [("done", None), ("retried", "no"), ("done", None)] == [(each.kind, each.error) for each in partition.ended]
    assert [1] == [len(partition.ended[2].added)]
    assert [] == partition.made


async def test_a_refused_outcome_does_not_affect_others():
    partition = Partition()
    first, second, _ = await partition.queue.dequeue("work", batch_size=3)
    results = await partition.queue.apply_each(Ack(first, object()), Ack(second))
    assert isinstance(results[0], InvalidJobError)
    assert [None] == results[1:]
    assert ["job 1"] == [outcome.job_id for outcome in partition.ended]


async def test_on_ack_enqueues_are_checked_in_the_child_process():
    partition = Partition()
    await partition.queue.dequeue("work", batch_size=3)
    with pytest.raises(InvalidJobError, match="entrypoint"):
        await partition.queue.apply(Enqueue("", b""), Ack(partition.jobs[0]))
    with pytest.raises(InvalidJobError, match="must be the last"):
        await partition.queue.apply(Ack(partition.jobs[0]), Enqueue("next", b""))
    assert [] == partition.ended


async def test_all_other_calls_go_to_one_object_of_the_real_queue():
    partition = Partition()
    await partition.queue.enqueue("other", b"payload")
    await partition.queue.apply(Enqueue("other", b""))
    await partition.queue.apply_each(Enqueue("other", b""))
    assert 3 == (await partition.queue.stats()).depth
    assert [partition.real] == partition.made
    await partition.queue.aclose()


async def test_acks_of_other_claims_go_to_the_real_queue():
    partition = Partition()
    await partition.real.enqueue("other", b"")
    [other] = await partition.real.dequeue("other")
    assert [None] == await partition.queue.apply_each(Ack(other))
    assert () == (await partition.real.read_state()).jobs
    assert [] == partition.ended
    [refused] = await partition.queue.apply_each(Ack(Claim("job 0", 1)))  # an older claim of the same job
    assert isinstance(refused, Exception)


def test_capabilities_are_known_without_opening_the_real_queue():
    partition = Partition()
    assert not hasattr(partition.queue, "__aenter__")
    assert ("ranges",) == partition.queue.capabilities.missing
    assert [] == partition.made


async def test_limits_of_handlers_are_set_by_the_driver_and_later_ones_by_the_queue():
    partition, worker = Partition(1), Worker()

    @worker.handler("work", max_running=2, rate=Rate(3))
    async def work(ctx: Context) -> None:
        await ctx.queue.limit("work", running=7)

    @worker.cron("* * * * *")
    async def tick() -> None: ...

    await worker.run(partition.queue, drain=True, signals=False)
    assert ["done"] == [outcome.kind for outcome in partition.outcomes]
    state = await partition.real.read_state()
    assert (7, None) == (state.entrypoints["work"].max_running, state.entrypoints["work"].rate)
    assert {} == dict(state.schedules)


async def test_handlers_use_the_queue_through_their_context():
    partition, worker = Partition(2), Worker()

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        await ctx.queue.enqueue("next", b"")

    await worker.run(partition.queue, drain=True, signals=False)
    assert ["next", "next"] == [job.entrypoint for job in (await partition.real.read_state()).jobs]
    assert ["done", "done"] == [outcome.kind for outcome in partition.outcomes]
