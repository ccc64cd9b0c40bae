"""A worker is visible in its queue: as the holder of its claims, and by a record of its own."""

import asyncio
import os
from datetime import timedelta
from functools import partial

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, QueueSet
from jqueue.domain.workers import WORKERS_KEPT, WorkerRecord, with_workers
from jqueue.telemetry.prometheus import PrometheusMetrics
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from jqueue.worker import Worker
from tests.telemetry.samples import samples_of


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


def test_an_idle_worker_writes_once_a_minute_and_makes_no_other_poll_faster():
    async def story(workers):
        memory = InMemoryStorage(clock=VirtualClock())
        storages = [FaultyStorage(memory, latency=0.01) for _ in range(workers)]

        async def idle(number, storage):
            async with DirectQueue(storage, clock=VirtualClock()) as queue:
                worker = Worker(name=f"idle-{number}")
                worker.handler("nothing")(lambda: None)
                task = asyncio.create_task(worker.run(queue))
                await asyncio.sleep(600)
                worker.stop()
                await task

        looking = DirectQueue(memory, clock=VirtualClock())
        await looking.configure(aging=60)  # no worker creates a queue
        runs = asyncio.gather(*(idle(*each) for each in enumerate(storages)))
        await asyncio.sleep(590)
        assert [False] * workers == [record.lost for record in (await looking.stats()).workers]
        await runs
        assert () == (await looking.stats()).workers
        return {storage.landed for storage in storages}, max(storage.reads for storage in storages)

    landed, reads = run(story(1))
    assert ({10 + 1}, True) == (landed, reads < 900)  # the last one removes the record
    landed, most = run(story(4))
    assert ({10 + 1}, True) == (landed, most < reads + 40)  # other writers may be quicker


def test_a_worker_that_finds_no_job_and_ends_writes_nothing():
    async def story():
        storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        async with DirectQueue(storage, clock=VirtualClock()) as queue:
            worker = Worker()
            worker.handler("nothing")(lambda: None)
            await worker.run(queue, drain=True)
        return storage.writes

    assert 0 == run(story())


def described(name, at):
    return WorkerRecord(name=name, at=at, slots=4)


def test_a_worker_that_was_not_seen_for_two_minutes_is_lost_and_not_counted():
    async def story():
        memory = InMemoryStorage(clock=VirtualClock())
        killed, live = (DirectQueue(memory, clock=VirtualClock()) for _ in range(2))
        for queue, name in ((killed, "killed"), (live, "live")):
            queue.attend(name, partial(described, name))
            await queue.enqueue("mail", b"")
        metrics = PrometheusMetrics(every=None, commits=False)
        async with metrics.watch(killed):
            found = []
            for seconds in (119, 2):
                await asyncio.sleep(seconds)
                await live.enqueue("mail", b"")
                counted = samples_of(await metrics.fresh_text())
                slots = {name: counted.get(("jqueue_worker_slots", name)) for name in ("killed", "live")}
                found.append(({each.name: each.lost for each in (await live.stats()).workers}, slots))
        return found

    before, after = run(story())
    assert ({"killed": False, "live": False}, {"killed": 4, "live": 4}) == before
    assert ({"killed": True, "live": False}, {"killed": 0, "live": 4}) == after


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
