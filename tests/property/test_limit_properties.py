"""Values at a limit are accepted and read back. Values one beyond are refused, and no byte changes."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import Claim, DirectQueue, InMemoryStorage, InvalidJobError, Job, Limits, QueueFullError
from jqueue.core.blob.lines import encode_job
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.limits import cut_error
from jqueue.domain.operations import Preparation
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import EPOCH, VirtualClock, run

pytestmark = pytest.mark.wide

BOUNDS = settings(max_examples=25, deadline=None)
sizes = st.integers(1, 60)
letters = st.sampled_from(["a", "é", "€", "𝄞", '"', "\\"])
UNESCAPED = st.text(st.characters(categories=["L", "N"]), max_size=12)


class Trial:
    """A queue with limits of its own, and another queue object that reads what it wrote."""

    def __init__(self, **limits):
        self.storage = InMemoryStorage(clock=VirtualClock())
        everything = {"hot_bytes": None, **limits}  # stays in the blob
        self.queue = DirectQueue(self.storage, limits=Limits(**everything), clock=VirtualClock())

    def job_bytes(self):
        """Bytes of the blob that the lines of the jobs take."""
        return len(self.storage._content) - self.storage._content.index(b"\n")

    async def takes(self, *arguments, **options):
        """Enqueue a job; another queue object finds the same."""
        job = await self.queue.enqueue(*arguments, **options)
        assert job == (await DirectQueue(self.storage).read_state()).find(job.id)
        return job

    async def refuses(self, call, error=InvalidJobError):
        """A call is refused, and changes nothing."""
        before = await self.storage.read()
        with pytest.raises(error):
            await call
        assert before == await self.storage.read()


def text_of(size, letter):
    """Return a text of exactly `size` bytes in UTF-8, with as many of a letter as fit."""
    text = letter * (size // len(letter.encode()))
    return text + "x" * (size - len(text.encode()))


@BOUNDS
@given(sizes, st.sampled_from([bytes, bytearray, memoryview]))
def test_a_payload_may_be_as_large_as_its_limit(size, kind):
    async def try_it():
        trial = Trial(payload_bytes=size)
        await trial.takes("t", kind(b"x" * size))
        await trial.refuses(trial.queue.enqueue("t", kind(b"x" * (size + 1))))

    run(try_it())


@BOUNDS
@given(sizes, letters, st.sampled_from(["entrypoint", "job_id", "unique_key", "headers"]))
def test_a_name_may_be_as_long_as_its_limit(size, letter, where):
    def arguments(name):
        good = {"entrypoint": "t", "payload": b""}
        return {**good, where: {name: ""} if where == "headers" else name}

    async def try_it():
        trial = Trial(name_bytes=size)
        await trial.takes(**arguments(text_of(size, letter)))
        await trial.refuses(trial.queue.enqueue(**arguments(text_of(size + 1, letter))))

    run(try_it())


@BOUNDS
@given(st.integers(4, 60), letters, st.integers(1, 3))
def test_headers_may_take_as_much_as_their_limit(size, letter, count):
    def headers(total):
        last = {str(number): "" for number in range(count)}
        return {**last, "0": text_of(total - count, letter)}

    async def try_it():
        trial = Trial(header_bytes=size)
        await trial.takes("t", b"", headers=headers(size))
        await trial.refuses(trial.queue.enqueue("t", b"", headers=headers(size + 1)))

    run(try_it())


@BOUNDS
@given(st.integers(1, 6))
def test_a_call_may_have_as_many_jobs_as_its_limit(size):
    async def try_it():
        trial = Trial(batch_size=size)
        queue, one = trial.queue, Enqueue("t", b"")
        await queue.enqueue_many([one] * size)
        await trial.refuses(queue.apply(*[one] * (size + 1)))
        await queue.enqueue("t", b"")
        await trial.refuses(queue.dequeue(batch_size=size + 1))
        jobs = await queue.dequeue(batch_size=size)
        more = [*jobs, *await queue.dequeue()]
        for verb in (queue.heartbeat_many, queue.nack_many, queue.ack_many):
            await trial.refuses(verb(more))
        for verb in (queue.heartbeat_many, queue.ack_many):
            assert [] == await verb(jobs)
        assert [more[-1].id] == [job.id for job in (await queue.read_state()).jobs]

    run(try_it())


@settings(max_examples=10, deadline=None)
@given(st.integers(4_000, 20_000), st.integers(0, 800), st.booleans())
def test_a_full_queue_takes_no_job_and_can_be_worked_off(room, size, together):
    async def try_it():
        trial = Trial(blob_bytes=room)
        queue = trial.queue
        taken = 0
        with pytest.raises(QueueFullError):
            for _ in range(room):
                await (queue.apply(Enqueue("t", b"x" * size)) if together else queue.enqueue("t", b"x" * size))
                taken += 1
        full = await queue.stats()
        assert full.depth == taken
        assert trial.job_bytes() <= full.size_limit == int(room * 0.9)
        assert full.size_limit - trial.job_bytes() < size * 4 / 3 + 400, "another job would have fit"
        await trial.refuses(queue.enqueue("t", b"x" * size), QueueFullError)
        await trial.refuses(queue.enqueue_many([Enqueue("t", b"x" * size)] * taken), QueueFullError)
        jobs = await queue.dequeue(batch_size=taken)
        assert taken == len(jobs)
        assert [] == await queue.heartbeat_many(jobs)
        assert [] == await queue.nack_many(jobs[1:], error="e" * 3000)
        await queue.ack(jobs[0])
        assert taken - 1 == await queue.purge() + len(await queue.dequeue(batch_size=taken))

    run(try_it())


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_claims_and_short_errors_of_jobs_of_two_kilobytes_fit_into_the_free_tenth(data):
    async def try_it():
        room = 60_000
        trial = Trial(blob_bytes=room)
        queue = trial.queue
        with pytest.raises(QueueFullError):
            for _ in range(room):
                await queue.enqueue("t", b"x" * data.draw(st.integers(2000, 4000)), max_attempts=2)
        for _ in range(4):
            jobs = await queue.dequeue(batch_size=100)
            assert trial.job_bytes() <= room
            acked = data.draw(st.integers(0, len(jobs)))
            await queue.ack_many(jobs[:acked])
            await queue.nack_many(jobs[acked:], error="e" * data.draw(st.integers(0, 40)), delay=None)
            assert trial.job_bytes() <= room

    run(try_it())


async def filled(room, count, **job):
    """A queue filled in as few calls as possible, and its store."""
    trial = Trial(blob_bytes=room)
    for many in (count, 1):
        with pytest.raises(QueueFullError):
            for _ in range(room):
                await trial.queue.enqueue_many([Enqueue(**{"entrypoint": "t", "payload": b"", **job})] * many)
    return trial


def test_a_claim_adds_about_a_hundred_bytes_to_a_job_and_an_error_two_kibibytes():
    """Claims are never refused, and can take the blob beyond its limit. Errors are kept while there is room."""

    async def try_it():
        trial = await filled(100_000, 50, payload=b"x" * 100)
        queue, full = trial.queue, trial.job_bytes()
        jobs = await queue.dequeue(batch_size=10_000)
        claimed = trial.job_bytes()
        assert 60 * len(jobs) < claimed - full < (120 + len(jobs[0].holder)) * len(jobs)
        await queue.configure(blob_bytes=10_000_000)
        assert [] == await queue.nack_many(jobs, error="\0" * 5000)
        assert 2000 * len(jobs) < trial.job_bytes() - full < 2450 * len(jobs)

    run(try_it())


def test_headers_that_json_escapes_do_not_pass_the_limit_of_the_blob():
    async def try_it():
        trial = await filled(100_000, 8, headers={"a": "\x00" * 10_000})
        assert len(trial.storage._content) <= 100_000

    run(try_it())


def test_a_small_queue_that_was_worked_off_takes_jobs_again():
    async def try_it():
        trial = Trial(blob_bytes=50_000)
        for size in [50] * 12 + [5] * 70 + [1] * 300:
            await trial.queue.enqueue_many([Enqueue("t", b"")] * size)
            assert [] == await trial.queue.ack_many(await trial.queue.dequeue(batch_size=size))
            assert 0 == await DirectQueue(trial.storage, limits=Limits(blob_bytes=1000)).purge()

    run(try_it())


def test_keys_held_for_removed_jobs_count_against_the_limit_until_released():
    async def try_it():
        trial = Trial(blob_bytes=20_000)
        with pytest.raises(QueueFullError):
            for number in range(1000):
                await trial.queue.enqueue("t", b"", unique_key=f"{number:0200}", unique_for=3600)
                await trial.queue.ack(*await trial.queue.dequeue())
        assert 40 < number < 100
        await asyncio.sleep(3600)
        await trial.queue.enqueue("t", b"")

    run(try_it())


claim: Any = Claim  # takes wrong arguments

HUGE = 10**5000
"""More digits than Python shows."""


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue("t", b"", delay=HUGE),
        lambda queue: queue.enqueue("t", b"", on_conflict=HUGE),
        lambda queue: queue.enqueue("t", b"", on_conflict="x" * 9999),
        lambda queue: queue.purge(status=HUGE),
        lambda queue: queue.ack_many([claim([], 1)]),
        lambda queue: queue.nack(claim("a", None)),
        lambda queue: queue.heartbeat(Claim("a", True)),
    ],
)
def test_invalid_arguments_are_refused_with_a_short_error(call):
    async def try_it():
        trial = Trial()
        with pytest.raises(InvalidJobError) as raised:
            await call(trial.queue)
        assert len(str(raised.value)) < 200
        with pytest.raises(InvalidJobError):
            Limits(batch_size=-HUGE)

    run(try_it())


PREPARATION = Preparation(Limits(), 300.0, lambda: "0f2c8a4e-93f0-4b7e-8a11-6f0d2c5b9e77", ClaimRegistry().find)
OPTIONAL = {
    "priority": st.integers(-(2**31), 2**31 - 1),
    "run_at": st.just(EPOCH.replace(microsecond=123456)),
    "expires_at": st.just(EPOCH.replace(microsecond=123456)),
    "max_attempts": st.integers(1, 2**31),
    "headers": st.dictionaries(UNESCAPED.filter(bool), UNESCAPED, max_size=8),
    "unique_key": UNESCAPED.filter(bool),
    "job_id": UNESCAPED.filter(bool),
}


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({"payload": st.binary(max_size=100)}, optional=OPTIONAL))
def test_the_size_of_a_job_is_estimated_to_a_hundred_bytes_and_two_for_each_header(options):
    operation = Enqueue("t", **options).prepared(PREPARATION)
    job: Job = operation.change(Draft(), EPOCH.replace(microsecond=123456))
    size = len(encode_job(job)) + len(",\n")
    assert -160 <= size - operation.stored_bytes() <= 100 + 2 * len(job.headers)


@settings(max_examples=100, deadline=None)
@given(st.text(letters | st.characters(), min_size=1, max_size=20), st.integers(1, 3000))
def test_an_error_is_cut_at_two_kibibytes_of_the_blob_between_two_letters(some, times):
    def size(text):
        return len(json.dumps(text, ensure_ascii=False).encode()) - len('""')

    text = some * times
    written = text.encode("utf-8", "replace").decode()
    kept = cut_error(text)
    assert written.startswith(kept)
    assert size(kept) <= 2048
    assert kept == written or size(written[: len(kept) + 1]) > 2048


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(2040, 2056), min_size=2, max_size=3), letters)
def test_every_nack_replaces_the_error_by_its_own(lengths, letter):
    async def try_it():
        trial = Trial()
        await trial.queue.enqueue("t", b"")
        for length in lengths:
            [job] = await trial.queue.dequeue()
            text = text_of(length, letter)
            await trial.queue.nack(job, error=text)
            found = (await DirectQueue(trial.storage).read_state()).find(job.id)
            assert found is not None
            assert cut_error(text) == found.error

    run(try_it())
