"""The end of a worker: the jobs that it finishes, the jobs that it hands back, and the order of its last steps."""

import asyncio
import logging
import os
import signal
import threading
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, QueueClosedError
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from jqueue.worker import RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import QUEUED, CountingStorage, broker, direct, only_job, until, working


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


@in_virtual_time
async def test_a_stopped_worker_claims_no_jobs_and_finishes_those_it_has():
    worker, work, begun, ended, cancelled = sleeper(20, concurrency=2, grace=30)
    async with broker() as queue:
        await queue.enqueue_many([work.operation(number) for number in range(5)])
        async with working(worker, queue) as task:
            await until(lambda: len(begun) == 2)
            worker.stop()
            assert RunReport(succeeded=2) == await task
        assert ([0, 1], []) == (ended, cancelled)
        assert [QUEUED] * 3 == [job.status for job in (await queue.read_state()).jobs]


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


@in_virtual_time
async def test_a_job_that_is_claimed_by_the_last_poll_of_a_drain_is_done():
    worker, work, _, ended, _ = sleeper(10)
    storage = SlowAnswers()
    queue = direct(storage)
    await work.enqueue(queue, 1)
    async with working(worker, queue, drain=True) as task:
        await until(lambda: storage.writes == 3)  # the ack is on its way; the poll shares the commit after it
        await work.enqueue(queue, 2)
        await task
    assert ([1, 2], ()) == (ended, (await direct(storage.memory).read_state()).jobs)


@in_virtual_time
async def test_a_job_unfinished_after_grace_is_handed_back_uncharged():
    worker, work, begun, ended, cancelled = sleeper(1000, grace=30)
    async with broker() as queue:
        await work.enqueue(queue, 1)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            worker.stop()
            assert RunReport(handed_back=1) == await task
        assert ([], [1]) == (ended, cancelled)
        assert 30 == round(now())
        job = await only_job(queue)
        assert (QUEUED, 0, 1, None) == (job.status, job.failures, job.attempt, job.error)


@in_virtual_time
async def test_a_second_stop_hands_jobs_back_at_once():
    worker, work, begun, _, cancelled = sleeper(1000, grace=300)
    async with broker() as queue:
        await work.enqueue(queue, 1)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            worker.stop()
            await asyncio.sleep(10)
            before = now()
            worker.stop()
            assert RunReport(handed_back=1) == await task
        assert now() - before < 0.1
        assert ([1], QUEUED) == (cancelled, (await only_job(queue)).status)


@in_virtual_time
async def test_a_second_stop_does_not_wait_for_a_handler_that_ignores_cancellation():
    worker, begun, over = Worker(grace=300, cancel_grace=60), [], asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with broker() as queue:
        await work.enqueue(queue)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            before = now()
            worker.stop()
            worker.stop()
            assert RunReport(handed_back=1, stuck=1) == await task
            assert now() - before < 0.1
        assert 0 == (await only_job(queue)).failures
        over.set()
        await asyncio.sleep(1)


@in_virtual_time
async def test_a_handler_that_ignores_cancellation_at_shutdown_is_left_after_cancel_grace():
    worker, begun, over = Worker(grace=10, cancel_grace=5), [], asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with broker() as queue:
        await work.enqueue(queue)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            before = now()
            worker.stop()
            assert RunReport(handed_back=1, stuck=1) == await task
            assert 15 <= now() - before < 15.1
        over.set()
        await asyncio.sleep(1)


@in_virtual_time
async def test_outcomes_are_in_the_queue_before_the_lifespan_ends_and_before_the_queue_closes():
    events: list[Any] = []
    memory = InMemoryStorage(clock=VirtualClock())

    class Watched(BrokerQueue):
        async def stop(self, **options):
            events.append("queue closed")
            await super().stop(**options)

    @asynccontextmanager
    async def lifespan():
        yield
        events.append(("lifespan closed", len((await queue.read_state()).jobs)))

    worker = Worker(grace=1, lifespan=lifespan)

    @worker.handler("work")
    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            events.append("handler cancelled")

    queue = Watched(memory, clock=VirtualClock())
    await direct(memory).enqueue("work", b"")
    async with working(worker, queue) as task:
        await asyncio.sleep(2)
        worker.stop()
        await task
    assert ["handler cancelled", ("lifespan closed", 1), "queue closed"] == events
    assert QUEUED == (await only_job(direct(memory))).status


