"""Batch handlers whose jobs come from ranges: the same outcomes as for single claims, in fewer commits."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage, Limits
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import BatchContext, Discard, Retry, RunReport, Worker
from tests.tiny_segments import change_row, remove_segment, restore_segment
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import CountingStorage, broker, until, working

NUMBER = 3000
LIMITS = Limits(hot_bytes=1, batch_size=1000)


async def filled(storage=None, number=NUMBER, **options):
    """A queue with numbered jobs in segments."""
    queue = broker(storage, limits=LIMITS, **options)
    async with queue:
        await queue.enqueue_many(Enqueue("work", b"%d" % place) for place in range(number))
    return queue


def recording(worker: Worker, batch=100, seconds=0.0):
    """The sizes of the batches of a handler that fails no job."""
    sizes: list[int] = []

    @worker.handler("work", batch=batch)
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))
        await asyncio.sleep(seconds)

    return sizes


async def counts(queue):
    """Numbers of jobs: done, waiting, scheduled, in progress, dead."""
    stats = await queue.stats()
    return stats.totals.done, stats.depth, stats.scheduled, stats.in_progress, stats.dead


@pytest.mark.parametrize("batch", [10, 100, 1000])
@in_virtual_time
async def test_thousands_of_jobs_are_done_in_few_commits(batch):
    async with await filled() as queue:
        version = (await queue.read_state()).version
        worker = Worker()
        sizes = recording(worker, batch)
        assert RunReport(succeeded=NUMBER) == await worker.run(queue, drain=True, signals=False)
        assert NUMBER == sum(sizes)
        assert max(sizes) == batch
        assert (await queue.read_state()).version - version < 30
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)


def raised(error):
    """The error, with a traceback."""
    try:
        raise error
    except ValueError as caught:
        return caught


@in_virtual_time
async def test_each_job_of_a_range_has_an_outcome_of_its_own():
    worker = Worker()

    @worker.handler("work", batch=100, max_attempts=2)
    async def work(numbers: list[int], ctx: BatchContext) -> list[Exception | None]:
        ctx[0].on_ack(Enqueue("next", b"%d" % numbers[0]))
        tries = {each.attempt for each in ctx}
        assert tries <= {1, 2}
        kinds: dict[int, Exception] = {7: raised(ValueError("bad")), 8: Discard("never"), 9: Retry(after=3600)}
        return [kinds.get(number % 100) for number in numbers]

    queue = await filled()
    async with queue:
        report = await worker.run(queue, drain=True, signals=False)
        assert RunReport(succeeded=2910, failed=60, dead=30) == report
        assert 60 == (await queue.stats()).scheduled
        frames = [job.traceback async for job in queue.iterate_jobs(entrypoint="work") if job.traceback]
        assert 30 == len(frames)
        assert frames[0].endswith(" in raised")
        await asyncio.sleep(7200)
        report = await worker.run(queue, drain=True, signals=False)
        assert RunReport(dead=60) == report
        assert 90 == (await queue.stats()).dead
        assert 30 == len([job async for job in queue.iterate_jobs(entrypoint="next")])


@in_virtual_time
async def test_a_worker_that_stops_gives_back_the_jobs_of_a_range_that_it_has_not_begun():
    queue, worker = await filled(), Worker(concurrency=2, grace=30)
    sizes = recording(worker, 100, seconds=0.1)
    async with queue, working(worker, queue) as task:
        await until(lambda: len(sizes) >= 10)
        worker.stop()
        report = await task
        begun = sum(sizes)
        assert RunReport(succeeded=begun) == report
        assert (begun, NUMBER - begun, 0, 0, 0) == await counts(queue)
        assert {0} == {job.failures for job in await queue.peek("work", batch_size=500)}


@in_virtual_time
async def test_a_slow_batch_holds_up_no_outcome_of_its_range():
    queue, worker, sizes = await filled(stale_timeout=30), Worker(concurrency=4), []
    slow, over = asyncio.Event(), asyncio.Event()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))
        if len(sizes) == 8:
            slow.set()
            await over.wait()

    async with queue, working(worker, queue):
        await slow.wait()
        await asyncio.sleep(1)
        assert NUMBER == sum(sizes)
        await asyncio.sleep(15)
        assert (2900, 0, 0, 100, 0) == await counts(queue)
        await asyncio.sleep(200)  # the jobs of the slow batch have heartbeats of their own
        assert (2900, 0, 0, 100, 0) == await counts(queue)
        over.set()
        await asyncio.sleep(5)
        assert (3000, 0, 0, 0, 0) == await counts(queue)


@in_virtual_time
async def test_a_lost_range_stops_its_handlers_and_nothing_is_sent_for_its_jobs():
    queue, worker = await filled(stale_timeout=30), Worker(concurrency=2)
    stopped: list[float] = []

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        if numbers[0] >= 1000 and not stopped:
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.append(now())

    async with queue, working(worker, queue):
        await asyncio.sleep(1)
        assert await queue.requeue_stale(0)
        await until(lambda: stopped)
        await asyncio.sleep(10)
        done, *others = await counts(queue)
        assert [0, 0, 0, 0] == others
        assert NUMBER == done


@in_virtual_time
async def test_a_cancelled_job_of_a_range_leaves_and_its_batch_goes_on():
    queue, worker, going = await filled(stale_timeout=30), Worker(concurrency=1), asyncio.Event()
    held: list[str] = []
    seen: list[int] = []

    @worker.handler("work", batch=500)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        seen.extend(numbers)
        if numbers[0] >= 500 and not held:
            held.extend(each.job.id for each in ctx)
            await going.wait()

    async with queue, working(worker, queue):
        await until(lambda: held)
        await queue.cancel(held[3], running=True)
        [later] = [job.id async for job in queue.iterate_jobs() if job.payload == b"2600"]
        await queue.cancel(later, running=True)
        await asyncio.sleep(40)
        going.set()
        await asyncio.sleep(20)
        assert (NUMBER - 2, 0, 0, 0, 0) == await counts(queue)
        assert {2600} == {*range(NUMBER)} - {*seen}


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LOST_REQUEST, Fault.LANDS_LATER])
@in_virtual_time
async def test_faults_of_the_store_change_no_outcome_of_a_range(fault):
    memory = CountingStorage().memory
    await filled(memory)
    storage, worker, seen = FaultyObjects(memory), Worker(concurrency=2), []

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)
        if len(seen) % 300 == 0:
            storage.on_write(fault)

    async with BrokerQueue(storage, clock=broker().options.clock, limits=LIMITS) as queue:
        report = await worker.run(queue, drain=True, signals=False)
        assert (NUMBER, RunReport(succeeded=NUMBER)) == (len(seen), report)
        assert sorted(seen) == list(range(NUMBER))
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)


@in_virtual_time
async def test_a_worker_with_other_handlers_claims_one_batch_at_a_time():
    queue, worker, order = await filled(), Worker(concurrency=1), []

    @worker.handler("work", batch=1000)
    async def work(numbers: list[int]) -> None:
        order.append(len(numbers))
        if len(order) == 2:
            await other.enqueue(queue, priority=-1)

    @worker.handler("other")
    async def other() -> None:
        order.append(-1)

    async with queue:
        await worker.run(queue, drain=True, signals=False)
        assert [1000, 1000, -1, 1000] == order


@pytest.mark.parametrize("damage", [change_row, remove_segment])
@in_virtual_time
async def test_jobs_of_a_range_that_cannot_be_read_wait_and_all_others_are_done(damage, caplog):
    storage, started = InMemoryStorage(clock=VirtualClock()), asyncio.Event()
    first = await filled(storage)
    [name] = (await first.read_state()).segments
    row = [job.id async for job in first.iterate_jobs() if job.sequence == 2501] if damage is change_row else []
    queue, worker, done = broker(storage, limits=LIMITS), Worker(concurrency=2), list[int]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        done.extend(numbers)
        started.set()
        await asyncio.sleep(0.1)

    async with queue, working(worker, queue):
        await started.wait()
        whole = await damage(storage, name, *row)
        await queue.enqueue("work", b"3000")
        await asyncio.sleep(30)
        assert len(done) == len(set(done))
        assert 3000 in done
        waiting = NUMBER + 1 - len(done)
        assert damage is remove_segment or 256 == waiting
        assert (len(done), waiting, 0, 0, 0) == await counts(queue)
        assert "not all jobs of work can be done" in caplog.text
        assert (await queue.read_state()).version < 60
        await restore_segment(storage, name, whole)
        await asyncio.sleep(120)
        assert list(range(NUMBER + 1)) == sorted(done)
        assert (NUMBER + 1, 0, 0, 0, 0) == await counts(queue)
