"""Large payloads and results, each in an object of its own beside the queue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import shake_128
from pathlib import Path
from typing import Any

import pytest

from jqueue.domain.errors import (
    InvalidJobError,
    ObjectDamagedError,
    ObjectMissingError,
    ResultNotKeptError,
    StorageFatalError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Ack, Dequeue, Enqueue
from jqueue.ports.queue import JobQueue, SupportsLargeValues
from jqueue.ports.storage import SupportsObjects, SupportsObjectURLs
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory, ids

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

    async def assert_lost(self, queue: JobQueue, lost: Job, *words: str) -> None:
        """Check that a dequeue makes this job dead, with an error of these words, and returns the other jobs."""
        assert await queue.dequeue("work", batch_size=5) == []
        dead = await self.held(queue, lost)
        assert dead.status is JobStatus.DEAD
        assert lost.payload_object is not None
        for word in (lost.payload_object.suffix, *words):
            assert word in (dead.error or ""), f"{word!r} must be in the error {dead.error!r}"

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
            for job in jobs:
                await other.ack(job)
            assert (await queue.read_state()).jobs == ()

    async def test_large_payloads_of_one_commit_are_all_kept(self, make_queue: QueueFactory) -> None:
        payloads = [b"%d" % number * 200 for number in range(20)] + [SMALL]
        async with self.queues(make_queue, 2, (*NEEDS, "transactions"), limits=TINY) as [queue, other]:
            jobs = await queue.enqueue_many([Enqueue("work", payload) for payload in payloads])
            assert [job.payload for job in jobs] == payloads
            assert len(await self.suffixes(queue)) == 20
            claimed = await other.dequeue("work", batch_size=50)
            assert [job.payload for job in claimed] == payloads
            first, *rest = claimed
            _, following, [last] = await other.apply(Ack(first), Enqueue("next", LARGE), Dequeue("next"))
            await other.ack_many(rest)
            assert (following.payload, last.payload) == (LARGE, LARGE)

    async def test_a_large_payload_survives_retries_and_changes_of_its_job(self, make_queue: QueueFactory) -> None:
        needs = (*NEEDS, "dead_letters", "reschedule", "delay")
        async with self.queues(make_queue, 2, needs, limits=TINY) as [queue, other]:
            job = await queue.enqueue("work", LARGE, max_attempts=2, delay=100)
            await other.reprioritise(job.id, 7)
            await other.reschedule(job.id, delay=0)
            for _ in range(2):
                [claimed] = await queue.dequeue("work")
                assert claimed.payload == LARGE
                await queue.nack(claimed, error="it failed")
            assert (await self.held(other, job)).status is JobStatus.DEAD
            await other.redrive(job.id)
            [claimed] = await other.dequeue("work")
            assert claimed.payload == LARGE
            assert claimed.payload_object == job.payload_object

    async def test_an_enqueue_repeated_with_its_id_keeps_the_first_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "job_ids"), limits=TINY) as [queue, other]:
            first = await queue.enqueue("work", LARGE, job_id="the-id")
            again = await other.enqueue("work", LARGER, job_id="the-id")
            assert again.payload_object == first.payload_object
            [job] = await other.dequeue("work", batch_size=5)
            assert job.payload == LARGE

    async def test_a_missing_object_fails_its_own_job_alone(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, (*NEEDS, "dead_letters", "errors"), limits=TINY) as [queue, other]:
            lost = await queue.enqueue("work", LARGE)
            kept = [await queue.enqueue("work", LARGER), await queue.enqueue("work", SMALL)]
            assert lost.payload_object is not None
            await self.objects_of(queue).remove_object(lost.payload_object.suffix)
            jobs = await other.dequeue("work", batch_size=5)
            assert ids(jobs) == ids(kept)
            assert [job.payload for job in jobs] == [LARGER, SMALL]
            await self.assert_lost(other, lost, "does not exist")

    async def test_a_changed_object_fails_its_own_job_alone(self, make_queue: QueueFactory) -> None:
        changes = {"SHA-256": LARGE[::-1], "bytes": LARGE[:-1], "more than": LARGE + b"!", " 0 bytes": b""}
        async with self.queues(make_queue, 2, (*NEEDS, "dead_letters", "errors"), limits=TINY) as [queue, other]:
            for words, content in changes.items():
                lost = await queue.enqueue("work", LARGE)
                assert lost.payload_object is not None
                await self.objects_of(queue).remove_object(lost.payload_object.suffix)
                await self.objects_of(queue).create_object(lost.payload_object.suffix, content)
                await self.assert_lost(other, lost, words)

    async def test_without_a_threshold_nothing_is_kept_beside_the_queue(self, make_queue: QueueFactory) -> None:
        none = Limits(object_bytes=None)
        async with self.queues(make_queue, 1, NEEDS, limits=none) as [queue]:
            job = await queue.enqueue("work", LARGE * 100)
            assert job.payload_object is None
            assert await self.suffixes(queue) == []
            with pytest.raises(InvalidJobError, match="object_bytes=None"):
                await queue.enqueue("work", pieces_of(b"piece"))
            [claimed] = await queue.dequeue("work")
            assert claimed.payload == LARGE * 100

    async def test_a_queue_without_a_threshold_reads_the_objects_of_others(self, make_queue: QueueFactory) -> None:
        async with (
            self.queues(make_queue, 1, NEEDS, limits=TINY) as [queue],
            self.queues(make_queue, 1, NEEDS, limits=Limits(object_bytes=None)) as [other],
        ):
            await queue.enqueue("work", LARGE)
            [job] = await other.dequeue("work")
            assert job.payload == LARGE

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

    async def test_a_small_payload_opens_like_a_large_one(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS, limits=TINY) as [queue]:
            for payload in (b"", SMALL, LARGE):
                await queue.enqueue("work", payload)
                [job] = await queue.dequeue("work")
                assert b"".join([piece async for piece in self.large(queue).open_payload(job)]) == payload

    async def test_a_stream_of_a_few_bytes_is_loaded_like_any_payload(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, NEEDS) as [queue]:
            for pieces in ((), (b"a", b"b")):
                await queue.enqueue("work", pieces_of(*pieces))
                [job] = await queue.dequeue("work")
                assert (job.payload, job.payload_apart) == (b"".join(pieces), False)

    async def test_a_stream_that_fails_enqueues_nothing(self, make_queue: QueueFactory, tmp_path: Path) -> None:
        async def failing() -> AsyncIterator[bytes]:
            yield LARGE
            raise KeyError("of the caller")

        async with self.queues(make_queue, 1, NEEDS, limits=TINY) as [queue]:
            with pytest.raises(KeyError):
                await queue.enqueue("work", failing())
            with pytest.raises(InvalidJobError, match="must yield bytes, got str"):
                await queue.enqueue("work", pieces_of(b"bytes", "text"))
            with pytest.raises(InvalidJobError, match="no-such-file"):
                await queue.enqueue("work", tmp_path / "no-such-file")
            refused, done = await queue.apply_each(Enqueue("work", tmp_path / "no-such-file"), Enqueue("work", LARGE))
            assert isinstance(refused, InvalidJobError)
            assert [job.id for job in (await queue.read_state()).jobs] == [done.id]
            assert len(await self.suffixes(queue)) == 1

    async def test_a_damaged_payload_is_told_at_the_end_of_its_pieces(self, make_queue: QueueFactory) -> None:
        limits = Limits(object_bytes=100, payload_bytes=1000)
        changes = {"SHA-256": LARGE[::-1], "bytes": LARGE[:-1], "more than": LARGE + b"!"}
        async with self.queues(make_queue, 1, NEEDS, limits=limits) as [queue]:
            for words, content in changes.items():
                await queue.enqueue("work", pieces_of(LARGE))
                [job] = await queue.dequeue("work")
                assert job.payload_object is not None
                await self.objects_of(queue).remove_object(job.payload_object.suffix)
                with pytest.raises(ObjectMissingError):
                    assert [piece async for piece in self.large(queue).open_payload(job)]
                await self.objects_of(queue).create_object(job.payload_object.suffix, content)
                with pytest.raises(ObjectDamagedError, match=words):
                    assert [piece async for piece in self.large(queue).open_payload(job)]
                await queue.ack(job)

    async def test_a_payload_in_the_queue_or_on_a_simple_store_has_no_url(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "results"), limits=TINY) as [queue]:
            small = await queue.enqueue("work", SMALL, keep_result=3600)
            with pytest.raises(InvalidJobError, match="queue itself"):
                await self.large(queue).payload_url(small, 60)
            with pytest.raises(InvalidJobError, match="no result yet"):
                await self.large(queue).result_url(small.id, 60)
            [job] = await queue.dequeue("work")
            await queue.ack(job, result=1)
            with pytest.raises(InvalidJobError, match="queue itself"):
                await self.large(queue).result_url(small.id, 60)
            large = await queue.enqueue("work", LARGE)
            if isinstance(self.objects_of(queue), SupportsObjectURLs):
                with suppress(StorageFatalError):  # not all credentials can sign a URL
                    assert await self.large(queue).payload_url(large.id, 60)
                return
            with pytest.raises(InvalidJobError, match="cannot make URLs"):
                await self.large(queue).payload_url(large, 60)

    async def test_objects_that_are_young_or_named_are_not_removed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "results"), limits=TINY) as [queue]:
            job = await self.one_job(queue, keep_result=3600)
            await queue.enqueue("work", LARGE)
            await queue.ack(job, result="x" * 1000)
            await self.objects_of(queue).create_object(f".payloads/{'0' * 32}", b"of a dead process")
            before = await self.suffixes(queue)
            assert await self.large(queue).collect() == 0
            assert await self.suffixes(queue) == before

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

    async def test_a_large_result_that_nobody_keeps_is_not_stored(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, (*NEEDS, "results"), limits=TINY) as [queue]:
            job = await self.one_job(queue)
            await queue.ack(job, result="x" * 1000)
            assert await self.suffixes(queue) == []
            with pytest.raises(ResultNotKeptError):
                await queue.result(job)
