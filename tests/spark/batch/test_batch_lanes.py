"""Jobs in lanes: handlers find there what they find elsewhere, and jobs that are simply done cost no outcome."""

import asyncio
import threading
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest

from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch.children import in_order
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.worker import BatchContext, Context, Worker
from jqueue.worker.thread_lanes import ThreadLanes

variable: ContextVar[str] = ContextVar("variable", default="unset")


async def done_in_lanes(worker, *payloads, entrypoint="work", **fields):
    """Do jobs. Return the outcome of each, and those that were told one by one."""
    jobs = [
        Job(id=f"job {number}", entrypoint=entrypoint, payload=payload, attempt=1, failures=1, **fields)
        for number, payload in enumerate(payloads)
    ]
    told: list[Any] = []
    rows = PartitionRows.of_jobs(jobs)
    queue: Any = PartitionQueue(rows, lambda begun: None, told.extend, make_queue=lambda: pytest.fail("no queue"))
    async with asyncio.timeout(60):
        await worker.run(queue, drain=True, signals=False)
    return [(outcome.kind, outcome.error) for outcome in in_order(rows, told)], told


DONE = ("done", None)


def without_place(error):
    """The text of an error without the file and the line behind it."""
    return error and error.partition(" (")[0]


async def test_jobs_that_do_not_wait_are_done_in_order_in_one_task_and_nothing_is_told():
    worker, seen = Worker(concurrency=1), []

    @worker.handler("work")
    async def work(number: int) -> int:
        seen.append((number, asyncio.current_task()))
        return number

    outcomes, told = await done_in_lanes(worker, *[b"%d" % number for number in range(50)])
    assert [DONE] * 50 == outcomes
    assert [] == told
    assert list(range(50)) == [number for number, _ in seen]
    assert len({task for _, task in seen}) < 50


async def test_a_job_that_waits_has_a_task_of_its_own_and_the_others_go_on():
    worker, tasks, others = Worker(concurrency=3), {}, asyncio.Event()

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        tasks[payload] = asyncio.current_task()
        if payload == b"waits":
            await others.wait()
            assert tasks[payload] is asyncio.current_task()
        if payload == b"last":
            others.set()

    outcomes, _ = await done_in_lanes(worker, b"first", b"waits", b"between", b"last")
    assert [DONE] * 4 == outcomes
    assert tasks[b"waits"] not in (tasks[b"between"], tasks[b"last"])


async def test_a_timeout_inside_of_a_handler_ends_its_own_wait():
    worker, ended = Worker(concurrency=5), []

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(payload)

    assert [DONE] * 3 == (await done_in_lanes(worker, b"1", b"2", b"3"))[0]
    assert [b"1", b"2", b"3"] == sorted(ended)


@pytest.mark.parametrize("waits", [False, True])
async def test_context_variables_belong_to_one_job(waits):
    worker, seen = Worker(concurrency=1), []

    @worker.handler("work")
    async def work(payload: str) -> None:
        seen.append(variable.get())
        variable.set(payload)
        if waits:
            await asyncio.sleep(0)
        seen.append(variable.get())

    await done_in_lanes(worker, b"one", b"two")
    assert ["unset", "one", "unset", "two"] == seen


async def test_no_more_jobs_run_at_a_time_than_the_concurrency_says():
    worker, running, most = Worker(concurrency=4), [], []

    @worker.handler("work")
    async def work(number: int) -> None:
        running.append(number)
        most.append(len(running))
        if number % 2:
            await asyncio.sleep(0.001)
        running.remove(number)

    assert [DONE] * 60 == (await done_in_lanes(worker, *[b"%d" % number for number in range(60)]))[0]
    assert 4 == max(most)


async def test_a_handler_that_cancels_its_own_task_harms_no_other_job():
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"cancels":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return
        await asyncio.sleep(0)

    assert [DONE] * 3 == (await done_in_lanes(worker, b"1", b"cancels", b"2"))[0]


async def test_errors_contexts_and_enqueues_are_told_one_by_one():
    worker = Worker(concurrency=2)

    @worker.handler("work", max_attempts=1)
    async def work(payload: str, ctx: Context) -> None:
        if payload == "fails":
            raise ValueError("no")
        if payload == "enqueues":
            ctx.on_ack(Enqueue("next", ctx.job.payload))

    outcomes, told = await done_in_lanes(worker, b"plain", b"fails", b"enqueues", b"\xff")
    assert [DONE, ("dead", "ValueError: no"), DONE] == [(kind, without_place(error)) for kind, error in outcomes[:3]]
    assert ("dead", "the payload is not UTF-8 text: byte 0 is invalid") == outcomes[3]
    assert Counter({"job 1": 1, "job 2": 1, "job 3": 1}) == Counter(outcome.job_id for outcome in told)


@pytest.mark.parametrize("threads", [False, True])
async def test_a_batch_handler_gets_lists_and_tells_of_the_jobs_that_failed(threads):
    worker, sizes = Worker(concurrency=1), []

    def go(payloads: list[bytes]) -> list[Exception | None]:
        sizes.append(len(payloads))
        return [ValueError("odd") if payload == b"odd" else None for payload in payloads]

    if threads:

        @worker.handler("work", batch=4)
        def work(payloads: list[bytes]) -> list[Exception | None]:
            return go(payloads)
    else:

        @worker.handler("work", batch=4)
        async def works(payloads: list[bytes]) -> list[Exception | None]:
            return go(payloads)

    outcomes, told = await done_in_lanes(worker, *[b""] * 6, b"odd", *[b""] * 3)
    assert [4, 4, 2] == sizes
    assert [DONE] * 6 + [("retried", "ValueError: odd")] + [DONE] * 3 == outcomes
    assert 4 == len(told), "the other batches are marked as done"


