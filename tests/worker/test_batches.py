"""Batch handlers: how batches are filled, what their handlers may return, and the fate of each job; and ranges."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage, Limits, StorageError
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import BatchContext, Context, Discard, Retry, RunReport, Worker
from tests.tiny_segments import remove_segment, restore_segment
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import COMPLETED, IN_PROGRESS, LONG, QUEUED, broker, direct, drained, until, working


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
        await until(lambda: done)
        await until(lambda: calls)
        await queue.enqueue("work", b"2")  # the worker claims its jobs again
        await until(lambda: len(calls) == 2)
    assert done[0] < 4
    assert [[b"1"], [b"2"]] == [payloads for _, payloads in calls]


@in_virtual_time
async def test_a_batch_larger_than_one_dequeue_is_filled_by_several():
    worker = Worker(concurrency=1)
    calls = recording(worker, batch=25)
    async with broker(limits=Limits(batch_size=10)) as queue:
        for _ in range(3):
            await enqueue(queue, *[b""] * 10)
        assert RunReport(succeeded=30) == await drained(worker, queue)
    assert [25, 5] == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_a_batch_whose_further_claims_fail_runs_with_the_jobs_that_it_has():
    class FailsForBatches(BrokerQueue):
        async def dequeue(self, entrypoint=None, *, batch_size=1, **options):
            if entrypoint == "work":
                raise StorageError("on purpose")
            return await super().dequeue(entrypoint, batch_size=batch_size, **options)

    worker = Worker(concurrency=2)
    calls = recording(worker, batch=10)
    worker.handler("other")(lambda: None)
    async with FailsForBatches(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        await enqueue(queue, *[b""] * 4)
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [2, 2] == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_no_batch_has_more_jobs_than_the_entrypoint_may_run():
    worker, sizes = Worker(), []

    @worker.handler("work", batch=10, max_running=3)
    async def work(payloads: list[bytes]) -> None:
        sizes.append(len(payloads))
        await asyncio.sleep(1)

    async with broker() as queue:
        await enqueue(queue, *[b""] * 7)
        async with working(worker, queue):
            await until(lambda: sum(sizes) == 7)
    assert 3 == max(sizes)


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
async def test_jobs_without_attempts_left_are_dead_without_a_run():
    worker = Worker()
    calls = recording(worker, batch=10, max_attempts=2)
    async with broker() as queue:
        await enqueue(queue, b"spent")
        for _ in range(2):
            await queue.dequeue("work")
            await queue.requeue_stale(0)
        await enqueue(queue, b"new")
        assert RunReport(succeeded=1, dead=1) == await drained(worker, queue)
    assert [[b"new"]] == [payloads for _, payloads in calls]


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
async def test_a_handler_is_stopped_once_no_job_of_its_batch_is_left():
    worker, stopped = Worker(claim_timeout=3), []

    @worker.handler("work", batch=2)
    async def work(ctx: BatchContext) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(([each.is_cancelled for each in ctx], ctx.is_cancelled))

    async with broker() as queue, working(worker, queue) as task:
        jobs = await enqueue(queue, b"1", b"2")
        await asyncio.sleep(1)
        await queue.cancel(jobs[0].id, running=True)
        await asyncio.sleep(3)
        assert [] == stopped
        await queue.cancel(jobs[1].id, running=True)
        await until(lambda: stopped)
    assert [([True, True], True)] == stopped
    assert RunReport(cancelled=2) == task.result()


@in_virtual_time
async def test_a_cancelled_job_counts_as_running_until_its_batch_has_ended():
    worker = Worker(claim_timeout=3, cancel_grace=5)

    @worker.handler("work", batch=2)
    async def work(payloads: list[bytes]) -> None:
        await asyncio.sleep(200)

    async with broker() as queue:
        async with working(worker, queue) as task:
            jobs = await enqueue(queue, b"1", b"2")
            await asyncio.sleep(1)
            await queue.cancel(jobs[0].id, running=True)
            await asyncio.sleep(100)
            assert [IN_PROGRESS, IN_PROGRESS] == [job.status for job in (await queue.read_state()).jobs]
            await asyncio.sleep(120)
            assert () == (await queue.read_state()).jobs
        assert RunReport(succeeded=1, cancelled=1) == task.result()


@in_virtual_time
async def test_middleware_wraps_a_batch_once():
    worker, seen = Worker(), []
    recording(worker, batch=10)

    @worker.middleware
    async def watch(ctx, call_next):
        seen.append((type(ctx), ctx.entrypoint, len(ctx.jobs)))
        return await call_next()

    @worker.handler("single")
    async def single() -> None: ...

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        await drained(worker, queue)
        await enqueue(queue, b"", entrypoint="single")
        await drained(worker, queue)
    assert [(BatchContext, "work", 2), (Context, "single", 1)] == seen


@in_virtual_time
async def test_a_batch_handler_enqueues_and_reads_the_results_of_single_jobs():
    worker = Worker()

    @worker.handler("work", batch=10, keep_result=60)
    async def work(numbers: list[int]) -> list[tuple[int, str] | ValueError] | None:
        return [(number, "x") for number in numbers]

    async with broker() as queue:
        job = await work.enqueue(queue, 3)
        await queue.apply(work.operation(4))
        await drained(worker, queue)
        assert (3, "x") == await work.result(queue, job)
        assert [COMPLETED] * 2 == [each.status for each in (await queue.read_state()).jobs]


# Ranges


NUMBER = 3000
LIMITS = Limits(hot_bytes=1, batch_size=1000)


async def filled(storage=None, **options):
    """A queue with numbered jobs in segments."""
    queue = broker(storage, limits=LIMITS, **options)
    async with queue:
        await queue.enqueue_many(Enqueue("work", b"%d" % place) for place in range(NUMBER))
    return queue


async def counts(queue):
    """Numbers of jobs: done, waiting, scheduled, in progress, dead."""
    stats = await queue.stats()
    return stats.totals.done, stats.depth, stats.scheduled, stats.in_progress, stats.dead


@pytest.mark.parametrize("batch", [10, 1000])
@in_virtual_time
async def test_thousands_of_jobs_are_done_in_few_commits(batch):
    worker = Worker()
    calls = recording(worker, batch=batch)
    async with await filled() as queue:
        version = (await queue.read_state()).version
        assert RunReport(succeeded=NUMBER) == await drained(worker, queue)
        assert (await queue.read_state()).version - version < 30
        assert (NUMBER, 0, 0, 0, 0) == await counts(queue)
    sizes = [len(payloads) for _, payloads in calls]
    assert (NUMBER, batch) == (sum(sizes), max(sizes))


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
async def test_a_worker_that_stops_gives_back_the_jobs_of_a_range_that_it_has_not_begun():
    queue, worker, sizes = await filled(), Worker(concurrency=2, grace=30), list[int]()

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        sizes.append(len(numbers))
        await asyncio.sleep(0.1)

    async with queue, working(worker, queue) as task:
        await until(lambda: len(sizes) >= 10)
        worker.stop()
        assert RunReport(succeeded=sum(sizes)) == await task
        assert (sum(sizes), NUMBER - sum(sizes), 0, 0, 0) == await counts(queue)
        assert {0} == {job.failures for job in await queue.peek("work", batch_size=500)}


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
async def test_jobs_of_a_segment_that_cannot_be_read_wait_and_all_others_are_done(caplog):
    storage, done = InMemoryStorage(clock=VirtualClock()), list[int]()
    [name] = (await (await filled(storage)).read_state()).segments
    queue, worker = broker(storage, limits=LIMITS), Worker(concurrency=2)

    @worker.handler("work", batch=100)
    async def work(numbers: list[int]) -> None:
        done.extend(numbers)
        await asyncio.sleep(0.1)

    async with queue, working(worker, queue):
        await until(lambda: done)
        whole = await remove_segment(storage, name)
        await queue.enqueue("work", b"3000")
        await asyncio.sleep(30)
        assert (len(done), 3000 in done) == (len(set(done)), True)
        assert (len(done), NUMBER + 1 - len(done), 0, 0, 0) == await counts(queue)
        assert "not all jobs of work can be done" in caplog.text
        assert (await queue.read_state()).version < 60
        await restore_segment(storage, name, whole)
        await asyncio.sleep(120)
        assert (NUMBER + 1, 0, 0, 0, 0) == await counts(queue)
    assert list(range(NUMBER + 1)) == sorted(done)
