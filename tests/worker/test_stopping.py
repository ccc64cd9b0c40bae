"""The end of a worker: the jobs that it finishes or hands back, the order of its last steps, and signals."""

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

from jqueue import BrokerQueue, InMemoryStorage, InvalidJobError, Limits
from jqueue.domain.header import WorkerRecord
from jqueue.domain.operations.operator import Attend
from jqueue.errors import WorkerNotFoundError
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, RunReport, Worker
from jqueue.worker.signals import handle_signals
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import QUEUED, broker, counted, direct, drained, only_job, stubborn, until, working


def sleeper(seconds, **options):
    """A worker and its handler, which sleeps, and the payloads that began, that ended and that were cancelled."""
    worker, begun, ended, cancelled = Worker(**options), [], [], []

    @worker.handler("work")
    async def work(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        ended.append(number)

    return worker, work, begun, ended, cancelled


@pytest.mark.parametrize("limit", [{"max_jobs": 3}, {"max_memory": 1}])
@in_virtual_time
async def test_a_worn_worker_claims_no_more_jobs_and_ends_when_those_that_it_has_are_done(limit):
    worker = Worker(concurrency=2, grace=1, **limit)

    @worker.handler
    async def work(seconds: int) -> None:
        await asyncio.sleep(seconds)

    async with broker() as queue:
        for seconds in (1000, 1, 1, 1, 1, 1):
            await work.using(queue).enqueue(seconds)
        report = await worker.run(queue)
        assert (True, 0) == (report.worn, report.handed_back)
        assert report.total == 6 - len((await queue.read_state()).queued_jobs()) <= 3
        assert "succeeded" in f"{report}"
        worker.settings = replace(worker.settings, max_jobs=None, max_memory=None)
        assert RunReport(succeeded=6 - report.total) == await worker.run(queue, drain=True)


class SlowAnswers(FaultyStorage):
    """A store in memory that does each write at once and answers a second later."""

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match)
        await asyncio.sleep(1)
        return etag


@in_virtual_time
async def test_a_job_whose_claim_is_answered_in_the_moment_of_a_stop_is_done():
    class Stopping(BrokerQueue):
        async def dequeue(self, *arguments, **options):
            jobs = await super().dequeue(*arguments, **options)
            if jobs:
                worker.stop()
            return jobs

    worker, work, *_ = sleeper(1)
    async with broker(kind=Stopping) as queue, working(worker, queue) as task:
        await asyncio.sleep(5)  # it waits for jobs by a long poll
        await work.using(queue).enqueue(1)
        assert RunReport(succeeded=1) == await task


@in_virtual_time
async def test_a_job_that_is_being_claimed_when_the_worker_stops_is_handed_back_before_it_ends():
    worker, work, begun, _, _ = sleeper(1)
    storage = SlowAnswers(InMemoryStorage(clock=VirtualClock()))
    async with working(worker, direct(storage)) as task:
        await work.using(direct(storage.storage)).enqueue(1)
        await until(lambda: storage.writes)  # it is claimed, and nobody here knows
        worker.stop()
        assert RunReport() == await task
    job = await only_job(direct(storage.storage))
    assert ([], QUEUED, 0) == (begun, job.status, job.failures)


@pytest.mark.parametrize(("stops", "seconds"), [(1, 15), (2, 0)])
@in_virtual_time
async def test_a_handler_that_ignores_cancellation_is_left_after_cancel_grace_or_a_second_stop(stops, seconds):
    worker, over = stubborn(timeout=None, grace=10, cancel_grace=5)
    async with broker() as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await asyncio.sleep(1)
            for _ in range(stops):
                worker.stop()
            assert RunReport(handed_back=1, stuck=1) == await task
        assert 1 + seconds == round(now())
        assert 0 == (await only_job(queue)).failures
        over.set()


@in_virtual_time
async def test_outcomes_are_in_the_queue_before_the_lifespan_ends_and_before_the_queue_closes():
    events: list[object] = []

    class Watched(BrokerQueue):
        async def stop(self, **options):
            events.append("queue closed")
            await super().stop(**options)

    @asynccontextmanager
    async def lifespan():
        yield
        events.append((await only_job(queue)).status)

    worker, work, begun, _, cancelled = sleeper(100, grace=1, lifespan=lifespan)
    storage = InMemoryStorage(clock=VirtualClock())
    queue = broker(storage, Watched)
    await work.using(direct(storage)).enqueue(1)
    async with working(worker, queue):
        await until(lambda: begun)
    assert ([1], [QUEUED, "queue closed"]) == (cancelled, events)


