"""A worker that is bound to a queue: its handlers and `run` use it where none is given."""

import asyncio
import json
from typing import Any

import pytest

from jqueue import DirectQueue, InMemoryStorage, Job, connect
from jqueue.sync import SyncQueue
from jqueue.worker import Context, Router, RunReport, Worker
from tests.worker.scenes import broker, drained

pytestmark = pytest.mark.virtual_time

BOTH_WAYS = r"Give it to each call, as in `work.using\(queue\).enqueue\(...\)`, or once: `worker.bind\(queue\)`"


def one_handler(registrar: Router):
    """A handler that returns its number."""

    @registrar.handler(keep_result=60)
    async def work(number: int = 3) -> int:
        return number

    return work


async def waiting(queue):
    """The payloads of a queue's jobs."""
    jobs = (await queue.read_state()).jobs
    assert {"named"} >= {job.encoding for job in jobs}
    return [b"%d" % number for job in jobs for number in json.loads(job.payload).values()]


async def test_a_queue_bound_once_is_that_of_enqueue_of_result_and_of_run_unless_another_is_given():
    worker = Worker()
    work = one_handler(worker)
    async with broker() as queue, broker() as given:
        worker.bind(queue)
        await work.using(given).enqueue(3)
        jobs = [await work.enqueue(5), await work.enqueue(number=6), await work.enqueue()]
        jobs.append(await work.using(priority=4, delay=0).enqueue(7))
        assert RunReport(succeeded=4) == await worker.run(drain=True, signals=False)
        assert [5, 6, 3, 7] == [await work.result(job) for job in jobs]
        assert 7 == await work.result(jobs[3].id, timeout=1)
        assert [b"3"] == await waiting(given)
    assert 4 == jobs[3].priority


def test_the_repr_of_a_worker_shows_its_name_its_queue_and_the_number_of_its_handlers():
    worker, queue = Worker(name="mail"), DirectQueue(InMemoryStorage())
    one_handler(worker)
    assert "Worker(name='mail', handlers=1)" == repr(worker)
    worker.bind(queue)
    assert f"Worker(name='mail', queue={queue!r}, handlers=1)" == repr(worker)


def test_with_a_sync_queue_enqueue_sync_and_result_sync_need_no_await(tmp_path):
    worker = Worker()
    work = one_handler(worker)
    with SyncQueue(str(tmp_path / "queue.json")) as queue:
        worker.bind(queue)
        job = work.enqueue_sync(5)
        assert isinstance(job, Job)
        with pytest.raises(TypeError, match="is a SyncQueue: call enqueue_sync and result_sync"):
            work.enqueue(5)
        with pytest.raises(TypeError, match="is a SyncQueue: call enqueue_sync and result_sync"):
            work.result(job)
        other = Worker()
        other.handler("work", keep_result=60)(work)
        asyncio.run(other.run(connect(str(tmp_path / "queue.json"), DirectQueue), drain=True, signals=False))
        assert 5 == work.result_sync(job, timeout=30)


async def test_without_a_queue_the_error_shows_both_ways():
    worker = Worker()
    work: Any = one_handler(worker)
    for call in (work.enqueue, work.enqueue_sync, work.result, work.result_sync):
        with pytest.raises(TypeError, match=BOTH_WAYS):
            call(5)
    with pytest.raises(TypeError, match=r"`worker.run\(queue\)`, or `worker.bind\(queue\)`"):
        await worker.run()
    for wrong in ("queue.json", None, work.function):
        with pytest.raises(TypeError, match=r"worker\.bind takes a queue, got"):
            worker.bind(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"work\.using takes a queue, got str"):
        work.using("queue.json")
    with pytest.raises(TypeError, match="there is no option 'dely'"):
        work.using(dely=5)
    async with broker() as queue:
        with pytest.raises(TypeError, match="is async: await enqueue and result"):
            work.using(queue).enqueue_sync(5)


async def test_a_call_is_a_value_with_its_options_for_enqueue_many_and_on_ack():
    worker = Worker()

    @worker.handler(priority=3)
    async def following(number: int) -> None: ...

    @worker.handler
    async def first(ctx: Context) -> None:
        ctx.on_ack(following.using(delay=60).call(1))

    call = following.using(unique_key="key", delay=5).using(delay=7).call(2)
    assert ("following", b'{"number":2}', "key", 3, 7) == (
        call.entrypoint,
        call.payload,
        *_options(call, "unique_key", "priority", "delay"),
    )
    assert "2" not in repr(call)
    with pytest.raises(TypeError, match=r"following\.using\(deadline=...\)\.call"):
        following.using(deadline=5).call(2)
    async with broker() as queue:
        assert ["first", "following"] == [job.entrypoint for job in await queue.enqueue_many([first.call(), call])]
        assert RunReport(succeeded=1) == await drained(worker, queue)
        assert [b"1", b"2"] == sorted(await waiting(queue))


def _options(call, *names):
    """The values of options of a call's operation."""
    return [getattr(call.operation(), name) for name in names]


async def test_the_handlers_of_a_router_have_the_queue_of_the_worker_that_includes_it():
    router, first, second = Router(), Worker(), Worker()
    work: Any = one_handler(router)
    async with broker() as queue, broker() as other:
        with pytest.raises(TypeError, match="none was given, and none is bound"):
            work.enqueue(1)
        first.include(router)
        first.bind(queue)
        await work.enqueue(1)
        second.include(router)
        await work.enqueue(2)  # only one of its workers is bound
        second.bind(queue)
        await work.enqueue(3)
        second.bind(other)
        with pytest.raises(TypeError, match=rf"or its workers have\. {BOTH_WAYS}"):
            work.enqueue(4)
        await second.handlers["work"].enqueue(5)
        assert [[b"1", b"2", b"3"], [b"5"]] == [await waiting(each) for each in (queue, other)]


async def test_while_a_worker_runs_unbound_code_on_its_loop_has_its_queue_and_threads_have_none():
    worker, errors = Worker(), list[str]()
    work: Any = one_handler(worker)

    @worker.handler
    async def first() -> None:
        await work.enqueue(1)

    @worker.handler
    def in_a_thread() -> None:
        try:
            work.enqueue_sync(2)
        except TypeError as error:
            errors.append(str(error))

    async with broker() as queue:
        await first.using(queue).enqueue()
        await in_a_thread.using(queue).enqueue()
        assert RunReport(succeeded=3) == await drained(worker, queue)
        with pytest.raises(TypeError, match=BOTH_WAYS):
            work.enqueue(1)
        await first.using(queue).enqueue()
        async with broker() as other:
            worker.bind(other)  # comes before the queue of the run
            assert RunReport(succeeded=1) == await drained(worker, queue)
            assert [b"1"] == await waiting(other)
    assert 1 == len(errors)