@in_virtual_time
async def test_a_queue_that_is_open_already_is_left_open():
    worker, work, *_ = sleeper(1)
    async with broker() as queue:
        await worker.run(queue, drain=True, signals=False)
        await work.enqueue(queue, 1)
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)


@in_virtual_time
async def test_a_queue_that_is_not_open_is_opened_and_closed():
    worker, work, *_ = sleeper(1)
    queue = broker()
    await direct(queue.storage).enqueue("work", work.encode(1))
    assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
    with pytest.raises(QueueClosedError):
        await queue.enqueue("work", b"")


@in_virtual_time
async def test_cancelling_run_hands_jobs_back_before_it_returns():
    worker, work, begun, _, cancelled = sleeper(1000)
    async with broker() as queue:
        await work.enqueue(queue, 1)
        task = asyncio.create_task(worker.run(queue, signals=False))
        await until(lambda: begun)
        before = now()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert now() - before < 0.1
        assert [1] == cancelled
        assert (QUEUED, 0) == ((await only_job(queue)).status, (await only_job(queue)).failures)


@in_virtual_time
async def test_a_program_that_cancels_all_its_tasks_at_exit_charges_no_job():
    worker, work, begun, _, cancelled = sleeper(1000, grace=600)
    async with broker() as queue:
        await work.enqueue(queue, 1, max_attempts=1)
        others = asyncio.all_tasks()
        task = asyncio.create_task(worker.run(queue, signals=False))
        await until(lambda: begun)
        mine = [other for other in asyncio.all_tasks() - others if other.get_name() != "jqueue-writer"]
        for other in sorted(mine, key=lambda other: other is task):  # the handler's before the worker's
            other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [1] == cancelled
        assert (QUEUED, 0) == ((await only_job(queue)).status, (await only_job(queue)).failures)


@in_virtual_time
async def test_a_worker_stops_even_if_its_outcomes_cannot_be_written():
    worker, begun = Worker(grace=1, settle_timeout=20), []

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        await asyncio.sleep(100)

    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage, deadline=3) as queue:
        await work.enqueue(queue)
        async with working(worker, queue) as task:
            await until(lambda: begun)
            storage.on_write(*[Fault.LOST_REQUEST] * 1000)
            before = now()
            worker.stop()
            assert RunReport() == await task
            assert 20 <= now() - before <= 25


@in_virtual_time
async def test_closing_the_queue_ends_the_worker_with_an_error():
    worker, *_ = sleeper(1)
    queue = broker()
    await queue.start()
    task = asyncio.create_task(worker.run(queue, signals=False))
    await asyncio.sleep(5)
    await queue.stop()
    with pytest.raises(QueueClosedError):
        await task


def test_sigterm_and_sigint_stop_the_worker_and_their_handlers_are_restored():
    async def main(number):
        worker, work, begun, ended, _ = sleeper(0.2)
        async with BrokerQueue(InMemoryStorage()) as queue:
            await work.enqueue(queue, 1)
            task = asyncio.create_task(worker.run(queue))
            while not begun:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), number)
            assert RunReport(succeeded=1) == await task
            assert [1] == ended

    for number in (signal.SIGTERM, signal.SIGINT):
        told: list[int] = []
        marker = lambda number, _, told=told: told.append(number)  # noqa: E731
        before = signal.signal(number, marker)
        try:
            asyncio.run(main(number))
            assert signal.getsignal(number) is marker
            assert [number] == told, "the server that it runs in is told as well"
        finally:
            signal.signal(number, before)