async def cancelled_once(worker, queue, condition, stops=0, *, everything=True):
    """Run a worker until a condition holds, and cancel its run, or all tasks as at the end of a program.

    Returns the seconds until it has ended. The writer of a queue is not its worker's.
    """
    others = asyncio.all_tasks()
    task = asyncio.create_task(worker.run(queue, signals=False))
    await until(condition)
    for _ in range(stops):
        worker.stop()
        await asyncio.sleep(1)  # the end has begun, and waits for the handler
    mine = [other for other in asyncio.all_tasks() - others if other.get_name() != "jqueue-writer"]
    for other in sorted(mine, key=lambda other: other is task):  # the handler's before the worker's
        if everything or other is task:
            other.cancel()
    before = now()
    with pytest.raises(asyncio.CancelledError):
        await task
    return now() - before


@pytest.mark.parametrize("stops", [0, 1])
@pytest.mark.parametrize("everything", [False, True])
@in_virtual_time
async def test_cancelling_run_or_all_tasks_of_a_program_hands_jobs_back_before_it_returns(everything, stops):
    worker, work, begun, _, cancelled = sleeper(1000, grace=600)
    async with broker() as queue:
        await work.using(queue, max_attempts=1).enqueue(1)
        seconds = await cancelled_once(worker, queue, lambda: begun, stops, everything=everything)
        job = await only_job(queue)
    assert ([1], QUEUED, 0, True) == (cancelled, job.status, job.failures, seconds < 0.1)


@in_virtual_time
async def test_a_job_is_handed_back_unharmed_if_all_tasks_are_cancelled_before_its_ack_is_answered():
    class Deaf(BrokerQueue):
        async def apply(self, *operations, **options):
            acked.append(operations)
            await asyncio.Event().wait()

    worker, acked = Worker(), list[object]()

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        ctx.on_ack(Enqueue("other"))

    async with broker(kind=Deaf) as queue:
        await work.using(queue, max_attempts=1).enqueue()
        await cancelled_once(worker, queue, lambda: acked)
        job = await only_job(queue)
    assert (QUEUED, 0) == (job.status, job.failures)


@in_virtual_time
async def test_a_job_whose_ack_is_refused_right_before_all_tasks_are_cancelled_is_sent_once_more():
    class Deaf(BrokerQueue):
        async def apply_each(self, *operations, **options):
            calls.append(operations)
            if len(calls) == 1:
                return [InvalidJobError("refused")] * len(operations)
            if len(calls) == 2:
                await asyncio.Event().wait()
            return await super().apply_each(*operations, **options)

    worker, calls, go_on = Worker(concurrency=3), list[tuple[object, ...]](), asyncio.Event()
    worker.handler("work")(go_on.wait)
    async with broker(kind=Deaf, limits=Limits(batch_size=2)) as queue:
        for _ in range(3):
            await queue.enqueue("work", b"")
        asyncio.get_running_loop().call_later(1, go_on.set)
        await cancelled_once(worker, queue, lambda: len(calls) == 2)
    assert 3 == sum(len(operations) for operations in calls[2:])


@in_virtual_time
async def test_a_worker_stops_even_if_its_outcomes_cannot_be_written():
    worker, work, begun, *_ = sleeper(100, grace=1)
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage, deadline=3) as queue:
        await work.using(queue).enqueue(1)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            storage.on_write(*[Fault.LOST_REQUEST] * 1000)
            before = now()
            worker.stop()
            assert RunReport() == await task
            assert 30 <= now() - before <= 35


@in_virtual_time
async def test_a_worker_cannot_run_twice_at_once_without_handlers_or_on_what_is_no_queue():
    worker, work, *_ = sleeper(1)
    async with broker() as queue:
        async with working(worker, queue):
            await asyncio.sleep(1)
            with pytest.raises(RuntimeError, match="already running"):
                await worker.run(queue)
        await work.using(queue).enqueue(1)  # the worker has left it open
        assert RunReport(succeeded=1) == await drained(worker, queue)
    with pytest.raises(RuntimeError, match="no handlers"):
        await Worker().run(direct())
    with pytest.raises(TypeError, match=r"runs on an async queue, got SyncQueue: `connect\(url\)` makes one$"):
        await worker.run(SyncQueue(direct()))
    with pytest.raises(TypeError, match=r"`connect\(url\)`"):
        await worker.run("s3://bucket/queue.json")


# Signals


@contextmanager
def own_handler(number):
    """Handle a signal, as a server in the same program may do, and check that its handler is called and restored."""
    heard = []

    def hear(*arguments):
        heard.append(arguments[0])

    before = signal.signal(number, hear)
    try:
        yield
        assert signal.getsignal(number) is hear
        assert [number] == heard
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_all_workers_of_a_program(number):
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()
    workers = [Worker(), Worker()]

    async def work() -> None:
        begun.release()
        await go_on.wait()

    with own_handler(number):
        async with broker() as first, broker() as second, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            runs = []
            for worker, queue in zip(workers, (first, second), strict=True):
                await worker.handler("work")(work).using(queue).enqueue()
                runs.append(tasks.create_task(worker.run(queue)))
                await begun.acquire()
            os.kill(os.getpid(), number)
            go_on.set()
        assert [RunReport(succeeded=1)] * 2 == [run.result() for run in runs]


