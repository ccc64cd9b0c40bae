"""Batch handlers: how batches are filled, what their handlers may return, and the fate of each job; and ranges."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage, Limits, StorageError
from jqueue.domain.operations.ranges import EndRange
from jqueue.errors import SegmentDamagedError
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import BatchContext, Discard, Retry, RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import (
    COMPLETED,
    IN_PROGRESS,
    LONG,
    QUEUED,
    FailingQueue,
    broker,
    cancel_tasks,
    direct,
    drained,
    until,
    working,
)


def recording(worker, entrypoint="work", **options):
    """Register a batch handler that records the time and the payloads of each call."""
    calls = []

    async def work(payloads: list[bytes]) -> None:
        calls.append((round(now(), 3), payloads))

    worker.handler(entrypoint, **options)(work)
    return calls


async def enqueue(queue, *payloads, entrypoint="work"):
    return await queue.enqueue_many([Enqueue(entrypoint, payload) for payload in payloads])


# Filling batches


@pytest.mark.parametrize(
    ("wait", "times", "calls"),
    [
        (0, [0, 4], [(0, [b"0"]), (4, [b"1"])]),  # a batch takes what is ready
        (10, [0, 4], [(10, [b"0", b"1"])]),  # or waits for more
        (10, [0, 4, 4], [(4, [b"0", b"1", b"2"])]),  # until it is full
    ],
)
@in_virtual_time
async def test_a_batch_waits_only_as_long_as_its_handler_says_or_until_it_is_full(wait, times, calls):
    worker = Worker()
    seen = recording(worker, batch=3, **({"batch_wait": wait} if wait else {}))
    async with broker() as queue, working(worker, queue):
        for number, time in enumerate(times):
            await asyncio.sleep(time - now())
            await queue.enqueue("work", b"%d" % number)
        await asyncio.sleep(20)
    assert [payloads for _, payloads in calls] == [payloads for _, payloads in seen]
    assert all(at <= time <= at + 1 for (at, _), (time, _) in zip(calls, seen, strict=True))


@in_virtual_time
async def test_a_draining_worker_does_not_wait_for_fuller_batches():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=10)
    async with broker() as queue:
        await enqueue(queue, b"1", b"2", b"3", b"4")
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [(0, [b"1", b"2", b"3"]), (0, [b"4"])] == calls


@in_virtual_time
async def test_other_entrypoints_go_on_while_a_batch_waits():
    worker, done = Worker(concurrency=2), []
    calls = recording(worker, batch=3, batch_wait=10)

    @worker.handler("other")
    async def other() -> None:
        done.append(now())

    async with direct() as queue, working(worker, queue):
        await queue.enqueue("work", b"1")
        await asyncio.sleep(2)
        await queue.enqueue("other", b"")
        await until(lambda: calls)
    assert done[0] < 4


@in_virtual_time
async def test_no_batch_has_more_jobs_than_the_entrypoint_may_run():
    worker = Worker()
    calls = recording(worker, batch=10, max_running=3)
    async with broker() as queue:
        await enqueue(queue, *[b""] * 7)
        assert RunReport(succeeded=7) == await drained(worker, queue)
    assert 3 == max(len(payloads) for _, payloads in calls)


# The end of calls


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], "ValueError: the batch handler returned 1 results for 2 jobs: return one for each"),
        ("ab", "TypeError: a batch handler must return None or a list with one result for each job, got str"),
        (None, "timed out after 3 s"),
    ],
)
@in_virtual_time
async def test_a_call_that_takes_too_long_or_returns_no_list_of_results_fails_all_jobs(value, error):
    worker = Worker()

    @worker.handler("work", batch=10, backoff=LONG, timeout=3)
    async def work(payloads: list[bytes], ctx: BatchContext):
        assert 1 == len({ctx.deadline, *(each.deadline for each in ctx)})
        await asyncio.sleep(0 if value else 60)
        return value

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        assert RunReport(failed=2) == await drained(worker, queue)
        assert [error] * 2 == [job.error for job in (await queue.read_state()).jobs]


@in_virtual_time
async def test_a_worker_that_is_stopped_hands_back_a_batch_that_still_waits_for_jobs():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=1000)
    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        async with working(worker, queue) as task:
            await asyncio.sleep(5)
        assert RunReport(handed_back=2) == task.result()
        assert [(QUEUED, 0)] * 2 == [(job.status, job.failures) for job in (await queue.read_state()).jobs]
        assert now() < 6
    assert [] == calls


@in_virtual_time
async def test_a_batch_goes_on_without_a_job_that_is_lost_and_is_stopped_once_it_holds_none():
    worker, stopped = Worker(claim_timeout=3), []

    @worker.handler("work", batch=2)
    async def work(payloads: list[bytes], ctx: BatchContext) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.append(ctx.is_cancelled)

    async with broker() as queue, broker(queue.storage) as other:
        await enqueue(queue, b"1", b"2")
        async with working(worker, queue) as task:
            for before in (0, 1):
                await asyncio.sleep(10)
                held = (await other.read_state()).in_progress_jobs()
                assert ([], 2 - before) == (stopped, len(held))
                await other.nack(held[0], delay=6000)
            await asyncio.sleep(10)
            assert [True] == stopped
    assert RunReport(lost=2) == task.result()


@in_virtual_time
async def test_a_batch_handler_enqueues_and_reads_the_results_of_single_jobs_and_is_wrapped_once():
    worker, wrapped = Worker(), []

    @worker.middleware
    async def watch(ctx, call_next):
        wrapped.append((type(ctx), len(ctx.jobs)))
        return await call_next()

    @worker.handler("work", batch=10, keep_result=60)
    async def work(numbers: list[int]) -> list[tuple[int, str] | ValueError] | None:
        return [(number, "x") for number in numbers]

    async with broker() as queue:
        job = await work.using(queue).enqueue(3)
        await queue.apply(work.call(4).operation())
        await drained(worker, queue)
        assert (3, "x") == await work.using(queue).result(job)
        assert [(BatchContext, 2)] == wrapped
        assert [COMPLETED] * 2 == [each.status for each in (await queue.read_state()).jobs]


# Ranges


NUMBER = 3000
LIMITS = Limits(hot_bytes=1, batch_size=1000)


async def filled(storage=None, number=NUMBER):
    """A queue with numbered jobs in segments."""
    queue = broker(storage, limits=LIMITS)
    async with queue:
        await queue.enqueue_many(Enqueue("work", b"%d" % place) for place in range(number))
    return queue


async def counts(queue):
    """Numbers of jobs: done, waiting, scheduled, in progress, dead."""
    stats = await queue.stats()
    return stats.totals.done, stats.depth, stats.scheduled, stats.in_progress, stats.dead


@in_virtual_time
async def test_thousands_of_jobs_are_done_in_few_commits():
    worker = Worker()
    calls = recording(worker, batch=1000)
    async with await filled() as queue:
        version = (await queue.read_state()).version
        assert RunReport(succeeded=NUMBER) == await drained(worker, queue)
        assert (await queue.read_state()).version - version < 30
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)
    sizes = [len(payloads) for _, payloads in calls]
    assert (NUMBER, 1000) == (sum(sizes), max(sizes))


@in_virtual_time
async def test_each_job_of_a_range_has_an_outcome_of_its_own():
    worker = Worker()

    @worker.handler("work", batch=100, max_attempts=2)
    async def work(numbers: list[int], ctx: BatchContext) -> list[Exception | None]:
        ctx[0].on_ack(Enqueue("next", b"%d" % numbers[0]))
        kinds: dict[int, Exception] = {7: ValueError("bad"), 8: Discard("never"), 9: Retry(after=3600)}
        return [kinds.get(number % 100) for number in numbers]

    queue = await filled()
    async with queue:
        report = await drained(worker, queue)
        assert RunReport(succeeded=2910, failed=60, dead=30) == report
        assert 60 == (await queue.stats()).scheduled
        await asyncio.sleep(7200)
        report = await drained(worker, queue)
        assert RunReport(dead=60) == report
        assert 90 == (await queue.stats()).dead
        assert 30 == len([job async for job in queue.iterate_jobs(entrypoint="next")])


@in_virtual_time
async def test_a_job_that_a_range_may_not_enqueue_fails_the_job_that_adds_it_and_no_other():
    worker = Worker()

    @worker.handler("work", batch=100, max_attempts=1)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        for number, each in zip(numbers, ctx, strict=True):
            if number % 300 == 7:
                key = "taken" if number == 1207 else f"{number}"
                each.on_ack(Enqueue("next", b"", unique_key=key, on_conflict="raise"))

    queue = await filled()
    async with queue:
        await queue.enqueue("next", b"", unique_key="taken")
        report = await drained(worker, queue)
        assert (NUMBER - 1, 1) == (report.succeeded, report.dead)
        assert report.handed_back > 0, "a range is ended as a whole, and its other jobs were done again"
        assert 10 == len([job async for job in queue.iterate_jobs(entrypoint="next")])


@in_virtual_time
async def test_a_stopped_worker_hands_back_what_is_left_of_a_range_as_a_run():
    worker, done = Worker(concurrency=2), list[int]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        if len(done) >= 1500:
            await asyncio.sleep(3600)
        done.extend(numbers)

    queue = await filled()
    async with queue:
        async with working(worker, queue):
            await until(lambda: len(done) >= 1500)
            await asyncio.sleep(1)
        assert (1500, NUMBER - 1500, 0, 0, 0) == await counts(queue)
        jobs = [job async for job in queue.iterate_jobs()]
        assert {0} == {job.failures for job in jobs}
        assert len((await queue.read_state(hot=True)).jobs) < 300, "all others wait in their segment again"


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LANDS_LATER])
@in_virtual_time
async def test_faults_of_the_store_change_no_outcome_of_a_range(fault):
    memory = InMemoryStorage(clock=VirtualClock())
    await filled(memory)
    storage, worker, seen = FaultyObjects(memory), Worker(concurrency=2), []

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)
        if len(seen) % 300 == 0:
            storage.on_write(fault)

    async with BrokerQueue(storage, clock=VirtualClock(), limits=LIMITS) as queue:
        report = await drained(worker, queue)
        assert (NUMBER, RunReport(succeeded=NUMBER)) == (len(seen), report)
        assert sorted(seen) == list(range(NUMBER))
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)


@in_virtual_time
async def test_a_range_is_kept_by_heartbeats_as_long_as_its_handler_runs():
    storage, worker, begun = InMemoryStorage(clock=VirtualClock()), Worker(claim_timeout=30), list[int]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        hot = {job.id for job in (await queue.read_state(hot=True)).jobs}
        waits = ctx[0].job.id not in hot and not begun  # the first batch of a range
        begun.extend([1] * waits)
        await asyncio.sleep(300 * waits)

    async with await filled(storage) as queue, working(worker, queue) as task:
        await asyncio.sleep(60)
        async with broker(storage, limits=LIMITS) as other:
            assert [] == await other.dequeue("work", wait=200)
        await asyncio.sleep(60)
        worker.stop()
        assert RunReport(succeeded=NUMBER) == await task


@in_virtual_time
async def test_the_work_on_a_lost_range_is_stopped_and_nothing_of_it_is_committed():
    worker, begun, stopped = Worker(concurrency=2, claim_timeout=30), list[int](), list[float]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        ctx[0].on_ack(Enqueue("next", b""))
        hot = {job.id for job in (await queue.read_state(hot=True)).jobs}
        waits = ctx[0].job.id not in hot and not begun  # the first batch of a range
        begun.extend([1] * waits)
        try:
            await asyncio.sleep(3600 * waits)
        except asyncio.CancelledError:
            stopped.append(now())
            raise

    async with await filled() as queue:
        async with working(worker, queue) as task:
            await asyncio.sleep(1)
            in_progress = (await counts(queue))[3]
            given_back, lost_at = await queue.requeue_stale(0), now()
            assert 100 < given_back <= in_progress, "the jobs of the handler that goes on are in a range"
            await asyncio.sleep(60)
        report = await task
        assert (given_back, NUMBER) == (report.lost, report.succeeded)
        assert [True] == [0 < each - lost_at < 11 for each in stopped], "within a third of the claim timeout"
        assert NUMBER // 100 == len([job async for job in queue.iterate_jobs(entrypoint="next")])


@in_virtual_time
async def test_a_job_cancelled_in_a_range_is_not_begun_and_the_others_are_done():
    worker, seen = Worker(concurrency=1, claim_timeout=30), []

    @worker.handler("work", batch=100)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        seen.extend(numbers)
        if 1500 in numbers:
            later = [job.id async for job in queue.iterate_jobs(IN_PROGRESS) if int(job.payload) not in seen]
            for job_id in (ctx[0].job.id, later[0]):
                await queue.cancel(job_id, running=True)
            await asyncio.sleep(20)
            assert [True, *[False] * 99] == [each.is_cancelled for each in ctx]

    async with await filled() as queue:
        assert RunReport(succeeded=NUMBER - 2, cancelled=2) == await drained(worker, queue)
        assert NUMBER - 1 == len(seen), "the other job was not begun"
        assert (NUMBER - 2, 0, 0, 0, 0) == await counts(queue)


class SlowEnds(BrokerQueue):
    """A queue that takes a second for the end of a range.

    Attributes:
        ends: number of ends that were begun.
    """

    ends = 0

    async def apply(self, *operations, **options):
        if isinstance(operations[-1], EndRange):
            self.ends += 1
            await asyncio.sleep(1)
        return await super().apply(*operations, **options)


@in_virtual_time
async def test_a_range_is_ended_even_if_all_tasks_of_the_program_are_cancelled_meanwhile():
    storage, worker, seen = InMemoryStorage(clock=VirtualClock()), Worker(concurrency=1), list[int]()
    await filled(storage)

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        seen.extend(numbers)

    async with broker(storage, SlowEnds, limits=LIMITS) as queue:
        others = asyncio.all_tasks()
        task = asyncio.create_task(worker.run(queue, signals=False))
        await until(lambda: queue.ends)
        cancel_tasks(others)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (len(seen), NUMBER - len(seen), 0, 0, 0) == await counts(queue)


class DamagedQueue(BrokerQueue):
    """A queue whose segments cannot be read when a range ends with a failed job."""

    async def apply(self, *operations, **options):
        if isinstance(operations[-1], EndRange) and operations[-1].failed:
            raise SegmentDamagedError("the segment", "it is missing")
        return await super().apply(*operations, **options)


@in_virtual_time
async def test_a_range_with_a_failed_job_is_handed_back_if_its_segment_was_damaged_meanwhile():
    storage, worker, failed = InMemoryStorage(clock=VirtualClock()), Worker(concurrency=1), list[int]()
    await filled(storage)

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> list[Exception | None]:
        bad = {1999} & {*numbers} - {*failed}
        failed.extend(bad)
        return [ValueError("bad") if number in bad else None for number in numbers]

    async with broker(storage, DamagedQueue, limits=LIMITS) as queue:
        report = await drained(worker, queue)
        assert (NUMBER, 0, True) == (report.succeeded, report.failed, report.handed_back >= 100)
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)


class SlowCalls(BrokerQueue):
    """A queue that takes 100 s to read its first range, or to claim jobs when it is asked for exactly 50.

    Attributes:
        slow: "read" or "claim".
        begun: number of those slow calls.
    """

    slow, begun = "", 0

    async def read_range(self, claim, **options):
        if self.slow == "read" and not self.begun:
            self.begun += 1
            await asyncio.sleep(100)
        async for job in super().read_range(claim, **options):
            yield job

    async def dequeue(self, *arguments, **options):
        if self.slow == "claim" and options.get("batch_size") == 50:
            self.begun += 1
            await asyncio.sleep(100)
        return await super().dequeue(*arguments, **options)


@in_virtual_time
async def test_jobs_of_a_range_for_which_a_claim_that_is_cancelled_looked_for_more_are_given_back():
    storage, worker = InMemoryStorage(clock=VirtualClock()), Worker(concurrency=1)
    calls = recording(worker, batch=100)
    await filled(storage, 950)
    async with broker(storage, SlowCalls, limits=LIMITS) as queue:
        queue.slow = "claim"
        async with working(worker, queue) as task:
            await until(lambda: queue.begun)  # for 50 more jobs than the last 50 of the range
            began = now()
            worker.stop()
            assert RunReport(succeeded=900) == await task
        assert (900, 50, 0, 0, 0) == await counts(queue)
        assert (9, True) == (len(calls), now() - began < 1)
        assert {0} == {job.failures async for job in queue.iterate_jobs()}


@in_virtual_time
async def test_a_range_is_kept_by_heartbeats_while_it_is_read():
    storage, worker = InMemoryStorage(clock=VirtualClock()), Worker(claim_timeout=30)
    recording(worker, batch=100)
    await filled(storage, 950)
    async with broker(storage, SlowCalls, limits=LIMITS) as queue, broker(storage, limits=LIMITS) as other:
        queue.slow = "read"
        async with working(worker, queue, drain=True) as task:
            await until(lambda: queue.begun)
            assert [] == await other.dequeue("work", wait=90)
            assert RunReport(succeeded=950) == await task


@in_virtual_time
async def test_a_job_handed_out_long_after_the_claim_of_its_range_is_lost_with_the_range():
    worker, begun, stopped = Worker(concurrency=1, claim_timeout=30), list[float](), list[float]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int], ctx: BatchContext) -> None:
        if ctx[0].job.id in {job.id for job in (await queue.read_state(hot=True)).jobs}:
            return
        begun.append(now())
        queue.fail("heartbeat_many", StorageError("the connection was reset"))
        try:
            await asyncio.sleep(20 if len(begun) == 1 else 3600)
        except asyncio.CancelledError:
            stopped.append(now())
            raise

    storage = InMemoryStorage(clock=VirtualClock())
    await filled(storage)
    async with broker(storage, FailingQueue, limits=LIMITS) as queue, working(worker, queue):
        await until(lambda: stopped)
        first, second, *_ = begun
        assert (20, 30) == (round(second - first), round(stopped[0] - first))
