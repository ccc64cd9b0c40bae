"""Steps of a job: each is done once, whatever becomes of its worker, and its result is what a retry goes on with."""

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from jqueue import ClaimLostError
from jqueue.domain.limits import Limits
from jqueue.domain.operations.ends import RecordStep
from jqueue.errors import StepError
from jqueue.worker import BatchContext, Context, RunReport, Snooze, Worker
from tests.worker.scenes import DEAD, broker, drained, only_job, working

pytestmark = pytest.mark.virtual_time


def at_once_again(error, failures):
    """Try again at once."""
    return 0


@dataclass
class Receipt:
    order: int
    paid: tuple[int, ...]


class Shop:
    """Work that is counted.

    Attributes:
        done: the number of times that each piece of work was done.
    """

    def __init__(self):
        self.done: Counter[str] = Counter()

    async def charge(self, order: int, *, of: str = "") -> Receipt:
        self.done[f"charge {order}"] += 1
        return Receipt(order, (1, 2))

    def ship(self, order: int) -> str:
        self.done[f"ship {order}"] += 1
        return f"parcel {order}"


def fails(times, error=None):
    """Return a function that raises an error as often as given."""
    left = iter([error or ValueError("again")] * times)

    def fail():
        if (found := next(left, None)) is not None:
            raise found

    return fail


async def test_a_retry_and_a_snooze_take_the_results_of_the_steps_that_are_done():
    worker, shop, seen = Worker(), Shop(), []
    fail, snooze = fails(1), fails(1, Snooze(60))

    @worker.handler("work", retry=at_once_again)
    async def work(ctx: Context) -> None:
        seen.append([await ctx.step("charge", shop.charge, number, of="us") for number in range(2)])
        fail()
        seen.append(await ctx.step("ship", shop.ship, 7))  # type: ignore[call-overload]  # it would work
        snooze()

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(succeeded=1, failed=1, snoozed=1) == await queue_drained(worker, queue)
        assert () == (await queue.read_state()).jobs
    receipts = [Receipt(0, (1, 2)), Receipt(1, (1, 2))]
    assert [receipts, receipts, "parcel 7", receipts, "parcel 7"] == seen
    assert {"charge 0": 1, "charge 1": 1, "ship 7": 1} == shop.done


async def queue_drained(worker, queue):
    """Run a worker until no job is left, and return the sum of its reports."""
    async with working(worker, queue) as task:
        while (await queue.read_state()).jobs:
            await asyncio.sleep(1)
        worker.stop()
        return await task


async def test_a_handler_in_a_thread_has_steps_that_block():
    worker, shop, seen, fail = Worker(), Shop(), [], fails(1)

    @worker.handler("work", retry=at_once_again)
    def work(ctx: Context) -> None:
        seen.append((ctx.step("ship", shop.ship, 7), threading.current_thread().name[:14]))
        fail()
        with pytest.raises(StepError, match="must be awaited"):
            ctx.step("charge", shop.charge, 1)  # type: ignore[unused-coroutine]

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(succeeded=1, failed=1) == await drained(worker, queue)
    assert [("parcel 7", "jqueue-handler")] * 2 == seen
    assert {"ship 7": 1} == shop.done


async def test_a_step_that_fails_is_no_occurrence_and_an_unknown_one_is_ignored():
    worker, fail, seen = Worker(), fails(1), []

    @worker.handler("work", retry=at_once_again)
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            await ctx.step("old", asyncio.sleep, 0, "old")
        for number in range(2):
            try:
                seen.append(await ctx.step("charge", charge, number))
            except ValueError:
                seen.append(await ctx.step("charge", charge, number))
        if ctx.attempt == 1:
            raise KeyError

    async def charge(number: int) -> int:
        fail()
        return number

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(succeeded=1, failed=1) == await drained(worker, queue)
    assert [0, 1, 0, 1] == seen


async def an_id() -> int:
    return 3


async def a_set() -> Any:
    return {1, 2}


async def unannotated():
    return Receipt(1, (1,))


async def large() -> str:
    return "x" * 70_000


