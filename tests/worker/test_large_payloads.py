"""Handlers and large payloads: loaded before the call, read in pieces, or refused with advice."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, Worker
from tests.virtual_world import in_virtual_time
from tests.worker import process_handlers
from tests.worker.scenes import broker, only_job

LARGE = bytes(range(256)) * 10
LIMITS = Limits(object_bytes=100, payload_bytes=5000)


async def pieces():
    for _ in range(10):
        yield LARGE


async def drain(worker, queue):
    return await worker.run(queue, signals=False, drain=True)


@in_virtual_time
async def test_a_handler_sees_the_bytes_of_a_large_payload():
    worker, seen = Worker(), list[bytes | str]()

    @worker.handler("work")
    async def work(payload: bytes, ctx: Context) -> None:
        seen.append(payload)
        seen.append(b"".join([piece async for piece in ctx.open_payload()]))

    @worker.handler("text")
    def text(payload: str) -> None:
        seen.append(payload)

    async with broker(limits=LIMITS) as queue:
        await queue.enqueue_many([Enqueue("work", LARGE), Enqueue("text", b"x" * 500)])
        assert 2 == (await drain(worker, queue)).succeeded
    assert [LARGE, LARGE, "x" * 500] == sorted(seen, key=lambda value: (isinstance(value, str), str(value)))


@in_virtual_time
async def test_a_batch_has_large_payloads_and_one_too_large_fails_alone():
    worker, seen = Worker(), list[bytes]()

    @worker.handler("work", batch=10)
    async def work(payloads: list[bytes]) -> None:
        seen.extend(payloads)

    async with broker(limits=LIMITS) as queue:
        await queue.enqueue("work", pieces())
        await queue.enqueue_many([Enqueue("work", LARGE), Enqueue("work", b"small")])
        report = await drain(worker, queue)
        assert (2, 1) == (report.succeeded, report.dead)
        assert "too many to load" in (await only_job(queue)).error
    assert {LARGE, b"small"} == set(seen)


@in_virtual_time
async def test_a_handler_reads_a_payload_larger_than_memory_in_pieces():
    worker, seen = Worker(), []

    @worker.handler("film")
    async def film(ctx: Context) -> None:
        assert ctx.job.payload_apart
        async for piece in ctx.open_payload():
            seen.append(piece)
        ctx.on_ack(Enqueue("next", LARGE))
        await ctx.queue.enqueue("next", pieces())

    async with broker(limits=LIMITS) as queue:
        await queue.enqueue("film", pieces())
        assert 1 == (await drain(worker, queue)).succeeded
        following = await queue.dequeue("next", batch_size=2)
    assert LARGE * 10 == b"".join(seen)
    assert {(LARGE, False), (b"", True)} == {(job.payload, job.payload_apart) for job in following}


async def test_a_handler_in_a_thread_reads_a_large_payload_in_pieces():
    worker, seen = Worker(), []

    @worker.handler("film")
    def film(ctx: Context) -> None:
        assert ctx.job.payload_apart
        seen.append(b"".join(ctx.payload_pieces()))
        seen.append(next(ctx.payload_pieces()))

    @worker.handler("song")
    async def song(ctx: Context) -> None:
        with pytest.raises(RuntimeError, match="open_payload"):
            next(ctx.payload_pieces())

    async with BrokerQueue(InMemoryStorage(), limits=LIMITS) as queue:
        await queue.enqueue("film", pieces())
        await queue.enqueue("song", b"")
        assert 2 == (await drain(worker, queue)).succeeded
    assert [LARGE * 10, True] == [seen[0], LARGE.startswith(seen[1]) or seen[1].startswith(LARGE)]


@in_virtual_time
async def test_a_handler_that_takes_no_payload_loads_no_large_one():
    class Unreadable(InMemoryStorage):
        async def read_object(self, suffix, start=0, stop=None):
            raise AssertionError("nothing needs the object")

    worker = Worker()

    @worker.handler("film")
    async def film() -> None:
        return

    async with broker(Unreadable(clock=VirtualClock()), limits=LIMITS) as queue:
        await queue.enqueue("film", pieces())
        assert 1 == (await drain(worker, queue)).succeeded


@in_virtual_time
async def test_a_handler_that_takes_a_payload_too_large_to_load_is_told_how_to_read_it():
    worker = Worker()

    @worker.handler("film")
    async def film(payload: bytes) -> None:
        raise AssertionError("it must not be called without its payload")

    async with broker(limits=LIMITS) as queue:
        await queue.enqueue("film", pieces())
        await drain(worker, queue)
        job = await only_job(queue)
    assert (JobStatus.DEAD, True) == (job.status, "ctx.open_payload()" in job.error)
    assert "25600 bytes" in job.error


@in_virtual_time
async def test_a_job_whose_object_is_missing_is_dead_and_the_others_are_done():
    worker, seen = Worker(), []

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        seen.append(payload)

    async with broker(limits=LIMITS) as queue:
        lost = await queue.enqueue("work", LARGE)
        await queue.storage.remove_object(lost.payload_object.suffix)
        await queue.enqueue("work", b"small")
        assert 1 == (await drain(worker, queue)).succeeded
        job = await only_job(queue)
    assert (lost.id, JobStatus.DEAD, [b"small"]) == (job.id, job.status, seen)
    assert lost.payload_object.suffix in job.error


@in_virtual_time
async def test_a_large_result_of_a_handler_is_kept():
    worker = Worker()

    @worker.handler("work", keep_result=60)
    async def work() -> list[str]:
        return ["x" * 100] * 10

    async with broker(limits=LIMITS) as queue:
        job = await queue.enqueue("work")
        await drain(worker, queue)
        assert ["x" * 100] * 10 == await queue.result(job)
        assert (await only_job(queue)).result_object.size > 1000


async def test_a_handler_in_a_process_gets_a_large_payload_and_no_payload_too_large_to_load():
    async with BrokerQueue(InMemoryStorage(), limits=LIMITS) as queue:
        job = await queue.enqueue("size", LARGE)
        dead = await queue.enqueue("size", pieces())
        async with asyncio.timeout(60):
            await drain(process_handlers.worker, queue)
        assert 2560 == await queue.result(job)
        failed = next(each for each in (await queue.read_state()).jobs if each.id == dead.id)
    assert (JobStatus.DEAD, True) == (failed.status, "ctx.open_payload()" in str(failed.error))