def test_one_signal_stops_all_workers_of_a_program():
    async def main():
        first, second = Worker(), Worker()
        for worker in (first, second):
            worker.handler("work")(idle)
        async with BrokerQueue(InMemoryStorage()) as queue, BrokerQueue(InMemoryStorage()) as other:
            tasks = [asyncio.create_task(first.run(queue)), asyncio.create_task(second.run(other))]
            while signal.getsignal(signal.SIGTERM) is before or not all(worker._run for worker in (first, second)):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGTERM)
            assert [RunReport(), RunReport()] == await asyncio.wait_for(asyncio.gather(*tasks), 10)

    async def idle() -> None: ...

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_signal_hands_jobs_back_at_once():
    async def main():
        worker, work, begun, _, _ = sleeper(1000, grace=1000)
        async with BrokerQueue(InMemoryStorage()) as queue:
            await work.enqueue(queue, 1)
            task = asyncio.create_task(worker.run(queue))
            while not begun:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
            assert RunReport(handed_back=1) == await task

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_worker_in_another_thread_leaves_signals_alone():
    before = signal.getsignal(signal.SIGTERM)

    async def main():
        worker, *_ = sleeper(1)
        async with BrokerQueue(InMemoryStorage()) as queue:
            await worker.run(queue, drain=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_stop_may_be_called_from_any_thread():
    async def main():
        worker, *_ = sleeper(1)
        async with BrokerQueue(InMemoryStorage()) as queue:
            task = asyncio.create_task(worker.run(queue))
            await asyncio.sleep(0.05)
            await asyncio.to_thread(worker.stop)
            return await task

    assert RunReport() == asyncio.run(asyncio.wait_for(main(), 10))


def test_stop_without_a_run_does_nothing():
    Worker().stop()


@in_virtual_time
async def test_a_running_worker_cannot_be_run_again():
    worker, *_ = sleeper(1)
    async with broker() as queue, working(worker, queue):
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="already running"):
            await worker.run(queue)


def test_a_worker_may_run_in_one_event_loop_after_another():
    worker, work, _, ended, _ = sleeper(0)

    async def main(number):
        async with broker() as queue:
            await work.enqueue(queue, number)
            return await worker.run(queue, drain=True, signals=False)

    assert [RunReport(succeeded=1)] * 2 == [run(main(1)), asyncio.run(main(2))]
    assert [1, 2] == ended


def test_a_worker_without_handlers_is_an_error():
    with pytest.raises(RuntimeError, match="no handlers"):
        asyncio.run(Worker().run(direct()))


def test_running_on_an_object_that_is_not_a_queue_is_an_error():
    worker, *_ = sleeper(1)
    with pytest.raises(TypeError, match=r"`connect\(url, BrokerQueue\)`"):
        asyncio.run(worker.run("s3://bucket/queue.json"))


def test_the_log_has_one_line_at_the_start_and_one_at_the_end(caplog):
    caplog.set_level(logging.INFO, "jqueue.worker")

    async def main():
        worker, work, *_ = sleeper(1, name="mailer")
        async with broker() as queue:
            await queue.enqueue_many([work.operation(number) for number in range(30)])
            await worker.run(queue, drain=True, signals=False)

    run(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "jqueue.worker"]
    assert ["mailer started: up to 50 jobs at a time of work", "mailer stopped: 30 succeeded"] == lines


def test_a_keyboard_interrupt_out_of_a_handler_ends_the_run_when_all_other_jobs_are_handed_back():
    worker, storage = Worker(), InMemoryStorage()

    @worker.handler("work")
    async def work(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt
        await asyncio.sleep(0 if number < 5 else 1000)

    async def main():
        async with BrokerQueue(storage) as queue:
            for number in range(16):
                await work.enqueue(queue, number)
            await worker.run(queue, signals=False)

    loop = asyncio.new_event_loop()  # which cancels no task at its end, unlike `asyncio.run`
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(main())
        jobs = loop.run_until_complete(DirectQueue(storage).read_state()).jobs
    finally:
        loop.close()
    assert [(QUEUED, 0)] * 11 == [(job.status, job.failures) for job in jobs]