async def changed(ctx: Context) -> None:
    if ctx.attempt == 1:
        await ctx.step("id", asyncio.sleep, 0, "three")
        raise KeyError
    await ctx.step("id", an_id)


async def at_once(ctx: Context) -> None:
    await asyncio.gather(*(ctx.step("sleep", asyncio.sleep, 1) for _ in range(2)))


@pytest.mark.parametrize(
    ("misfit", "words"),
    [
        (lambda ctx: ctx.step("set", a_set), "step 'set' returned a value of type set"),
        (lambda ctx: ctx.step("receipt", unannotated), "step 'receipt' returned a value of type Receipt"),
        (at_once, "two steps 'sleep' of this job run at once"),
        (lambda ctx: ctx.step("a\nb", an_id), "name must be printable"),
        (lambda ctx: ctx.step("large", large), "the result of step 'large' is 70002 bytes as JSON; the limit is 65536"),
        (changed, "the result does not fit the return type of step 'id'"),
    ],
)
async def test_a_step_that_cannot_be_kept_or_does_not_fit_is_one_error_and_the_others_stay(misfit, words):
    worker, shop = Worker(), Shop()

    @worker.handler("work", retry=at_once_again)
    async def work(ctx: Context) -> None:
        await ctx.step("charge", shop.charge, 1)
        await misfit(ctx)

    async with broker(limits=Limits(object_bytes=None)) as queue:
        await work.using(queue).enqueue()
        assert 1 == (await drained(worker, queue)).dead
        job = await only_job(queue)
        assert (DEAD, "charge") == (job.status, job.steps[0].name)
        assert words in job.error
        assert "three" not in job.error
        await queue.redrive(job.id)
        await drained(worker, queue)
    assert {"charge 1": 1} == shop.done


async def test_a_job_has_at_most_a_thousand_steps_and_one_more_is_not_begun():
    worker, begun = Worker(), []

    async def begin(number: int) -> None:
        begun.append(number)

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        for number in range(1001):
            await ctx.step("one", begin, number)

    async with broker() as queue:
        await work.using(queue).enqueue()
        [job] = await queue.dequeue("work")
        await queue.apply_each(*(RecordStep(job, "one", number) for number in range(1, 996)))
        await queue.nack(job, charge=False)
        assert RunReport(dead=1) == await drained(worker, queue)
        assert "1000 steps" in (await only_job(queue)).error
    assert list(range(995, 1000)) == begun


async def test_a_lost_claim_stops_the_handler_and_its_step_is_not_recorded():
    worker, seen = Worker(), list[object]()

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            await ctx.queue.requeue_stale(0)
        try:
            seen.append(await ctx.step("charge", asyncio.sleep, 0, ctx.attempt))
        except ClaimLostError:
            seen.append("lost")
            await asyncio.sleep(60)
            seen.append("went on")
        seen.append(await ctx.step("charge", asyncio.sleep, 0, "again"))

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(succeeded=1, lost=1) == await drained(worker, queue)
    assert ["lost", 2, "again"] == seen


async def test_steps_of_many_jobs_share_commits():
    worker = Worker(concurrency=50)

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        for number in range(10):
            await ctx.step("one", asyncio.sleep, 0, number)

    async with broker() as queue:
        await queue.enqueue_many([work.call() for _ in range(50)])
        before = (await queue.read_state()).version
        assert RunReport(succeeded=50) == await drained(worker, queue)
        assert (await queue.read_state()).version - before < 40


@pytest.mark.parametrize("lacks", ["has no steps", "reports no progress"])
async def test_a_batch_handler_has_no_steps_and_reports_no_progress(lacks):
    worker = Worker()

    @worker.handler("work", batch=2)
    async def work(ctx: BatchContext) -> None:
        ctx[0].progress(1) if "progress" in lacks else await ctx[0].step("one", an_id)

    async with broker() as queue:
        await queue.enqueue("work", max_attempts=1)
        await drained(worker, queue)
        assert f"a handler with batch=... {lacks}" in (await only_job(queue)).error
