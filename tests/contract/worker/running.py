"""The worker contract: each job runs once, in the right handler, and never too many run at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from jqueue.domain.errors import JobFailedError
from jqueue.domain.operations import Enqueue
from jqueue.worker.context import Context
from jqueue.worker.report import RunReport
from tests.contract.worker.base import AT_ONCE, Gate, QueueFactory, WorkerContractBase


class Letter(BaseModel):
    """A pydantic model as a handler's argument."""

    to: str
    pages: int = 1


@dataclass
class Parcel:
    """A dataclass as a handler's argument."""

    weight: float


class RunningContract(WorkerContractBase):
    """Normal operation, in which nothing fails."""

    async def test_handlers_get_what_their_annotations_say(self, make_queue: QueueFactory) -> None:
        worker, got = self.new_worker(), dict[str, object]()

        @worker.handler("letter")
        async def letter(message: Letter, ctx: Context) -> None:
            got["letter"] = message, ctx.entrypoint, ctx.attempt

        @worker.handler("parcel")
        async def parcel(ctx: Context, parcel: Parcel) -> None:
            got["parcel"] = parcel

        @worker.handler("text")
        async def text(text: str) -> None:
            got["text"] = text

        @worker.handler("bytes")
        async def raw(data: bytes) -> None:
            got["bytes"] = data

        @worker.handler("table")
        async def table(numbers: dict[str, list[int]]) -> None:
            got["table"] = numbers

        @worker.handler("nothing")
        async def nothing() -> None:
            got["nothing"] = None

        async with self.queues(make_queue) as [queue]:
            for handler, payload in [
                (letter, Letter(to="Ada", pages=2)),
                (parcel, Parcel(1.5)),
                (text, "Grüße"),
                (raw, b"\x00\xff"),
                (table, {"primes": [2, 3, 5]}),
            ]:
                given = {} if queue.capabilities.dead_letters else {"max_attempts": None}
                await handler.enqueue(queue, payload, **given)  # type: ignore[attr-defined]
            await queue.enqueue("nothing", b"whatever")
            assert await self.drain(worker, queue) == RunReport(succeeded=6)
            assert (await queue.read_state()).jobs == ()
        assert got == {
            "letter": (Letter(to="Ada", pages=2), "letter", 1),
            "parcel": Parcel(1.5),
            "text": "Grüße",
            "bytes": b"\x00\xff",
            "table": {"primes": [2, 3, 5]},
            "nothing": None,
        }

    async def test_each_job_is_run_once_and_leaves(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker(concurrency=7)
        seen = self.collector(worker)
        payloads = [b"%d" % number for number in range(30)]
        async with self.queues(make_queue) as [queue]:
            await self.enqueue_all(queue, "work", payloads)
            assert await self.drain(worker, queue) == RunReport(succeeded=30)
            assert seen == dict.fromkeys(payloads, 1)
            assert (await queue.read_state()).jobs == ()

    async def test_as_many_jobs_are_claimed_and_run_as_the_concurrency_says_and_no_more(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate, claimed = self.new_worker(concurrency=3), Gate(), []
        async with self.queues(make_queue, 2) as [queue, observer]:

            @worker.handler("work")
            async def work() -> None:
                await gate.through()
                claimed.append(await self.in_progress(observer))

            await self.enqueue_all(queue, "work", [b""] * 12)
            async with self.working(worker, queue):
                await gate.until_entered(3)
                assert await self.in_progress(observer) == 3, "the worker must claim only for free slots"
                gate.open()
                await self.until_empty(observer)
            assert gate.peak == 3, "as many handlers must run at once as `concurrency` allows"
            most = 3 if queue.capabilities.transactions else 6  # acks and new claims share a commit, or do not
            assert max(claimed) <= most, "more jobs were claimed than there are slots"
            assert gate.entered == 12

    async def test_a_free_slot_is_filled_while_other_jobs_go_on(self, make_queue: QueueFactory) -> None:
        worker, slow = self.new_worker(concurrency=2), Gate()
        quick = self.collector(worker, "quick")

        @worker.handler("slow")
        async def slowly() -> None:
            await slow.through()

        async with self.queues(make_queue, 2) as [queue, observer]:
            await queue.enqueue("slow", b"")
            async with self.working(worker, queue):
                await slow.until_entered()
                await self.enqueue_all(observer, "quick", [b"%d" % number for number in range(5)])

                async def are_done() -> bool:
                    return quick.total() == 5 and await self.in_progress(observer) == 1

                await self.until(are_done)
                slow.open()
                await self.until_empty(observer)

    async def test_jobs_that_come_while_it_waits_are_run(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()
        seen = self.collector(worker)
        async with self.queues(make_queue, 2) as [queue, other], self.working(worker, queue):
            for payload in (b"first", b"second"):
                await other.enqueue("work", payload)
                await self.until_empty(other)
            assert seen == {b"first": 1, b"second": 1}

    async def test_jobs_of_other_entrypoints_are_left_alone(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()
        self.collector(worker)
        async with self.queues(make_queue) as [queue]:
            other = await queue.enqueue("another program's", b"")
            await queue.enqueue("work", b"")
            assert await self.drain(worker, queue) == RunReport(succeeded=1)
            assert (await self.held(queue, other)).attempt == 0

    async def test_results_are_kept_and_found_by_others(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()

        @worker.handler("work", keep_result=3600)
        async def work(letter: Letter) -> Letter:
            return Letter(to=letter.to, pages=letter.pages + 1)

        @worker.handler("failing", keep_result=3600, max_attempts=1)
        async def failing() -> None:
            raise ValueError("on purpose")

        async with self.queues(make_queue, 2, needs={"results", "dead_letters"}) as [queue, caller]:
            job = await work.enqueue(caller, Letter(to="Ada"))
            dead = await failing.enqueue(caller)
            waiting = asyncio.create_task(work.result(caller, job, timeout=self.patience / 2))
            await self.drain(worker, queue)
            assert await waiting == Letter(to="Ada", pages=2)
            with pytest.raises(JobFailedError, match="on purpose"):
                await failing.result(caller, dead, timeout=self.patience / 2)

    async def test_what_goes_with_the_ack_is_done_with_it_or_not_at_all(self, make_queue: QueueFactory) -> None:
        worker, made = self.new_worker(), self.new_worker()
        seen = self.collector(made, "next")

        @worker.handler("work", backoff=AT_ONCE)
        async def work(ctx: Context) -> None:
            ctx.on_ack(Enqueue("next", b"attempt %d" % ctx.attempt))
            if ctx.attempt == 1:
                raise ValueError("the first time")

        async with self.queues(make_queue, 2, needs={"transactions", "delay"}) as [queue, other]:
            await work.enqueue(queue)
            async with self.working(worker, queue):

                async def is_made() -> bool:
                    return [job.entrypoint for job in (await other.read_state()).jobs] == ["next"]

                await self.until(is_made)
            await self.drain(made, other)
            assert seen == {b"attempt 2": 1}
