"""The end of a worker: the jobs that it finishes or hands back, the order of its last steps, and signals."""

import asyncio
import os
import signal
import threading
from contextlib import asynccontextmanager, contextmanager

import pytest

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import QUEUED, CountingStorage, broker, direct, drained, only_job, stubborn, until, working


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


class SlowAnswers(CountingStorage):
    """A store in memory that does each write at once and answers a second later."""

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match)
        await asyncio.sleep(1)
        return etag


@in_virtual_time
async def test_a_job_that_is_being_claimed_when_the_worker_stops_is_handed_back_before_it_ends():
    worker, work, begun, _, _ = sleeper(1)
    storage = SlowAnswers()
    async with working(worker, direct(storage)) as task:
        await work.enqueue(direct(storage.memory), 1)
        await until(lambda: storage.writes)  # it is claimed, and nobody here knows
        worker.stop()
        assert RunReport() == await task
    job = await only_job(direct(storage.memory))
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
    await work.enqueue(direct(storage), 1)
    async with working(worker, queue):
        await until(lambda: begun)
    assert ([1], [QUEUED, "queue closed"]) == (cancelled, events)


@pytest.mark.parametrize("everything", [False, True])
@in_virtual_time
async def test_cancelling_run_or_all_tasks_of_a_program_hands_jobs_back_before_it_returns(everything):
    worker, work, begun, _, cancelled = sleeper(1000, grace=600)
    async with broker() as queue:
        await work.enqueue(queue, 1, max_attempts=1)
        others = asyncio.all_tasks()
        task = asyncio.create_task(worker.run(queue, signals=False))
        await until(lambda: begun)
        mine = [other for other in asyncio.all_tasks() - others if other.get_name() != "jqueue-writer"]
        for other in sorted(mine, key=lambda other: other is task):  # the handler's before the worker's
            if everything or other is task:
                other.cancel()
        before = now()
        with pytest.raises(asyncio.CancelledError):
            await task
        job = await only_job(queue)
    assert ([1], QUEUED, 0, True) == (cancelled, job.status, job.failures, now() - before < 0.1)


@in_virtual_time
async def test_a_worker_stops_even_if_its_outcomes_cannot_be_written():
    worker, work, begun, *_ = sleeper(100, grace=1)
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage, deadline=3) as queue:
        await work.enqueue(queue, 1)
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
        await work.enqueue(queue, 1)  # the worker has left it open
        assert RunReport(succeeded=1) == await drained(worker, queue)
    with pytest.raises(RuntimeError, match="no handlers"):
        await Worker().run(direct())
    with pytest.raises(TypeError, match=r"`connect\(url, BrokerQueue\)`"):
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


def send_in_a_thread(number):
    """Send a signal to a thread: the system does so at times, and does not interrupt the main thread then."""
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), number))
    thread.start()
    thread.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_all_workers_of_a_program_even_if_another_thread_gets_it(number):
    begun, go_on, usr1 = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    workers = [Worker(), Worker()]

    async def work() -> None:
        begun.release()
        await go_on.wait()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, usr1.set)  # the program's own, which goes on working
    with own_handler(number):
        async with broker() as first, broker() as second, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            runs = []
            for worker, queue in zip(workers, (first, second), strict=True):
                await worker.handler("work")(work).enqueue(queue)
                runs.append(tasks.create_task(worker.run(queue)))
                await begun.acquire()
            await asyncio.to_thread(send_in_a_thread, number)
            os.kill(os.getpid(), signal.SIGUSR1)
            await usr1.wait()
            go_on.set()
        assert [RunReport(succeeded=1)] * 2 == [run.result() for run in runs]
    loop.remove_signal_handler(signal.SIGUSR1)
    assert -1 == signal.set_wakeup_fd(-1)


async def test_a_second_signal_hands_jobs_back_at_once():
    worker, begun = Worker(grace=1000), asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.set()
        await asyncio.sleep(1000)

    async with broker() as queue, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        await work.enqueue(queue)
        run = tasks.create_task(worker.run(queue))
        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        assert RunReport(handed_back=1) == await run


def test_a_worker_in_another_thread_leaves_signals_alone_and_is_stopped_from_any_thread():
    before, worker, begun = signal.getsignal(signal.SIGTERM), Worker(), threading.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.set()

    async def main():
        async with broker() as queue:
            await work.enqueue(queue)
            assert RunReport(succeeded=1) == await worker.run(queue)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert begun.wait(60)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert signal.getsignal(signal.SIGTERM) is before
