"""A store that fails: the worker goes on, repeats each outcome until it is written, and logs the outage once."""

import asyncio
import logging

import pytest

from jqueue import DeadlineExceededError, QueueFullError, StorageError, UnknownOutcomeError
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import StorageFatalError
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from jqueue.worker import Exponential, RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import broker, until, working

ERRORS = [
    StorageError("the connection was reset"),
    UnknownOutcomeError("the answer was lost"),
    DeadlineExceededError("too late"),
    QueueFullError("no room"),
]


def counting(**options):
    worker, done = Worker(**options), []

    @worker.handler("work")
    async def work(number: int) -> None:
        done.append(number)

    return worker, work, done


def failing(queue, verb, errors):
    """Make the first calls of a verb raise these errors. Returns the list of the times of all calls."""
    calls, real = [], getattr(queue, verb)

    async def call(*args, **options):
        calls.append(now())
        if errors:
            raise errors.pop(0)
        return await real(*args, **options)

    setattr(queue, verb, call)
    return calls


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("verb", ["dequeue", "apply_each", "heartbeat_many"])
def test_errors_of_the_store_do_not_end_the_worker(verb, error):
    async def main():
        worker, done = Worker(claim_timeout=30), []

        @worker.handler("work")
        async def work() -> None:
            await asyncio.sleep(25)
            done.append(1)

        async with broker() as queue:
            await queue.enqueue("work", b"")
            calls = failing(queue, verb, [error] * 3)
            assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
            assert () == (await queue.read_state()).jobs
            assert ([1], True) == (done, len(calls) >= 4)

    run(main())


@in_virtual_time
async def test_an_ack_whose_answer_is_lost_is_repeated_and_counts_once():
    worker, work, done = counting()
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage) as queue:
        await queue.enqueue_many([work.operation(number) for number in range(5)])
        real = queue.apply_each

        async def apply_each(*operations, **options):
            queue.apply_each = real
            await real(*operations, **options)
            raise UnknownOutcomeError("it landed, and nobody knows")

        queue.apply_each = apply_each
        assert RunReport(succeeded=5) == await worker.run(queue, drain=True, signals=False)
        assert [0, 1, 2, 3, 4] == sorted(done)
        assert () == (await queue.read_state()).jobs


@in_virtual_time
async def test_a_nack_whose_answer_is_lost_counts_as_a_failure():
    worker = Worker()

    @worker.handler("work", backoff=Exponential(1e6, 1e6))
    async def work() -> None:
        raise ValueError

    async with broker() as queue:
        await work.enqueue(queue)
        real = queue.apply_each

        async def apply_each(*operations, **options):
            queue.apply_each = real
            await real(*operations, **options)
            raise UnknownOutcomeError("it landed, and nobody knows")

        queue.apply_each = apply_each
        assert RunReport(failed=1) == await worker.run(queue, drain=True, signals=False)
        [job] = (await queue.read_state()).jobs
        assert 1 == job.failures


@in_virtual_time
async def test_a_worker_claims_no_more_jobs_while_outcomes_cannot_be_sent():
    worker, work, _done = counting(concurrency=3)
    async with broker() as queue:
        await queue.enqueue_many([work.operation(number) for number in range(9)])
        failing(queue, "apply_each", [StorageError("down")] * 6)
        most = 0
        async with working(worker, queue, drain=True) as task:
            while not task.done():
                in_progress = len(list((await queue.read_state()).in_progress_jobs()))
                most = max(most, in_progress)
                await asyncio.sleep(0.05)
            assert RunReport(succeeded=9) == await task
        assert 3 <= most <= 6  # three with unsent outcomes, and at most three claimed along with them


@in_virtual_time
async def test_failed_claims_are_retried_at_growing_intervals():
    worker, _, _ = counting()
    async with broker() as queue:
        calls = failing(queue, "dequeue", [StorageError("down")] * 10_000)
        async with working(worker, queue):
            await asyncio.sleep(600)
            assert 40 <= len(calls) <= 100


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(caplog):
    caplog.set_level(logging.INFO, "jqueue.worker")

    async def main():
        worker, work, done = counting()
        async with broker() as queue:
            await work.enqueue(queue, 1)
            failing(queue, "dequeue", [StorageError("the connection was reset")] * 6)
            await worker.run(queue, drain=True, signals=False)
            assert [1] == done

    run(main())
    assert [
        "worker started: up to 50 jobs at a time of work",
        "the queue at memory does not answer: claiming jobs fails and is retried: the connection was reset",
        "the queue at memory answers again: claiming jobs succeeded after 5 failures",
        "worker stopped: 1 succeeded",
    ] == [record.getMessage() for record in caplog.records if record.name == "jqueue.worker"]


@in_virtual_time
async def test_a_queue_unusable_from_the_start_ends_the_worker():
    worker, *_ = counting()
    async with broker() as queue:
        failing(queue, "dequeue", [StorageFatalError("403 Forbidden")])
        with pytest.raises(StorageFatalError, match="403"):
            await worker.run(queue, signals=False)


@in_virtual_time
async def test_a_worker_waits_for_a_queue_that_it_has_used_before():
    worker, work, done = counting()
    async with broker() as queue, working(worker, queue):
        await work.enqueue(queue, 1)
        await until(lambda: done)
        failing(queue, "dequeue", [StorageFatalError("403 Forbidden")] * 3)
        await work.enqueue(queue, 2)
        await until(lambda: len(done) == 2)


@in_virtual_time
async def test_a_bug_in_a_queue_ends_the_worker_and_hands_its_jobs_back():
    worker, begun = Worker(), []

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        await asyncio.sleep(1000)

    async with broker() as queue:
        await work.enqueue(queue)
        real = queue.dequeue

        async def dequeue(*args, **options):
            if begun:
                raise TypeError("a mistake")
            return await real(*args, **options)

        queue.dequeue = dequeue
        with pytest.raises(TypeError, match="a mistake"):
            await worker.run(queue, signals=False)
        [job] = (await queue.read_state()).jobs
        assert ("queued", 0) == (job.status, job.failures)


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
def test_all_jobs_are_done_under_faults_and_none_remains(fault):
    async def main():
        worker, work, done = counting(concurrency=4, claim_timeout=60)
        storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=0.01)
        async with broker(storage, deadline=3, call_timeout=1) as queue:
            await queue.enqueue_many([work.operation(number) for number in range(40)])
            storage.on_write(*[Fault.NONE, Fault.NONE, fault] * 4)
            report = await worker.run(queue, drain=True, signals=False)
            await asyncio.sleep(5)
            state = await queue.read_state()
        assert () == state.jobs
        assert set(range(40)) == set(done)
        assert report.succeeded + report.lost >= 40

    run(main())


@in_virtual_time
async def test_claims_with_unsent_outcomes_are_kept_by_heartbeats():
    worker, work, done = counting(claim_timeout=9)
    async with broker() as queue, broker(queue.storage) as other:
        await work.enqueue(queue, 1)
        failing(queue, "apply_each", [StorageError("down")] * 12)
        async with working(worker, queue) as task:
            await until(lambda: done)
            before = now()
            assert [] == await other.dequeue("work", wait=50)
            assert now() - before == pytest.approx(50, abs=1)
            await asyncio.sleep(100)
            worker.stop()
            assert RunReport(succeeded=1) == await task
