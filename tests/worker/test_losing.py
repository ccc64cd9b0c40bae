"""Claims that are lost and jobs that are cancelled while a handler works; and the attributes and methods of `ctx`."""

import asyncio
import logging
from datetime import timedelta

import pytest

from jqueue import ClaimLostError, InvalidJobError
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.operations import Ack, Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from jqueue.worker import Context, RunReport, Worker
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.run_state import RunState
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import DEAD, IN_PROGRESS, broker, direct, only_job, until, working


def waiting(**options):
    """A worker whose handler runs until it is cancelled, its contexts, and the time and flags of each cancellation."""
    worker, contexts, cancelled = Worker(claim_timeout=30), [], []

    @worker.handler("work", **options)
    async def work(ctx: Context) -> None:
        contexts.append(ctx)
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            cancelled.append((now(), ctx.is_cancelled, ctx.cancelled.is_set()))
            raise

    return worker, contexts, cancelled


@in_virtual_time
async def test_losing_the_claim_cancels_the_handler_and_sends_no_outcome():
    worker, contexts, cancelled = waiting()
    async with broker() as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await until(lambda: contexts)
            other = direct(queue.storage)
            await other.requeue_stale(0)
            [taken] = await other.dequeue("work")
            await until(lambda: cancelled)
            assert now() <= 11  # the time of the next heartbeat
            assert [(True, True)] == [each[1:] for each in cancelled]
            worker.stop()
            assert RunReport(lost=1) == await task
        job = await only_job(queue)
        assert (IN_PROGRESS, taken.attempt) == (job.status, job.attempt)
        await other.ack(taken)


@in_virtual_time
async def test_cancelling_a_running_job_cancels_its_handler_at_the_next_heartbeat():
    worker, contexts, cancelled = waiting()
    async with broker() as queue:
        job = await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await until(lambda: contexts)
            await queue.cancel(job.id, running=True)
            await until(lambda: cancelled)
            assert now() <= 11
            worker.stop()
            assert RunReport(cancelled=1) == await task
        assert () == (await queue.read_state()).jobs


@in_virtual_time
async def test_a_cancelled_job_is_removed_when_its_handler_has_ended():
    worker, begun, over = Worker(claim_timeout=30, cancel_grace=5), [], asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with broker() as queue:
        job = await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await until(lambda: begun)
            await queue.cancel(job.id, running=True)
            await asyncio.sleep(60)
            assert IN_PROGRESS == (await only_job(queue)).status
            over.set()
            await asyncio.sleep(1)
            assert () == (await queue.read_state()).jobs
            worker.stop()
            assert RunReport(cancelled=1) == await task


@pytest.mark.parametrize(("timeout", "stays"), [(1, "its claim and its slot are kept"), (None, "its slot is kept")])
@in_virtual_time
async def test_a_claim_that_is_lost_while_its_handler_does_not_stop_is_counted_at_once(timeout, stays, caplog):
    worker, over = Worker(claim_timeout=30, cancel_grace=5), asyncio.Event()

    @worker.handler("work", timeout=timeout)
    async def work() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with broker() as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await asyncio.sleep(60)
            other = direct(queue.storage)
            await other.requeue_stale(0)
            [taken] = await other.dequeue("work")
            await asyncio.sleep(60)
            assert stays in caplog.text
            worker.stop()
            assert RunReport(lost=1, stuck=1) == await task
        await other.ack(taken)
        over.set()


@in_virtual_time
async def test_a_claim_without_a_confirmed_heartbeat_for_its_timeout_is_lost():
    worker, contexts, cancelled = waiting()
    storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage) as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue):
            await until(lambda: contexts)
            storage.on_write(*[Fault.LOST_REQUEST] * 10_000)
            storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
            await until(lambda: cancelled)
            assert 30 <= now() <= 50
            storage._write_faults.clear()
            storage._read_faults.clear()


@in_virtual_time
async def test_an_ack_after_the_claim_is_lost_is_counted_as_lost():
    worker, begun, go_on = Worker(claim_timeout=300), [], asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        begun.append(1)
        await go_on.wait()

    async with broker() as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue, drain=True) as task:
            await until(lambda: begun)
            other = direct(queue.storage)
            await other.requeue_stale(0)
            [taken] = await other.dequeue("work")
            go_on.set()
            assert RunReport(lost=1) == await task
        await other.ack(taken)


@in_virtual_time
async def test_the_context_holds_the_job_and_the_worker():
    worker, seen = Worker(lifespan=None), []

    @worker.handler("work", timeout=30)
    async def work(ctx: Context) -> None:
        seen.append(ctx)
        with pytest.raises(AttributeError):
            setattr(ctx, "other", 1)  # noqa: B010

    async with broker() as queue:
        await queue.enqueue("work", b"", headers={"trace": "af31"})
        await asyncio.sleep(100)
        await worker.run(queue, drain=True, signals=False)
        [ctx] = seen
        assert ("work", 1, {"trace": "af31"}) == (ctx.entrypoint, ctx.attempt, dict(ctx.headers))
        assert ctx.job.claim == ctx.claim
        assert ctx.queue is queue
        assert ctx.resources is None
        assert ctx.deadline is not None
        assert 130 == pytest.approx((ctx.deadline - EPOCH).total_seconds(), abs=0.1)
        assert timedelta() == ctx.deadline.utcoffset()
        assert not ctx.is_cancelled
        assert not ctx.cancelled.is_set()


