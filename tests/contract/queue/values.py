"""Results, and large payloads and results, each in an object of its own beside the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import shake_128
from pathlib import Path
from typing import Any

import pytest

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    ObjectDamagedError,
    ObjectMissingError,
    QueueFullError,
    ResultTimeoutError,
)
from jqueue.domain.job import JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.operations.ends import Ack, RecordStep
from jqueue.ports.queue import JobQueue, SupportsLargeValues
from jqueue.ports.storage import SupportsObjects
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory


class ResultsContract(QueueContractBase):
    """The result given to an ack is returned to every caller that asks, in any program, before or after the ack."""

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

    async def test_a_wait_ends_with_the_error_when_the_job_is_dead_or_leaves(self, make_queue: QueueFactory) -> None:
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
            leaving = await queue.enqueue("work", b"payload", keep_result=HOUR)
            waiting = asyncio.create_task(other.result(leaving))
            await asyncio.wait([waiting], timeout=self.moment)
            await queue.cancel(leaving.id)
            with pytest.raises(JobNotFoundError, match=leaving.id):
                await waiting

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

    async def test_a_step_that_cannot_be_kept_is_refused_and_the_others_stay(self, make_queue: QueueFactory) -> None:
        deep: Any = 1
        for _ in range(200):
            deep = [deep]
        bad = [b"bytes", {1, 2}, object(), float("nan"), "x" * 70_000, "a lone \udc80", [[deep] * 3] * 2, deep]
        limits = Limits(object_bytes=None)
        async with self.queues(make_queue, 1, ["steps", "transactions"], limits=limits) as [queue]:
            job = await self.one_job(queue)
            await queue.apply(RecordStep(job, "first", 1, "kept"))
            before = await self.fingerprint(queue)
            wrong = [RecordStep(job, name) for name in ("", "a\n", "x" * 600)] + [RecordStep(job, "a", 0)]
            for operation in (*wrong, *(RecordStep(job, "second", 1, value) for value in bad)):
                [refused] = await queue.apply_each(operation)
                assert isinstance(refused, InvalidJobError), operation
            assert before == await self.fingerprint(queue)
            answers = await queue.apply_each(*(RecordStep(job, "many", number + 1) for number in range(1000)))
            assert [each for each in answers if each is not None] == answers[999:]
            assert "1001 steps; the limit is 1000" in str(answers[999])
            large = await self.one_job(queue)
            answers = await queue.apply_each(
                *(RecordStep(large, "large", number + 1, "x" * 60_000) for number in range(20))
            )
            assert answers[:17] == [None] * 17
            assert "the limit is 1048576" in str(answers[17])
            [job, large] = [await self.held(queue, each) for each in (job, large)]
            assert (len(job.steps), job.steps[0].result, len(large.steps)) == (1000, "kept", 17)

    async def test_a_step_for_which_a_full_queue_has_no_room_is_refused_and_its_job_can_end(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 1, ["steps", "size_limit"], limits=Limits(object_bytes=None)) as [queue]:
            await queue.configure(blob_bytes=200_000)
            job = await self.one_job(queue)
            answers = [
                (await queue.apply_each(RecordStep(job, "large", number + 1, "x" * 50_000)))[0] for number in range(4)
            ]
            assert answers[:3] == [None] * 3
            assert isinstance(answers[3], QueueFullError)
            await queue.nack(job)
            [job] = await queue.dequeue("work")
            assert len(job.steps) == 3
            await queue.ack(job)
            assert (await queue.read_state()).jobs == ()

    async def test_a_job_with_its_result_stays_without_its_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results"]) as [queue, other]:
            job = await self.one_job(queue, keep_result=HOUR)
            before = (await queue.read_state()).version
            await queue.ack(job, result="done")
            state = await other.read_state()
            assert state.version == before + 1, "the ack and its result must be one commit"
            kept = await self.held(other, job)
            assert (kept.status, kept.result, kept.payload) == (JobStatus.COMPLETED, "done", b"")
            assert (kept.heartbeat_at, kept.claim_timeout, kept.keep_result) == (None, None, 3600.0)
            assert kept.finished_at is not None
            assert await queue.dequeue(batch_size=9) == [], "a finished job was served again"
            stats = await other.stats()
            assert (stats.ready, stats.in_progress, stats.dead) == (0, 0, 0)

    async def test_a_waiter_for_a_job_that_is_cancelled_gets_the_error_for_it(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["results", "cancel_running"]) as [queue, other]:
            for claims in (0, 1):
                job = await queue.enqueue("work", b"payload", job_id="the-id", keep_result=HOUR)
                waiting = [asyncio.create_task(each.result(job)) for each in (queue, other)]
                await asyncio.wait(waiting, timeout=self.moment)
                claimed = await queue.dequeue("work", batch_size=claims)
                await other.cancel(job.id, running=True)
                for each in claimed:
                    await queue.nack(each)
                for error in await asyncio.gather(*waiting, return_exceptions=True):
                    assert isinstance(error, JobCancelledError), error
                with pytest.raises(JobCancelledError, match=f"{job.id!r} was cancelled: it has no result"):
                    await other.result(job.id)

    async def test_a_step_stays_with_its_job_until_the_ack(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["steps", "dead_letters", "uncharged"]) as [queue, other]:
            lost = await self.lost_claim(queue, other)
            [refused] = await queue.apply_each(RecordStep(lost, "charge", 1, "lost"))
            assert isinstance(refused, ClaimLostError)
            [job] = await queue.dequeue("work")
            assert job.steps == ()
            for number, result in enumerate([{"paid": [1, 2.5, None]}, None], 1):
                assert await queue.apply_each(RecordStep(job, "charge", number, result)) == [None]
            [there] = await queue.apply_each(RecordStep(job, "charge", 1, "again"))
            assert there.result == {"paid": [1, 2.5, None]}, "a step that is there must not be recorded again"
            await queue.nack(job)
            [job] = await other.dequeue("work")
            await other.nack(job, charge=False)
            [job] = await queue.dequeue("work")
            steps = [(step.name, step.occurrence, step.result) for step in job.steps]
            assert steps == [("charge", 1, {"paid": [1, 2.5, None]}), ("charge", 2, None)]
            assert job.steps[0].at >= job.created_at
            await queue.nack(job, dead=True)
            await queue.redrive(job.id)
            [job] = await other.dequeue("work")
            assert len(job.steps) == 2, "a redrive keeps the steps"
            await other.nack(job, dead=True)
            await queue.redrive(job.id, fresh=True)
            [job] = await other.dequeue("work")
            assert job.steps == ()
            await other.apply_each(RecordStep(job, "charge"))
            await other.ack(job)
            assert await self.find(queue, job) is None


NEEDS = ("objects",)


TINY = Limits(object_bytes=100)


SMALL, LARGE, LARGER = b"s" * 100, bytes(range(256)) * 10, b"\0" * 3000


def random_bytes(size: int) -> bytes:
    """Return bytes in which no part repeats."""
    return shake_128(b"a payload").digest(size)


async def pieces_of(*pieces: Any) -> AsyncIterator[Any]:
    """Yield these pieces."""
    for piece in pieces:
        yield piece


class LargeValuesContract(QueueContractBase):
    """A large payload or result is kept beside the queue, whole, and callers see it as any other."""

    def objects_of(self, queue: JobQueue) -> SupportsObjects:
        """Return the storage of the queue, or skip the test if it keeps no objects."""
        storage = self.storage_of(queue)
        if not isinstance(storage, SupportsObjects):
            pytest.skip("this storage keeps no objects beside the queue")
        return storage

    def large(self, queue: JobQueue) -> SupportsLargeValues:
        """Return the queue, which must have the verbs for large values."""
        assert isinstance(queue, SupportsLargeValues)
        return queue

    async def suffixes(self, queue: JobQueue) -> list[str]:
        """Return the suffixes of the objects of payloads and results."""
        storage = self.objects_of(queue)
        return [each.suffix for folder in (".payloads/", ".results/") for each in await storage.list_beside(folder)]

    async def test_a_large_payload_is_kept_beside_the_queue_and_handed_out_whole(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, NEEDS, limits=TINY) as [queue, other]:
            small = await queue.enqueue("work", SMALL)
            assert small.payload_object is None
            before = len((await self.storage_of(queue).read())[0])
            large = await queue.enqueue("work", LARGE)
            assert len((await self.storage_of(queue).read())[0]) - before < 1024
            assert (large.payload, large.payload_apart) == (LARGE, False)
            assert large.payload_object is not None
            assert large.payload_object.size == len(LARGE)
            assert await self.suffixes(queue) == [large.payload_object.suffix]
            assert await self.objects_of(queue).read_object(large.payload_object.suffix) == LARGE
            found = await self.held(other, large)
            assert (found.payload, found.payload_apart, found.payload_object) == (b"", True, large.payload_object)
            jobs = await other.dequeue("work", batch_size=5)
            assert [job.payload for job in jobs] == [SMALL, LARGE]
            assert not any(job.payload_apart for job in jobs)
            await other.nack(jobs[1])
            [again] = await queue.dequeue("work")
            assert (again.payload, again.payload_object) == (LARGE, large.payload_object)
            await other.ack(jobs[0])
            await queue.ack(again)
            assert (await queue.read_state()).jobs == ()

    async def test_a_missing_or_changed_object_fails_its_own_job_alone(self, make_queue: QueueFactory) -> None:
        changes = {"does not exist": None, "SHA-256": LARGE[::-1], "bytes": LARGE[:-1], "more than": LARGE + b"!"}
        async with self.queues(make_queue, 2, (*NEEDS, "dead_letters", "errors"), limits=TINY) as [queue, other]:
            for words, content in changes.items():
                lost = await queue.enqueue("work", LARGE)
                healthy = await queue.enqueue("work", LARGER)
                assert lost.payload_object is not None
                await self.objects_of(queue).remove_object(lost.payload_object.suffix)
                if content is not None:
                    await self.objects_of(queue).create_object(lost.payload_object.suffix, content)
                [job] = await other.dequeue("work", batch_size=5)
                assert (job.id, job.payload) == (healthy.id, LARGER)
                await other.ack(job)
                dead = await self.held(queue, lost)
                assert dead.status is JobStatus.DEAD
                for word in (lost.payload_object.suffix, words):
                    assert word in (dead.error or ""), f"{word!r} must be in the error {dead.error!r}"

    async def test_payloads_stream_in_and_out_in_pieces(self, make_queue: QueueFactory, tmp_path: Path) -> None:
        content = random_bytes(9_000_000)
        file = tmp_path / "payload"
        file.write_bytes(content)
        limits = Limits(object_bytes=100, payload_bytes=1000)
        async with self.queues(make_queue, 2, NEEDS, limits=limits) as [queue, other]:
            for source in (file, pieces_of(b"", content[:1], bytearray(content[1:6_000_000]), content[6_000_000:])):
                enqueued = await queue.enqueue("work", source)
                [job] = await other.dequeue("work")
                assert job.id == enqueued.id
                assert (job.payload, job.payload_apart) == (b"", True)
                found = [piece async for piece in self.large(other).open_payload(job)]
                assert b"".join(found) == content
                assert max(map(len, found)) <= 4 << 20
                await other.ack(job)

    async def test_a_damaged_payload_is_told_at_the_end_of_its_pieces(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS, limits=Limits(object_bytes=100, payload_bytes=1000)) as [queue]:
            await queue.enqueue("work", pieces_of(LARGE))
            [job] = await queue.dequeue("work")
            assert job.payload_object is not None
            await self.objects_of(queue).remove_object(job.payload_object.suffix)
            with pytest.raises(ObjectMissingError):
                assert [piece async for piece in self.large(queue).open_payload(job)]
            await self.objects_of(queue).create_object(job.payload_object.suffix, LARGE[::-1])
            with pytest.raises(ObjectDamagedError, match="SHA-256"):
                assert [piece async for piece in self.large(queue).open_payload(job)]

    async def test_a_large_result_of_a_step_is_kept_beside_the_queue_until_its_job_ends(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "steps"), limits=TINY) as [queue, other]:
            job, value = await self.one_job(queue), ["a part"] * 100
            assert await queue.apply_each(*(RecordStep(job, name, 1, value) for name in "ab")) == [None, None]
            assert len(await self.suffixes(queue)) == 2
            await queue.nack(job)
            [job] = await other.dequeue("work")
            for step in job.steps:
                assert step.result is None
                assert await self.large(other).step_result(job, step) == value
            assert (await other.read_state()).critical[-2:] == ("steps", "objects")
            assert await self.large(queue).collect() == 0
            assert len(await self.suffixes(queue)) == 2
            first, second = job.steps
            assert first.result_object is not None
            await self.objects_of(queue).remove_object(first.result_object.suffix)
            with pytest.raises(ObjectMissingError):
                await self.large(other).step_result(job, first)
            assert await self.large(other).step_result(job, second) == value

    async def test_a_large_result_is_kept_beside_the_queue(self, make_queue: QueueFactory) -> None:
        value = {"text": "é\u2028" * 200, "numbers": [1, 2.5, None, True]}
        async with self.queues(make_queue, 2, (*NEEDS, "results"), limits=TINY) as [queue, other]:
            for reference in (None, "claim"):
                job = await self.one_job(queue, keep_result=3600)
                await queue.ack(job if reference is None else job.claim, result=value)
                kept = await self.held(other, job)
                assert kept.result is None
                assert kept.result_object is not None
                content = await self.objects_of(queue).read_object(kept.result_object.suffix)
                assert json.loads(content) == value
                assert await other.result(job) == value
                assert await queue.result(job.id) == value
