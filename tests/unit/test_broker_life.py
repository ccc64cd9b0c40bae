"""The life of a broker: it is entered and left, fails and goes on, keeps deadlines, and bounds its buffer."""

import asyncio
import contextlib
import logging

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob import codec
from jqueue.core.broker import BrokerQueue
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.domain.errors import (
    DeadlineExceededError,
    QueueClosedError,
    QueueFullError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now


@pytest.fixture
def storage():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()))


def broker(storage, **options):
    return BrokerQueue(storage, **{"clock": VirtualClock(), **options})


async def payloads(storage):
    """Return the payloads in the store, in the order in which they would be served."""
    return [job.payload for job in codec.decode((await storage.storage.read())[0]).queued_jobs()]


async def warm(queue):
    """Read the state, so that the next call needs one write and no read."""
    await queue.dequeue("nobody")
    return queue


VERBS = {
    "enqueue": lambda queue: queue.enqueue("work", b"payload"),
    "enqueue_many": lambda queue: queue.enqueue_many([Enqueue("work", b"payload")]),
    "dequeue": lambda queue: queue.dequeue("work"),
    "dequeue, waiting": lambda queue: queue.dequeue("work", wait=60),
    "ack": lambda queue: queue.ack("an-id"),
    "nack": lambda queue: queue.nack("an-id"),
    "heartbeat": lambda queue: queue.heartbeat("an-id"),
    "cancel": lambda queue: queue.cancel("an-id"),
    "purge": lambda queue: queue.purge(),
}

# Entering and leaving


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("kind", "what_to_do"), [(BrokerQueue, "async with"), (GroupCommitLoop, r"start\(\)")])
@in_virtual_time
async def test_calls_before_a_broker_is_entered_say_what_to_do(storage, verb, kind, what_to_do):
    with pytest.raises(QueueClosedError, match=what_to_do):
        await VERBS[verb](kind(storage))
    assert (0, 0) == (storage.reads, storage.writes)


@pytest.mark.parametrize("verb", VERBS)
@in_virtual_time
async def test_calls_after_a_broker_is_left_say_what_to_do(storage, verb):
    async with broker(storage) as queue:
        await queue.enqueue("work", b"payload")
    asked = storage.reads, storage.writes
    with pytest.raises(QueueClosedError, match="make a new one, or start it again"):
        await VERBS[verb](queue)
    assert asked == (storage.reads, storage.writes)


@in_virtual_time
async def test_a_broker_can_be_entered_again(storage):
    queue = broker(storage)
    for payload in (b"first", b"second"):
        async with queue:
            await queue.enqueue("work", payload)
    assert [b"first", b"second"] == await payloads(storage)


@pytest.mark.parametrize("kind", [GroupCommitLoop, BrokerQueue])
@in_virtual_time
async def test_a_started_broker_must_be_stopped_before_it_is_started_again(kind, storage):
    queue = kind(storage)
    for _ in range(2):
        await queue.start()
        with pytest.raises(RuntimeError, match="is started already"):
            await queue.start()
        await queue.enqueue("work", b"payload")
        await queue.stop()


@in_virtual_time
async def test_stopping_twice_has_the_effect_of_stopping_once(storage):
    queue = GroupCommitLoop(storage)
    await queue.stop()
    await queue.start()
    await queue.enqueue("work", b"payload")
    await queue.stop()
    await queue.stop()


@in_virtual_time
async def test_leaving_a_broker_finishes_its_pending_calls(storage):
    storage.latency = 1.0
    async with broker(storage) as queue:
        calls = [asyncio.create_task(queue.enqueue("work", b"%d" % number)) for number in range(10)]
        await asyncio.sleep(0.1)
        calls += [asyncio.create_task(queue.enqueue("work", b"%d" % number)) for number in range(10, 20)]
        await asyncio.sleep(0)
    assert [True] * 20 == [call.done() for call in calls]
    assert [b"%d" % number for number in range(20)] == await payloads(storage)


