"""Promises to the callers of a broker: an end by the deadline, an answer for each sent call, a place in the line."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob import codec
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import DeadlineExceededError, UnknownOutcomeError
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


@pytest.fixture
def storage():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()))


def open_queue(storage, kind=BrokerQueue, **options):
    return kind(storage, **{"clock": VirtualClock(), **options})


async def jobs_in(storage):
    return {job.id: job for job in codec.decode((await storage.storage.read())[0]).jobs}


# Deadlines


@both
@in_virtual_time
async def test_a_call_not_sent_by_its_deadline_is_not_done(storage, kind):
    storage.on_read(Fault.HANGS)
    async with open_queue(storage, kind, call_timeout=60) as queue:
        with pytest.raises(DeadlineExceededError) as raised:
            await queue.enqueue("work", b"payload", deadline=3)
        assert isinstance(raised.value, TimeoutError)
        assert now() == pytest.approx(3)
    assert {} == await jobs_in(storage)


@both
@in_virtual_time
async def test_a_call_sent_but_unanswered_at_its_deadline_has_an_unknown_outcome(storage, kind):
    async with open_queue(storage, kind, call_timeout=60, deadline=4) as queue:
        await queue.dequeue("nobody")
        storage.on_write(Fault.HANGS)
        began = now()
        sent = asyncio.create_task(queue.enqueue("work", b"payload", job_id="the-id"))
        await asyncio.sleep(1)
        unsent = asyncio.create_task(queue.enqueue("work", b"payload", deadline=2))
        with pytest.raises(DeadlineExceededError):
            await unsent
        assert now() - began == pytest.approx(3)
        with pytest.raises(UnknownOutcomeError) as raised:
            await sent
        assert now() - began == pytest.approx(4)
        assert ("the-id",) == raised.value.job_ids


@both
@in_virtual_time
async def test_a_failing_store_is_retried_until_the_deadline(storage, kind):
    storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
    async with open_queue(storage, kind) as queue:
        with pytest.raises(DeadlineExceededError, match="the connection was reset"):
            await queue.enqueue("work", b"payload")
        assert now() == pytest.approx(30)
    assert 5 < storage.reads < 100


@both
@in_virtual_time
async def test_a_call_succeeds_if_the_store_recovers_before_the_deadline(storage, kind):
    storage.on_read(*[Fault.LOST_REQUEST] * 5)
    storage.on_write(Fault.LOST_REQUEST)
    async with open_queue(storage, kind) as queue:
        job = await queue.enqueue("work", b"payload")
    assert {job.id: job} == await jobs_in(storage)


@both
@in_virtual_time
async def test_the_wait_of_a_dequeue_does_not_count_against_its_deadline(storage, kind):
    async with open_queue(storage, kind) as queue:
        assert [] == await queue.dequeue("work", wait=100, deadline=3)
        assert now() == pytest.approx(100, abs=3)
        storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
        with pytest.raises(DeadlineExceededError):
            await queue.dequeue("work", wait=100, deadline=3)
        assert now() == pytest.approx(203, abs=6)


# Unknown outcomes

CALLS = {
    "enqueue": lambda queue, job: queue.enqueue("work", b"payload", job_id="the-id"),
    "enqueue_many of one": lambda queue, job: queue.enqueue_many([Enqueue("work", b"payload", job_id="the-id")]),
    "enqueue_many": lambda queue, job: queue.enqueue_many([Enqueue("work", b"1"), Enqueue("work", b"2")]),
    "ack": lambda queue, job: queue.ack(job),
    "ack_many": lambda queue, job: queue.ack_many([job]),
    "nack": lambda queue, job: queue.nack(job),
    "heartbeat": lambda queue, job: queue.heartbeat(job),
    "heartbeat_many": lambda queue, job: queue.heartbeat_many([job]),
    "apply": lambda queue, job: queue.apply(Ack(job), Enqueue("work", b"payload", job_id="the-id")),
    "apply of one": lambda queue, job: queue.apply(Ack(job)),
    "requeue_stale": lambda queue, job: queue.requeue_stale(0),
}
RESULTS = {
    "enqueue": lambda result: isinstance(result, Job) and result.id == "the-id",
    "enqueue_many of one": lambda result: isinstance(result, list) and [job.id for job in result] == ["the-id"],
    "enqueue_many": lambda result: [job.payload for job in result] == [b"1", b"2"],
    "ack": lambda result: result is None,
    "ack_many": lambda result: result == [],
    "nack": lambda result: result is None,
    "heartbeat": lambda result: result is None,
    "heartbeat_many": lambda result: result == [],
    "apply": lambda result: result[0] is None and result[1].id == "the-id",
    "apply of one": lambda result: result == [None],
    "requeue_stale": lambda result: result == 1,
}


async def unknown(queue, storage, fault, call):
    """Return the error of a call whose write met `fault` and had no answer by the deadline."""
    await queue.enqueue("first", b"payload")
    [job] = await queue.dequeue("first")
    storage.on_write(fault)
    with pytest.raises(UnknownOutcomeError) as raised:
        await CALLS[call](queue, job)
    return raised.value


@both
@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_resolve_returns_the_result_of_a_call_that_took_effect(storage, kind, call):
    async with open_queue(storage, kind, call_timeout=60, deadline=2) as queue:
        error = await unknown(queue, storage, Fault.HANGS_AFTER, call)
        result = await error.resolve(120)
        assert RESULTS[call](result), result


@both
@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_resolve_reports_a_call_without_effect_as_certainly_not_done(storage, kind, call):
    async with open_queue(storage, kind, call_timeout=60, deadline=2) as queue:
        error = await unknown(queue, storage, Fault.HANGS, call)
        before = await jobs_in(storage)
        with pytest.raises(DeadlineExceededError, match="certainly not done"):
            await error.resolve(120)
        assert before == await jobs_in(storage)


@both
@in_virtual_time
async def test_a_write_that_lands_late_is_resolved_and_not_done_again(storage, kind):
    async with open_queue(storage, kind, deadline=2) as queue:
        await queue.dequeue("nobody")
        storage.delay = 5
        storage.on_write(Fault.LANDS_LATER, *[Fault.LOST_REQUEST] * 100)
        with pytest.raises(UnknownOutcomeError) as raised:
            await queue.enqueue("work", b"payload", job_id="the-id")
        storage._write_faults.clear()
        await asyncio.sleep(10)
        assert (await raised.value.resolve()).id == "the-id"
        assert {"the-id"} == (await jobs_in(storage)).keys()


@both
@in_virtual_time
async def test_the_outcome_stays_unknown_while_the_store_is_unreachable(storage, kind):
    async with open_queue(storage, kind, deadline=2, call_timeout=60) as queue:
        error = await unknown(queue, storage, Fault.HANGS_AFTER, "enqueue")
        began = now()
        with pytest.raises(UnknownOutcomeError) as again:
            await error.resolve(3)
        assert now() - began == pytest.approx(3)
        assert (await again.value.resolve(120)).id == "the-id", "it can be asked again"


@both
@in_virtual_time
async def test_an_unknown_enqueue_may_be_repeated_by_its_id(storage, kind):
    async with open_queue(storage, kind, deadline=2, call_timeout=60) as queue:
        await unknown(queue, storage, Fault.HANGS_AFTER, "enqueue")
        assert "the-id" == (await queue.enqueue("work", b"payload", job_id="the-id", deadline=120)).id
        assert ["the-id"] == [job.id for job in (await queue.read_state()).queued_jobs()]


# Waiters


@both
@in_virtual_time
async def test_the_longest_waiting_dequeue_is_answered_first(storage, kind):
    async with open_queue(storage, kind) as queue:
        answered = []

        async def wait(name):
            [job] = await queue.dequeue("work", wait=600)
            answered.append((name, job.payload))

        waiting = []
        for name in range(4):
            waiting.append(asyncio.create_task(wait(name)))
            await asyncio.sleep(1.7)
        for number in range(4):
            await queue.enqueue("work", b"%d" % number)
            await asyncio.sleep(0.3)
        await asyncio.gather(*waiting)
        assert [(number, b"%d" % number) for number in range(4)] == answered


@in_virtual_time
async def test_a_dequeue_made_with_the_enqueue_does_not_overtake_a_waiting_one(storage):
    async with open_queue(storage) as queue:
        first = asyncio.create_task(queue.dequeue("work", wait=600))
        await asyncio.sleep(5)
        enqueueing = asyncio.create_task(queue.enqueue("work", b"payload"))
        second = asyncio.create_task(queue.dequeue("work", wait=10))
        enqueued = await enqueueing
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        assert (True, False) == (first.done(), second.done())
        assert [enqueued.id] == [job.id for job in await first]
        assert [] == await second


@both
@in_virtual_time
async def test_a_cancelled_waiting_dequeue_costs_no_write(storage, kind):
    async with open_queue(storage, kind) as queue:
        gone = asyncio.create_task(queue.dequeue("work", wait=600))
        await asyncio.sleep(5)
        waiting = asyncio.create_task(queue.dequeue("work", wait=600))
        await asyncio.sleep(5)
        gone.cancel()
        writes = storage.writes
        await queue.enqueue("work", b"payload")
        [job] = await waiting
        assert (1, 1, writes + 1) == (job.attempt, job.failures, storage.writes)


@both
@in_virtual_time
async def test_the_store_gets_no_requests_after_all_waiters_are_cancelled(storage, kind):
    async with open_queue(storage, kind) as queue:
        waiting = [asyncio.create_task(queue.dequeue("work", wait=600)) for _ in range(3)]
        await asyncio.sleep(5)
        for call in waiting:
            call.cancel()
        await asyncio.wait(waiting)
        asked = storage.reads, storage.writes
        await asyncio.sleep(60)
        assert asked == (storage.reads, storage.writes)