async def test_batches_with_contexts_and_other_kinds_of_handlers_are_done_without_lanes():
    worker, seen = Worker(concurrency=2), []

    @worker.handler("work", batch=3)
    async def work(payloads: list[bytes], ctx: BatchContext) -> None:
        seen.append([context.job.id for context in ctx])

    assert [DONE] * 3 == (await done_in_lanes(worker, b"", b"", b""))[0]
    assert [["job 0", "job 1", "job 2"]] == seen


async def test_handlers_without_async_share_one_thread_as_long_as_they_are_quick():
    worker, threads = Worker(concurrency=4), set()

    @worker.handler("work")
    def work(payload: bytes) -> None:
        threads.add(threading.current_thread())

    outcomes, told = await done_in_lanes(worker, *[b""] * 200)
    assert [DONE] * 200 == outcomes
    assert [] == told
    assert len(threads) < 4
    assert threading.current_thread() not in threads


async def test_handlers_without_async_that_take_their_time_run_at_the_concurrency():
    worker, all_there = Worker(concurrency=4), threading.Barrier(4)

    @worker.handler("work")
    def work(payload: bytes) -> None:
        all_there.wait(30)

    assert [DONE] * 8 == (await done_in_lanes(worker, *[b""] * 8))[0]


async def test_a_thread_has_its_context_and_variables_and_its_error_is_told():
    worker, seen = Worker(concurrency=1), []

    @worker.handler("work", max_attempts=1)
    def work(payload: str, ctx: Context) -> None:
        seen.append((ctx.job.payload.decode(), ctx.loop is not None, variable.get()))
        variable.set(payload)
        if payload == "two":
            raise StopIteration("odd")

    outcomes, _ = await done_in_lanes(worker, b"one", b"two", b"three")
    assert [DONE, ("dead", "StopIteration: odd"), DONE] == [(kind, without_place(error)) for kind, error in outcomes]
    assert [("one", True, "unset"), ("two", True, "unset"), ("three", True, "unset")] == seen


async def test_a_value_that_was_never_awaited_fails_its_job():
    worker = Worker(concurrency=1)

    @worker.handler("work", max_attempts=1)
    async def work(payload: bytes) -> object:
        return asyncio.sleep(0) if payload else None

    outcomes, _ = await done_in_lanes(worker, b"", b"never", b"")
    assert ["done", "dead", "done"] == [kind for kind, _ in outcomes]


async def test_a_stopped_worker_leaves_the_jobs_that_are_not_begun():
    worker, begun = Worker(concurrency=1), []

    @worker.handler("work")
    async def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            worker.stop()
            await asyncio.sleep(0.01)

    outcomes, _ = await done_in_lanes(worker, *[b"%d" % number for number in range(9)])
    assert [DONE] * 4 == outcomes
    assert [0, 1, 2, 3] == begun


async def test_a_call_that_ends_while_it_is_adopted_is_told_once(monkeypatch):
    worker, ends, is_told = Worker(concurrency=1), threading.Event(), threading.Event()

    class Calls(dict):
        def pop(self, *arguments):
            found = super().pop(*arguments)
            if threading.current_thread() is threading.main_thread():  # the handler ends at this very moment
                ends.set()
                assert is_told.wait(30)
            return found

    class Lanes(ThreadLanes):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self._calls = Calls()

        def _do(self, *arguments):
            goes_on = super()._do(*arguments)
            is_told.set()
            return goes_on

    monkeypatch.setattr("jqueue.worker.run.ThreadLanes", Lanes)

    @worker.handler("work")
    def work(payload: bytes) -> None:
        assert ends.wait(30)

    outcomes, told = await done_in_lanes(worker, b"adopted", b"")
    assert [DONE] * 2 == outcomes
    assert ["job 0"] == [outcome.job_id for outcome in told if outcome.job_id == "job 0"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_thread_begins_no_job_once_the_worker_has_stopped(monkeypatch, is_cancelled):
    worker, seen = Worker(concurrency=1), []
    stopped, left, loop = threading.Event(), threading.Event(), asyncio.get_running_loop()

    class Lanes(ThreadLanes):
        async def run(self):
            try:
                await super().run()
            finally:
                stopped.set()

        def _values(self, places, lane):
            if places == (1,):  # it is taken, and not begun
                loop.call_soon_threadsafe(worker.stop)
                assert stopped.wait(30)
                self._rows.cancelled |= {1} if is_cancelled else set()
            return super()._values(places, lane)

        def _drive(self, number):
            super()._drive(number)
            left.set()

    monkeypatch.setattr("jqueue.worker.run.ThreadLanes", Lanes)

    @worker.handler("work")
    def work(number: int) -> None:
        seen.append(number)

    outcomes, told = await done_in_lanes(worker, b"0", b"1", b"2")
    assert left.wait(30)
    await asyncio.sleep(0)
    assert [0] == seen
    assert ([DONE], []) == (outcomes, told)


async def test_an_error_of_a_thread_that_no_handler_has_raised_ends_the_worker(monkeypatch):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    def work(payload: bytes) -> None:
        raise AssertionError

    def fails(self, places, lane):
        raise MemoryError

    monkeypatch.setattr(ThreadLanes, "_values", fails)
    with pytest.raises(MemoryError):
        await done_in_lanes(worker, b"", b"")


def test_marks_survive_what_a_process_ends_with():
    rows = PartitionRows.of_jobs([Job(entrypoint="work", payload=b"")] * 3)
    rows.marks[1] = 3
    assert 1 == rows.done
    rows.begin([1, 2])
    assert (0, [1, 2]) == (rows.done, list(rows.places))