@in_virtual_time
async def test_leaving_a_broker_by_an_error_finishes_its_calls_and_raises_the_error(storage):
    storage.latency = 1.0
    with pytest.raises(ZeroDivisionError):
        async with broker(storage) as queue:
            call = asyncio.create_task(queue.enqueue("work", b"payload"))
            await asyncio.sleep(0)
            raise ZeroDivisionError
    await call
    assert [b"payload"] == await payloads(storage)


@in_virtual_time
async def test_leaving_a_broker_answers_waiting_dequeues(storage):
    async with broker(storage) as queue:
        waiting = [asyncio.create_task(queue.dequeue("work", wait=3600)) for _ in range(3)]
        await asyncio.sleep(10)
        left = now()
    assert [[]] * 3 == await asyncio.gather(*waiting)
    assert now() - left < 2


@pytest.mark.parametrize("deadline", [None, 5])
@in_virtual_time
async def test_leaving_ends_by_its_deadline_and_only_sent_calls_have_unknown_outcomes(storage, deadline):
    queue = broker(storage, call_timeout=3600)
    await queue.start()
    await warm(queue)
    storage.on_write(Fault.HANGS)
    sent = asyncio.create_task(queue.enqueue("work", b"sent", deadline=3600))
    await asyncio.sleep(1)
    unsent = asyncio.create_task(queue.enqueue("work", b"unsent", deadline=3600))
    waiting = asyncio.create_task(queue.dequeue("other", wait=3600))
    await asyncio.sleep(1)
    left = now()
    await queue.stop(deadline=deadline)
    assert now() - left == pytest.approx(deadline or 30, abs=0.5)
    with pytest.raises(UnknownOutcomeError):
        await sent
    for call in (unsent, waiting):
        with pytest.raises(DeadlineExceededError):
            await call
    assert [] == await payloads(storage)


@in_virtual_time
async def test_calls_waiting_for_buffer_space_do_not_restart_a_broker_that_was_left(storage):
    queue = broker(storage, call_timeout=3600, max_pending=1)
    await queue.start()
    await warm(queue)
    storage.on_write(Fault.HANGS)
    calls = []
    for number in range(4):
        calls.append(asyncio.create_task(queue.enqueue("work", b"%d" % number, deadline=3600)))
        await asyncio.sleep(0.1)
    await queue.stop(deadline=5)
    writes = storage.writes
    refused = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [UnknownOutcomeError, DeadlineExceededError] == [type(error) for error in refused[:2]]
    for error in refused[2:]:
        assert isinstance(error, QueueClosedError | DeadlineExceededError), error
    assert writes == storage.writes, "a queue that was left has written"


@in_virtual_time
async def test_leaving_closes_the_storage(storage):
    closed = []

    class Closing(InMemoryStorage):
        async def release(self):
            closed.append(now())

    async with broker(Closing()) as queue:
        await queue.enqueue("work", b"payload")
        assert [] == closed
    assert 1 == len(closed)


# Failing and going on


class Surprise(Exception):
    """An exception that no storage should raise."""


@in_virtual_time
async def test_an_unexpected_exception_in_a_write_reaches_callers_at_once(storage):
    storage.error = Surprise
    async with broker(storage) as queue:
        await warm(queue)
        storage.on_write(Fault.LOST_REQUEST)
        began = now()
        calls = await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(5)), return_exceptions=True)
        assert began == now()
        assert [UnknownOutcomeError] * 5 == [type(error) for error in calls]
        assert all("Surprise" in str(error) for error in calls)
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


@in_virtual_time
async def test_an_unexpected_exception_in_a_read_means_that_nothing_was_done(storage):
    storage.error = Surprise
    storage.on_read(Fault.LOST_REQUEST)
    async with broker(storage) as queue:
        with pytest.raises(StorageError, match="Surprise") as raised:
            await queue.enqueue("work", b"payload")
        assert not isinstance(raised.value, UnknownOutcomeError)
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