@in_virtual_time
async def test_records_of_the_context_logger_name_the_job():
    worker, records = Worker(), []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record)

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        assert ctx.deadline is None
        ctx.logger.warning("hello")

    keep = Keep(logging.WARNING)
    logging.getLogger("jqueue.worker").addHandler(keep)
    try:
        async with broker() as queue:
            job = await queue.enqueue("work", b"")
            await worker.run(queue, drain=True, signals=False)
    finally:
        logging.getLogger("jqueue.worker").removeHandler(keep)
    [record] = records
    assert ("hello", job.id, "work", 1) == (record.getMessage(), record.job_id, record.entrypoint, record.attempt)


class VersionsKept(InMemoryStorage):
    """A storage that keeps the text of each version."""

    def __init__(self):
        super().__init__(clock=VirtualClock())
        self.versions = []

    async def write(self, content, if_match=None):
        etag = await super().write(content, if_match)
        self.versions.append(content.decode())
        return etag


@in_virtual_time
async def test_on_ack_operations_run_in_the_commit_of_the_ack():
    worker, storage = Worker(), VersionsKept()

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", b"1", job_id="child-1"), Enqueue("next", b"2", job_id="child-2"))

    async with broker(storage) as queue:
        await queue.enqueue("work", b"", job_id="parent")
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
    with_children = [version for version in storage.versions if '"child-1": {' in version]
    assert with_children
    assert all('"child-2": {' in version and '"parent": {' not in version for version in with_children)
    assert not any('"parent": {' in version for version in storage.versions[-1:])


@in_virtual_time
async def test_on_ack_operations_do_not_run_when_the_handler_fails():
    worker = Worker()

    @worker.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", b""))
        raise ValueError

    async with broker() as queue:
        await queue.enqueue("work", b"")
        assert RunReport(dead=1) == await worker.run(queue, drain=True, signals=False)
        assert ("work", DEAD) == ((await only_job(queue)).entrypoint, (await only_job(queue)).status)


@in_virtual_time
async def test_a_refused_on_ack_operation_fails_the_job():
    worker = Worker()

    @worker.handler("work", max_attempts=1)
    async def work(ctx: Context) -> None:
        ctx.on_ack(Enqueue("next", b"", unique_key="taken", on_conflict="raise"), Enqueue("other", b""))

    async with broker() as queue:
        await queue.enqueue("next", b"", unique_key="taken")
        await queue.enqueue("work", b"")
        assert RunReport(dead=1) == await worker.run(queue, drain=True, signals=False)
        jobs = {job.entrypoint: job for job in (await queue.read_state()).jobs}
        assert {"next", "work"} == set(jobs)
        assert "DuplicateJobError" in jobs["work"].error


@in_virtual_time
async def test_on_ack_operations_run_once_even_if_answers_are_lost():
    for fault in (
        Fault.LOST_ANSWER,
        Fault.RESENT,
        Fault.LOST_REQUEST,
        Fault.LANDS_LATER,
        Fault.HANGS,
        Fault.HANGS_AFTER,
    ):
        worker = Worker()
        storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))

        @worker.handler("work")
        async def work(ctx: Context) -> None:
            storage.on_write(fault, fault)  # noqa: B023
            storage.on_read(*[Fault.LOST_REQUEST] * 60)  # noqa: B023
            ctx.on_ack(Enqueue("next", b""))

        async with broker(storage, deadline=5, call_timeout=2) as queue:
            await queue.enqueue("work", b"")
            await worker.run(queue, drain=True, signals=False)
            nexts = [job for job in (await queue.read_state()).jobs if job.entrypoint == "next"]
            assert 1 == len(nexts), fault


@in_virtual_time
async def test_on_ack_accepts_only_operations():
    worker, errors = Worker(), []

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        try:
            ctx.on_ack("enqueue")  # type: ignore[arg-type]
        except InvalidJobError as error:
            errors.append(str(error))

    async with broker() as queue:
        await queue.enqueue("work", b"")
        await worker.run(queue, drain=True, signals=False)
    assert ["on_ack takes operations such as Enqueue(...), got str"] == errors


@in_virtual_time
async def test_a_handler_may_ack_its_own_job():
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        await ctx.queue.apply(Ack(ctx.job), Enqueue("next", b""))

    async with broker() as queue:
        await queue.enqueue("work", b"")
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
        with pytest.raises(ClaimLostError):
            [job] = await queue.dequeue("next")
            await queue.requeue_stale(0)
            await queue.ack(job)


@in_virtual_time
async def test_a_handler_stopped_before_its_start_never_runs():
    worker, begun = Worker(), []

    @worker.handler("work")
    async def work(payload: bytes, ctx: Context) -> None:
        begun.append(payload)

    async with broker() as queue:
        await queue.enqueue("work", b"")
        state = RunState(1)
        job_runner = JobRunner(
            queue,
            state,
            {"work": (work, lambda job, ctx: work(job.payload, Context(job)), False)},
            clock=queue.options.clock,
            entropy=queue.options.entropy,
            resources=None,
            cancel_grace=5,
            interrupt=lambda _: False,
        )
        job_runner.begin(await queue.dequeue("work"))
        [held] = state.held
        job_runner.stop(held, "stop")
        assert held.work.task is not None
        await held.work.task
        assert ([], ["handed_back"]) == (begun, [outcome.kind for outcome in state.outcomes])
