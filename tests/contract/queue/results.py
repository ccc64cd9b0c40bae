"""Results: kept in the commit of their ack, for all callers that wait, for as long as the job asked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobFailedError,
    JobNotFoundError,
    ResultNotKeptError,
    ResultTimeoutError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Ack, Cancel, Enqueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids

RESULTS: list[Any] = [
    None,
    True,
    0,
    -1.5,
    2**53,
    "",
    "größe \n\0 日本 \u2028",
    [],
    {},
    [1, [2, {"three": None}], "four"],
    {"a": {"b": [1.25, False]}, "": "empty", "日本": '"}]},\n'},
]


class ResultsContract(QueueContractBase):
    """The result given to an ack is returned to every caller that asks, in any program, before or after the ack."""

    @pytest.mark.parametrize("result", RESULTS, ids=lambda value: repr(value)[:30])
    async def test_a_result_comes_back_as_it_was(self, make_queue: QueueFactory, result: object) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(job, result=result)
            for asked, reference in ((queue, job), (other, job.id)):
                found = await asked.result(reference, timeout=self.patience)
                assert (type(found), found) == (type(result), result)

    async def test_what_json_has_no_word_for_comes_back_as_what_it_has(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(job, result=(1, {"pair": (2, 3)}))
            assert await queue.result(job) == [1, {"pair": [2, 3]}]

    async def test_a_result_is_a_value_of_its_own(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            given = {"list": [1]}
            await queue.ack(job, result=given)
            given["list"].append(2)
            (await queue.result(job))["list"].append(3)
            await queue.enqueue("work", b"another commit")
            assert await queue.result(job) == {"list": [1]}

    async def test_a_result_kept_for_nobody_is_not_kept(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await self.one_job(queue)
            await queue.ack(job, result="done")
            assert await self.find(queue, job) is None
            for asked in (queue, other):
                with pytest.raises(ResultNotKeptError) as raised:
                    await asked.result(job)
                assert raised.value.job_id == job.id

    async def test_a_result_is_gone_after_its_time(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=self.moment)
            await queue.ack(job, result="done")
            finished = (await self.held(other, job)).finished_at
            assert finished is not None
            await self.until_after(queue, finished + timedelta(seconds=self.moment))
            await other.dequeue("clock")
            assert await self.find(queue, job) is None, (
                "the job must be removed: its result has expired and the queue was changed since"
            )
            with pytest.raises(ResultNotKeptError):
                await queue.result(job, timeout=self.patience)

    async def test_a_result_is_not_read_after_its_time_although_nobody_has_written_since(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=self.moment)
            await queue.ack(job, result="done")

            async def is_gone() -> bool:
                try:
                    await other.result(job, timeout=0)
                except ResultNotKeptError:
                    return True
                return False

            await self.until(is_gone)

    async def test_a_result_may_be_purged(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results", "dead_letters"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(job, result="done")
            assert await queue.purge() == 0
            assert await queue.purge(status=JobStatus.COMPLETED, older_than=HOUR) == 0
            assert await queue.purge(status=JobStatus.COMPLETED) == 1
            with pytest.raises(ResultNotKeptError):
                await queue.result(job)

    async def test_a_wait_for_a_result_ends_when_it_is_over(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            before = await self.fingerprint(queue)
            for timeout in (0, self.moment, timedelta(seconds=self.moment)):
                with pytest.raises(ResultTimeoutError, match=job.id) as raised:
                    await queue.result(job, timeout=timeout)
                assert isinstance(raised.value, TimeoutError)
                assert raised.value.job_id == job.id
            assert before == await self.fingerprint(queue), "waiting for a result must not write"
            await queue.ack(job, result=1)
            assert await queue.result(job, timeout=0) == 1

    async def test_a_wait_ends_with_the_error_when_the_job_is_dead(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results", "dead_letters", "errors"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=HOUR)
            waiting = asyncio.create_task(other.result(job))
            await asyncio.wait([waiting], timeout=self.moment)
            await queue.nack(job, error="not yet")
            await asyncio.wait([waiting], timeout=self.moment)
            assert not waiting.done(), "the wait ended although the job will be tried again"
            [job] = await queue.dequeue("work")
            await queue.nack(job, dead=True, error="no such image")
            with pytest.raises(JobFailedError, match="no such image") as raised:
                await waiting
            assert (raised.value.job_id, raised.value.error) == (job.id, "no such image")

    async def test_a_wait_ends_when_the_job_leaves(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await queue.enqueue("work", b"payload", keep_result=HOUR)
            waiting = asyncio.create_task(other.result(job))
            await asyncio.wait([waiting], timeout=self.moment)
            await queue.cancel(job.id)
            with pytest.raises(JobNotFoundError, match=job.id):
                await waiting
            with pytest.raises(JobNotFoundError, match="no-such-job"):
                await queue.result("no-such-job")

    async def test_enqueueing_a_finished_job_again_returns_it_with_its_result(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results", "job_ids"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=HOUR, job_id="the-id")
            await queue.ack(job, result="done")
            before = await self.fingerprint(queue)
            for asked in (queue, other):
                again = await asked.enqueue("work", b"payload", job_id="the-id", keep_result=HOUR)
                assert (again.id, again.status, again.result) == ("the-id", JobStatus.COMPLETED, "done")
            assert before == await self.fingerprint(queue)
            assert await queue.dequeue() == []

    async def test_a_finished_job_holds_no_unique_key(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results", "unique_keys"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR, unique_key="the-key")
            await queue.ack(job, result=1)
            new = await queue.enqueue("work", b"payload", unique_key="the-key", on_conflict="raise")
            assert new.id != job.id
            assert await queue.result(job) == 1

    async def test_an_ack_repeated_keeps_the_first_result(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results", "fencing"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(job, result="first")
            before = await self.fingerprint(queue)
            for asked in (queue, other):
                await asked.ack(job, result="second")
                with pytest.raises(ClaimLostError):
                    await asked.nack(job)
            assert before == await self.fingerprint(queue)
            assert await other.result(job) == "first"

    async def test_only_the_current_claim_says_the_result(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results", "fencing"]) as [queue, other]:
            lost = await self.lost_claim(queue, other, keep_result=HOUR)
            [job] = await other.dequeue("work")
            with pytest.raises(ClaimLostError):
                await queue.ack(lost, result="of the lost one")
            await other.ack(job, result="of the current one")
            with pytest.raises(ClaimLostError):
                await queue.ack(lost, result="of the lost one")
            assert await queue.result(lost.id) == "of the current one"

    async def test_a_result_that_is_too_large_or_no_json_is_refused_before_anything_happens(
        self, make_queue: QueueFactory
    ) -> None:
        endless: list[Any] = []
        endless.append(endless)
        bad: list[Any] = [b"bytes", {1, 2}, object(), float("nan"), [float("inf")], {"a": b"b"}, "x" * 200, endless]
        bad += ["a lone \udc80", {("a", "b"): 1}]
        async with self.queues(make_queue, 1, ["results"], limits=Limits(result_bytes=200)) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            before = await self.fingerprint(queue)
            for value in bad:
                with pytest.raises(InvalidJobError, match="result"):
                    await queue.ack(job, result=value)
                [refused] = await queue.apply_each(Ack(job, value))
                assert isinstance(refused, InvalidJobError)
            assert before == await self.fingerprint(queue)
            await queue.ack(job, result="x" * 198)
            assert len(await queue.result(job)) == 198

    async def test_a_result_and_the_next_job_go_together_or_not_at_all(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results", "transactions"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            with pytest.raises(JobNotFoundError):
                await queue.apply(Ack(job, "done"), Enqueue("next", b"payload"), Cancel("no-such-job"))
            with pytest.raises(ResultTimeoutError):
                await queue.result(job, timeout=0)
            _, following = await queue.apply(Ack(job, "done"), Enqueue("next", b"payload"))
            assert await queue.result(job) == "done"
            assert ids(await queue.dequeue()) == [following.id]

    async def test_who_no_longer_waits_for_a_result_disturbs_nobody(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results"]) as [queue]:
            job = await self.one_job(queue, keep_result=HOUR)
            gone, patient = [asyncio.create_task(queue.result(job)) for _ in range(2)]
            await asyncio.wait([gone, patient], timeout=self.moment)
            gone.cancel()
            await asyncio.wait([gone])
            await queue.ack(job, result=1)
            assert await patient == 1