@in_virtual_time
async def test_a_refusal_of_the_store_is_passed_on_at_once(storage):
    storage.error = lambda: StorageFatalError("access denied")
    async with broker(storage) as queue:
        await warm(queue)
        storage.on_write(Fault.LOST_REQUEST)
        began = now()
        with pytest.raises(StorageFatalError, match="access denied"):
            await queue.enqueue("work", b"payload")
        assert began == now()
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


@in_virtual_time
async def test_a_storage_that_raises_cancelled_error_leaves_no_call_hanging(storage):
    storage.error = asyncio.CancelledError
    async with broker(storage) as queue:
        await warm(queue)
        storage.on_write(Fault.LOST_REQUEST)
        with pytest.raises(UnknownOutcomeError):
            await queue.enqueue("work", b"payload")
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


@pytest.mark.parametrize("verb", ["enqueue", "dequeue, waiting"])
@in_virtual_time
async def test_callers_learn_that_nothing_was_done_if_the_writer_fails_before_sending(
    storage, verb, monkeypatch, caplog
):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    async with broker(storage) as queue:
        await warm(queue)
        with monkeypatch.context() as bug:
            bug.setattr(queue._engine, "commit", fail)
            began = now()
            calls = await asyncio.gather(*(VERBS[verb](queue) for _ in range(5)), return_exceptions=True)
            assert began == now()
        assert [StorageError] * 5 == [type(error) for error in calls]
        assert ["a bug"] * 5 == [str(getattr(error, "cause", None)) for error in calls]
        assert [logging.ERROR] == [record.levelno for record in caplog.records]
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


@in_virtual_time
async def test_a_commit_is_neither_lost_nor_denied_if_the_engine_fails_after_sending_it(storage, monkeypatch):
    def fail(*_):
        raise RuntimeError("a bug")

    async with broker(storage) as queue:
        await warm(queue)
        began = now()
        with monkeypatch.context() as bug, contextlib.suppress(UnknownOutcomeError):  # but never "not done"
            bug.setattr(queue._engine.blob, "settle", fail)
            try:
                await queue.enqueue("work", b"payload")
            except UnknownOutcomeError as error:
                await error.resolve(1)
        assert now() - began <= 1
        await queue.enqueue("work", b"next")
    assert [b"payload", b"next"] == await payloads(storage)


# A bounded buffer


@in_virtual_time
async def test_callers_wait_in_order_while_the_buffer_is_full(storage):
    async with broker(storage, max_pending=5) as queue:
        await warm(queue)
        storage.latency = 1.0
        await asyncio.gather(*(queue.enqueue("work", b"%02d" % number) for number in range(20)))
    assert [b"%02d" % number for number in range(20)] == await payloads(storage)


@in_virtual_time
async def test_a_caller_whose_deadline_passes_at_a_full_buffer_gets_queue_full_error(storage):
    async with broker(storage, max_pending=1, call_timeout=3600) as queue:
        await warm(queue)
        storage.latency = 5.0
        calls = [asyncio.create_task(queue.enqueue("work", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0.1)
        began = now()
        with pytest.raises(QueueFullError, match="waiting for the store"):
            await queue.enqueue("work", b"too many", deadline=2)
        assert now() - began == pytest.approx(2)
        await asyncio.gather(*calls)
    assert [b"0", b"1", b"2"] == await payloads(storage)


@pytest.mark.parametrize("leaving", ["cancelled", "too late"])
@in_virtual_time
async def test_callers_that_give_up_at_a_full_buffer_do_not_delay_the_next(storage, leaving):
    async with broker(storage, max_pending=1, call_timeout=3600) as queue:
        await warm(queue)
        storage.latency = 5.0
        calls = []
        for number in range(6):
            deadline = 1 if leaving == "too late" and number in (2, 3, 4) else 100
            calls.append(asyncio.create_task(queue.enqueue("work", b"%d" % number, deadline=deadline)))
            await asyncio.sleep(0.1)
        if leaving == "cancelled":
            for call in calls[2:5]:
                call.cancel()
        began = now()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError | QueueFullError) for result in results[2:5])
        assert now() - began < 20, "the last call waited although the buffer had space"
    assert [b"0", b"1", b"5"] == await payloads(storage)
