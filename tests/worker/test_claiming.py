"""The loop of a worker: which jobs it claims and when, in how many commits, and how others see it."""

import asyncio
import os
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from random import Random

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.operations.ends import Sweep
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, RunReport, Worker
from tests.shared_memory import BrokerOnly, SharedMemory, serving
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import broker, counted, direct, drained, until, working

both = pytest.mark.parametrize("make", [direct, broker])


async def ignore() -> None: ...


def jobs(count):
    return [Enqueue("work", b"%d" % number) for number in range(count)]


@in_virtual_time
async def test_draining_includes_jobs_enqueued_meanwhile_and_no_job_that_is_not_ready():
    worker, done = Worker(concurrency=2), []

    @worker.handler("work")
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append((seconds, round(now())))
        if seconds == 1:
            await work.using(queue).enqueue(2.0)

    async with broker() as queue:
        await work.using(queue).enqueue(100.0)
        await work.using(queue, delay=3600).enqueue(9.0)
        async with working(worker, queue, drain=True) as task:
            await asyncio.sleep(20)
            await work.using(queue).enqueue(1.0)
            assert RunReport(succeeded=3) == await task
    assert [(1.0, 21), (2.0, 23), (100.0, 100)] == done


@pytest.mark.parametrize(
    ("concurrency", "batch", "others", "count", "commits"),
    [
        (50, None, False, 1000, 1000 // 50 + 1),  # outcomes share a commit with the next claims
        (1, None, False, 20, 20 + 1),
        (1, 100, False, 500, 5 + 1),
        (50, 10, False, 50, 2),  # batches for all free slots are claimed together
        (1, 500, True, 500, 3),  # beside other handlers, a batch is claimed in two commits
    ],
)
@in_virtual_time
async def test_the_number_of_commits_is_bounded_by_slots_and_batches(concurrency, batch, others, count, commits):
    worker, storage, sizes = Worker(concurrency=concurrency), counted(0.02), []

    async def single(payload: bytes) -> None: ...

    async def many(payloads: list[bytes]) -> None:
        sizes.append(len(payloads))

    worker.handler("work", **({"batch": batch} if batch else {}))(many if batch else single)
    if others:
        worker.handler("other")(ignore)
    async with broker(storage) as queue:
        await queue.enqueue_many(jobs(count))
        before = storage.writes
        assert RunReport(succeeded=count) == await drained(worker, queue)
        assert commits + 1 == storage.writes - before  # the last one removes the worker's record
    assert sizes == ([batch] * (count // batch) if batch else [])


@in_virtual_time
async def test_slots_freed_during_a_long_poll_are_used():
    worker, running = Worker(concurrency=4), []

    @worker.handler("work")
    async def work(seconds: float) -> None:
        running.append(now())
        await asyncio.sleep(seconds)

    storage = counted()
    async with broker(storage) as queue, working(worker, queue):
        for _ in range(3):
            await work.using(queue).enqueue(5.0)
        await asyncio.sleep(6)  # the long poll was for one slot, and three have become free
        before = storage.writes
        await queue.enqueue_many([work.call(5.0) for _ in range(4)])
        await asyncio.sleep(1)
        assert 1 == storage.writes - before  # enqueued and claimed, all four
        assert 3 + 4 == len(running)
        assert all(1 == job.attempt for job in (await queue.read_state()).jobs)


class SlowMemory(SharedMemory):
    """A storage whose writes take a while, on which one queue object can serve the others."""

    async def write(self, content, if_match=None):
        await asyncio.sleep(0.03)
        etag = await super().write(content, if_match)
        await asyncio.sleep(0.03)
        return etag


async def in_the_store(storage, _):
    return direct(storage)


async def of_a_loop(storage, stack):
    return await stack.enter_async_context(broker(storage))


async def at_a_broker(storage, stack):
    await stack.enter_async_context(serving(storage))
    return await of_a_loop(storage, stack)


async def without_a_store(storage, stack):
    await stack.enter_async_context(serving(storage))
    return await of_a_loop(BrokerOnly(storage), stack)


@pytest.mark.parametrize(
    ("place", "others"), [(in_the_store, 0), (of_a_loop, 1), (at_a_broker, 1), (without_a_store, 0)]
)
@in_virtual_time
async def test_each_job_is_claimed_once_however_the_number_of_free_slots_changes(place, others):
    worker, attempts, draw = Worker(concurrency=8), [], Random(1)

    @worker.handler("work")
    async def work(seconds: float, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        await asyncio.sleep(seconds)

    storage = SlowMemory(clock=VirtualClock())
    async with AsyncExitStack() as stack:
        queue, producer = await place(storage, stack), direct(storage)
        async with working(worker, queue, *(direct() for _ in range(others))):
            for _ in range(150):
                await work.using(producer).enqueue(draw.uniform(0, 1))
                await asyncio.sleep(draw.uniform(0, 0.2))
            await until(lambda: len(attempts) == 150)
            await asyncio.sleep(2)
        claimed = (await producer.stats()).totals.claimed
    assert ({1: 150}, 150) == (Counter(attempts), claimed)


@in_virtual_time
async def test_one_heartbeat_per_third_of_the_claim_timeout_keeps_all_claims():
    worker, storage = Worker(concurrency=20, claim_timeout=30), counted()

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        await asyncio.sleep(99)

    async with broker(storage) as queue, broker(storage) as other:
        await queue.enqueue_many(jobs(20))
        before = storage.writes
        async with working(worker, queue, drain=True) as task:
            await asyncio.sleep(1)
            assert {30} == {job.claim_timeout for job in (await other.read_state()).jobs}
            assert [] == await other.dequeue("work", wait=95)
            assert RunReport(succeeded=20) == await task
        claim, ack, record = 1, 1, 1
        assert claim + 9 + ack + record == storage.writes - before


@in_virtual_time
async def test_an_idle_worker_writes_once_a_minute_and_makes_no_other_poll_faster():
    workers, memory = 3, InMemoryStorage(clock=VirtualClock())
    looking, storages = direct(memory), [counted(0.01, memory) for _ in range(workers)]

    async def idle(number):
        worker = Worker(name=f"idle-{number}")
        worker.handler("nothing")(ignore)
        async with direct(storages[number]) as queue, working(worker, queue):
            await asyncio.sleep(600)

    async with asyncio.TaskGroup() as runs:
        await looking.configure(dead_retention=60)  # no worker creates a queue
        for number in range(workers):
            runs.create_task(idle(number))
        await asyncio.sleep(590)
        assert [False] * workers == [record.lost for record in (await looking.stats()).workers]
    assert () == (await looking.stats()).workers
    assert all(storage.reads < 940 for storage in storages)
    least = 1 + workers * (10 + 1)  # the last one removes the record; once, a worker keeps away from the others
    assert least <= (await looking.read_state()).version <= least + workers


@in_virtual_time
async def test_a_worker_that_finds_no_job_and_ends_writes_nothing():
    worker, storage = Worker(), counted()
    worker.handler("nothing")(ignore)
    assert RunReport() == await drained(worker, direct(storage))
    assert (0, True) == (storage.writes, now() < 1)


@in_virtual_time
async def test_a_worker_is_named_in_its_claims_and_has_a_record_in_each_of_its_queues():
    queues, seen, worker = [direct(), direct()], [], Worker(concurrency=4, name="mailer")

    @worker.handler("mail")
    async def mail() -> None:
        await asyncio.sleep(1)
        seen.append([await queue.stats() for queue in queues])
        await asyncio.sleep(1)

    for queue in queues:
        await queue.enqueue("mail", b"")
    await drained(worker, *queues)
    for during, queue in zip(seen[-1], queues, strict=True):
        [record] = during.workers
        assert (record.name, record.pid, record.slots, record.entrypoints) == ("mailer", os.getpid(), 4, ("mail",))
        assert {f"mailer@{record.host}:{record.pid}": 1} == during.holders
        assert timedelta(seconds=1) == during.oldest_claim_age
        after = await queue.stats()
        assert ((), {}) == (after.workers, after.holders)


@pytest.mark.parametrize(("make", "batch", "losses"), [(direct, None, 1), (direct, 8, 2), (broker, None, 2)])
@in_virtual_time
async def test_jobs_whose_last_two_workers_were_lost_run_one_at_a_time_and_all_others_beside_them(
    make, batch, losses, caplog
):
    worker, spans = Worker(concurrency=4), list[tuple[float, list[str]]]()

    async def run(names: list[str]) -> None:
        spans.append((now(), names))
        await asyncio.sleep(5)

    async def run_one(name: str) -> None:
        await run([name])

    worker.handler("work", batch=batch)(run_one if batch is None else run)
    async with make() as queue:
        for name in ("first", "second"):
            await queue.enqueue("work", name.encode())
        for _ in range(losses):
            lost = await queue.dequeue(batch_size=2)
            await queue.apply(Sweep(tuple((job.claim, job.heartbeat_at) for job in lost)))
        await queue.enqueue("work", b"beside", priority=-1)
        async with working(worker, queue):
            await asyncio.sleep(1)
            await queue.enqueue("work", b"after")
            await until(lambda: sum(len(names) for _, names in spans) == 4)
    began = {name: round(at) for at, names in spans for name in names}
    assert {"beside": 0, "first": 0, "after": 1, "second": 5 if losses == 2 else 0} == began
    assert (2 if losses == 2 else 0) == caplog.text.count("begins: its last two workers were lost while they had it")


@both
@in_virtual_time
async def test_the_last_attempt_by_the_limit_of_the_handler_is_not_repeated_if_its_death_was_charged_to_none(make):
    worker, ran = Worker(), list[bytes]()

    @worker.handler("work", max_attempts=1)
    async def work(payload: bytes) -> None:
        ran.append(payload)

    async with make() as queue:
        await queue.enqueue_many(jobs(2))
        lost = await queue.dequeue(batch_size=2, holder="mailer@here:7")
        await queue.apply(Sweep((), tuple((job.claim, job.heartbeat_at) for job in lost)))
        assert RunReport(dead=2) == await drained(worker, queue)
        assert {"the job was claimed 2 times, and its workers ended without reporting an outcome"} == {
            job.error for job in (await queue.read_state()).jobs
        }
    assert [] == ran


@pytest.mark.parametrize(("age", "waits"), [(200, True), (50, False)])
@in_virtual_time
async def test_a_drain_waits_for_claims_that_are_stale_by_the_clock_of_the_store_and_names_all_others(
    age, waits, caplog
):
    """It may not revoke them at once. It has no time to watch a claim that was confirmed a minute ago."""
    caplog.set_level("INFO", "jqueue.worker")
    storage, worker, done = InMemoryStorage(clock=VirtualClock()), Worker(), []

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        done.append(payload)

    async with DirectQueue(storage, clock=VirtualClock()) as dead:
        await dead.enqueue_many(jobs(3))
        assert 3 == len(await dead.dequeue("work", batch_size=3, claim_timeout=30))
    await asyncio.sleep(age)
    began = now()
    async with DirectQueue(storage, clock=VirtualClock()) as queue:
        report = await drained(worker, queue)
    assert (3 if waits else 0) == report.succeeded == len(done)
    assert (9 < now() - began < 15) if waits else now() - began < 1
    assert waits == ("other workers hold 3 jobs" not in caplog.text)