async def test_a_signal_that_another_thread_gets_wakes_an_idle_event_loop():
    stopped = asyncio.Event()
    with handle_signals(stopped.set):
        thread = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()
        async with asyncio.timeout(60):
            await stopped.wait()
    thread.join()


def test_a_worker_in_another_thread_leaves_signals_alone_and_is_stopped_from_any_thread():
    before, worker, begun = signal.getsignal(signal.SIGTERM), Worker(), threading.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.set()

    async def main():
        async with broker() as queue:
            await work.using(queue).enqueue()
            assert RunReport(succeeded=1) == await worker.run(queue)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert begun.wait(60)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("seconds", [0, 1000])
@in_virtual_time
async def test_an_operator_stops_a_worker_that_is_idle_or_busy_and_no_other(seconds):
    storage = counted()
    worker, work, begun, ended, cancelled = sleeper(seconds, name="mailer", grace=5)
    other, *_ = sleeper(0, name="other")
    operator = direct(storage.storage)
    await work.using(operator).enqueue(1)
    async with working(worker, direct(storage)) as task, working(other, direct(storage)) as others_task:
        await asyncio.sleep(10)
        assert [[1], [1] * (not seconds)] == [begun, ended]
        [told] = await operator.stop_worker("mailer")
        assert ("mailer", True) == (told.name, told.stopping)
        before = now()
        report = await task
        assert (now() - before < 15, 1 if seconds else 0) == (True, report.handed_back)
        assert not others_task.done()
        assert ["other"] == [record.name for record in (await operator.stats()).workers]
    assert [1] * bool(seconds) == cancelled


@in_virtual_time
async def test_the_order_to_stop_lasts_until_the_worker_has_left_and_holds_for_one_run():
    storage = counted(0.05)
    worker, work, begun, ended, _ = sleeper(8, name="mailer", grace=100)
    async with direct(storage) as queue:
        for number in range(3):
            await work.using(queue).enqueue(number)
        async with working(worker, queue) as task:
            await asyncio.sleep(4)
            operator = direct(storage.storage)
            [record] = (await operator.stats()).workers
            assert [True] == [told.stopping for told in await operator.stop_worker(record.holder)]
            before = (await operator.read_state()).version
            assert [True] == [told.stopping for told in await operator.stop_worker("mailer")]
            assert before == (await operator.read_state()).version  # it is told already
            await asyncio.sleep(2)
            await operator.enqueue("work", b"9")
            assert [True] == [
                record.stopping for record in (await operator.stats()).workers
            ]  # after commits of its own
            assert RunReport(succeeded=3) == await task
        assert () == (await operator.stats()).workers
        assert RunReport(succeeded=1) == await drained(worker, queue)  # another run of it works
    assert [0, 1, 2, 9] == begun == ended


@in_virtual_time
async def test_stopping_an_unknown_worker_says_what_a_name_is_and_changes_nothing():
    operator = direct()
    await operator.enqueue("work", b"")
    for name in ("nobody", "mailer@east:1"):
        with pytest.raises(WorkerNotFoundError, match=r"name@host:pid as `jqueue stats`") as raised:
            await operator.stop_worker(name)
        assert name == raised.value.worker
    assert 1 == (await operator.read_state()).version


@in_virtual_time
async def test_a_record_that_a_worker_shows_tells_nobody_to_stop():
    queue, at = direct(), VirtualClock().now().timestamp()
    assert [[]] == await queue.apply(Attend({"run": WorkerRecord(name="mailer", at=at, stopping=True)}))
    assert [False] == [record.stopping for record in (await queue.stats()).workers]
    await queue.stop_worker("run")
    assert [["run"]] == await queue.apply(Attend({"run": WorkerRecord(name="mailer", at=at)}))


@in_virtual_time
async def test_an_order_to_stop_is_kept_when_there_are_more_workers_than_records():
    queue, at = direct(), VirtualClock().now().timestamp()
    await queue.apply(Attend({"told": WorkerRecord(name="mailer", at=at - 60)}))
    await queue.stop_worker("mailer")
    for first in (0, 150):
        workers = {f"run-{pid}": WorkerRecord(name="other", pid=pid, at=at) for pid in range(first, first + 150)}
        await queue.apply(Attend({**workers}))
    kept = (await queue.stats()).workers
    assert (256, ["mailer"]) == (len(kept), [record.name for record in kept if record.stopping])
