"""The function of a worker for dead jobs: which jobs it is called with, when, and what its errors do."""

import asyncio
import logging
import threading

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, Job
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Exponential, RunReport, Worker
from tests.shared_memory import SharedMemory
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import DEAD, SECRET, broker, direct, drained, only_job, until, working

LATER = Exponential(base=100, cap=1000)
STALE = "stale: no heartbeat within the claim's timeout"


def mourner(**options):
    """A worker whose handler fails, and the dead jobs that it was told of."""
    worker, told = Worker(**options), list[Job]()
    worker.on_dead(told.append)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        raise ValueError(payload.decode())

    return worker, told


async def fail() -> None:
    raise ValueError


async def die_with(queue, entrypoint="work", **options):
    """Claim a job for the last time, as a worker does that dies then."""
    await queue.enqueue(entrypoint, SECRET.encode(), max_attempts=1, **options)
    [job] = await queue.dequeue(entrypoint, claim_timeout=60)
    return job


@in_virtual_time
async def test_the_function_gets_a_job_whose_last_attempt_failed_once_it_is_dead_in_the_queue():
    worker, seen = Worker(), []
    queue = direct()

    @worker.on_dead
    async def tell(job):
        seen.append((job.id, job.status, job.error, job.payload, (await only_job(queue)).status))

    @worker.handler("work", backoff=LATER)
    async def work(payload: bytes) -> None:
        raise ValueError("no address")

    job = await queue.enqueue("work", b"ada", max_attempts=3)
    assert RunReport(failed=1) == await drained(worker, queue)
    assert [] == seen
    for _ in range(2):
        await asyncio.sleep(1000)
        report = await drained(worker, queue)
    dead = await only_job(queue)
    assert (RunReport(dead=1), DEAD) == (report, dead.status)
    assert [(job.id, DEAD, dead.error, b"ada", DEAD)] == seen
    assert "ValueError: no address (" in dead.error


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
@in_virtual_time
async def test_the_function_gets_a_job_of_any_queue_whose_last_attempt_died_with_its_worker(kind):
    worker, told = mourner()
    storage = InMemoryStorage(clock=VirtualClock())
    lost = [await die_with(direct(storage), name) for name in ("work", "video")]
    await direct(storage).enqueue("later", b"", max_attempts=2)
    await direct(storage).dequeue("later", claim_timeout=60)  # it is tried again
    async with working(worker, direct(), broker(storage, kind)):
        await asyncio.sleep(300)
    assert {job.id for job in lost} == {job.id for job in told}
    assert [(DEAD, STALE, SECRET.encode())] * 2 == [(job.status, job.error, job.payload) for job in told]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LANDS_LATER])
@in_virtual_time
async def test_the_function_is_called_once_for_each_job_although_answers_to_commits_are_lost(fault):
    worker, told = mourner()
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    operator = direct(storage.storage)
    await die_with(operator, "video")
    async with direct(storage) as queue, working(worker, queue):
        storage.on_write(*[fault, Fault.NONE] * 20)
        await operator.enqueue("work", b"", max_attempts=1)
        await asyncio.sleep(600)
    assert storage.writes > 4
    assert ["video", "work"] == sorted(job.entrypoint for job in told)


@in_virtual_time
async def test_a_worker_whose_process_commits_for_others_is_told_of_their_lost_jobs():
    memory = SharedMemory(clock=VirtualClock())
    (first, told_first), (second, told_second) = mourner(name="first"), mourner(name="second")
    async with broker(memory) as serving, broker(memory) as client:
        async with working(first, serving):
            await until(lambda: memory.handle is not None)
            async with working(second, client):
                await die_with(client, "video")
                await asyncio.sleep(300)
                assert [["video"], []] == [[job.entrypoint for job in told] for told in (told_first, told_second)]
                told_first.clear()
                first.stop()
                await client.enqueue("work", b"", max_attempts=1)
                await asyncio.sleep(30)
        assert [[], ["work"]] == [[job.entrypoint for job in told] for told in (told_first, told_second)]


@pytest.mark.parametrize("show_errors", [False, True])
@in_virtual_time
async def test_an_error_of_the_function_is_logged_and_harms_nothing(caplog, show_errors):
    caplog.set_level(logging.INFO, "jqueue")
    worker, seen = Worker(show_errors=show_errors), []

    @worker.on_dead
    async def tell(job):
        seen.append(job.id)
        raise (SystemExit, ZeroDivisionError)[len(seen) % 2](job.payload.decode())

    @worker.handler("work", max_attempts=1)
    async def work(payload: bytes) -> None:
        raise ValueError

    queue = direct()
    for _ in range(4):
        await queue.enqueue("work", SECRET.encode())
    assert RunReport(dead=4) == await drained(worker, queue)
    assert 4 == len(set(seen))
    failed = [record.getMessage() for record in caplog.records if "on_dead failed for job" in record.getMessage()]
    assert 4 == len(failed)
    assert "test_deaths.py" in failed[0]
    assert show_errors == (SECRET in caplog.text)


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
@in_virtual_time
async def test_a_function_without_async_is_called_in_a_thread_and_any_error_of_it_is_logged(error, caplog):
    worker, threads = Worker(), []

    @worker.on_dead
    def tell(job):
        threads.append(threading.current_thread() is threading.main_thread())
        raise error

    worker.handler("work", max_attempts=1)(fail)
    queue, before = direct(), now()
    await queue.enqueue("work", b"")
    assert RunReport(dead=1) == await drained(worker, queue)
    assert ([False], True) == (threads, now() - before < 5)
    assert f"): {type(error).__name__} at " in caplog.text


@pytest.mark.parametrize(("seconds", "ended"), [(20, True), (1000, False)])
@in_virtual_time
async def test_a_worker_that_ends_waits_for_the_function_within_its_grace(seconds, ended, caplog):
    worker, seen = Worker(grace=30), []

    @worker.on_dead
    async def tell(job):
        await asyncio.sleep(seconds)
        seen.append(job.id)

    worker.handler("work", max_attempts=1)(fail)
    async with broker() as queue:
        async with working(worker, queue) as task:
            await queue.enqueue("work", b"")
            await asyncio.sleep(1)
            worker.stop()
            assert RunReport(dead=1) == await task
        assert (ended, True) == (bool(seen), now() < 35)
    assert ended == ("was cancelled, as the worker ends" not in caplog.text)


def test_there_is_one_function_and_it_can_be_called():
    worker, _ = mourner()
    with pytest.raises(InvalidJobError, match="already has a function for dead jobs"):
        worker.on_dead(print)
    with pytest.raises(InvalidJobError, match="on_dead must be a function that takes the job, got str"):
        Worker(on_dead="tell")  # type: ignore[arg-type]
