"""A worker is visible in its queue: as the holder of its claims, and by a record of its own."""

import asyncio
import os
from datetime import timedelta

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, QueueSet
from jqueue.domain.workers import WORKERS_KEPT, WorkerRecord, with_workers
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from jqueue.worker import Worker


def working(queue, jobs, name="mailer"):
    """Run a worker on some jobs, and return the queue's statistics seen from inside the last one and afterwards."""
    worker, seen = Worker(concurrency=4, name=name), []

    @worker.handler("mail")
    async def mail(payload: bytes, ctx) -> None:
        await asyncio.sleep(1)
        seen.append(await ctx.queue.stats())

    async def work():
        for _ in range(jobs):
            await queue.enqueue("mail", b"")
        await worker.run(queue, drain=True)
        await queue.enqueue("other", b"")  # the next commit removes the record of a worker that has ended
        return seen[-1], await queue.stats()

    return work()


def test_a_worker_is_named_in_its_claims_and_has_a_record():
    async def story():
        storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        async with BrokerQueue(storage, clock=VirtualClock()) as queue:
            inside, after = await working(queue, 6)
        [record] = inside.workers
        assert (record.name, record.pid, record.slots, record.entrypoints) == ("mailer", os.getpid(), 4, ("mail",))
        assert 1 <= record.busy == sum(inside.holders.values()) <= 4
        assert record.last_seen.timestamp() == record.at
        [(holder, held)] = inside.holders.items()
        assert holder == f"mailer@{record.host}:{record.pid}"
        assert held
        assert inside.oldest_claim_age >= timedelta(seconds=1)
        assert (after.workers, after.holders) == ((), {})
        return storage.writes

    assert run(story()) < 20  # six enqueues, and the claims and acks: no commit of its own for a record


def test_an_idle_worker_writes_nothing():
    async def story():
        storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        async with DirectQueue(storage, clock=VirtualClock()) as queue:
            worker = Worker(name="idle")
            worker.handler("nothing")(lambda: None)
            task = asyncio.create_task(worker.run(queue))
            await asyncio.sleep(600)
            worker.stop()
            await task
        return storage.writes

    assert 0 == run(story())


def test_a_worker_on_several_queues_counts_once():
    async def story():
        clock = VirtualClock()
        queues = [DirectQueue(InMemoryStorage(clock=clock), clock=clock) for _ in range(2)]
        for queue in queues:
            await queue.enqueue("mail", b"")
        async with QueueSet(*queues) as several:
            worker, seen = Worker(name="mailer"), []

            both = asyncio.Event()

            @worker.handler("mail")
            async def mail(payload: bytes) -> None:
                seen.append(await several.stats())
                if len(seen) == 2:
                    both.set()
                await both.wait()

            await worker.run(several, drain=True)
            inside = seen[-1]
        [record] = inside.workers
        assert "mailer" == record.name
        assert {f"mailer@{record.host}:{record.pid}": 2} == inside.holders

    run(story())


def test_records_are_dropped_when_they_are_old_or_too_many():
    def record(at):
        return WorkerRecord(name="w", at=at)

    known = {"old": record(0), "young": record(3000)}
    assert {"young", "new"} == with_workers(known, {"new": record(4000)}, 4000).keys()
    assert {"young"} == with_workers(known, {"gone": None}, 4000).keys()
    many = {f"{number}": record(number) for number in range(WORKERS_KEPT)}
    kept = with_workers(many, {"new": record(WORKERS_KEPT)}, WORKERS_KEPT)
    assert (WORKERS_KEPT, True, False) == (len(kept), "new" in kept, "0" in kept)
