"""A broker is entered and left, bounds its buffer, ends each call by its deadline, and says what became of it."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.domain.errors import (
    DeadlineExceededError,
    QueueClosedError,
    QueueFullError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.faults import Fault
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import Breakable, now

pytestmark = pytest.mark.virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


@pytest.fixture
def storage():
    return Breakable(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, kind=BrokerQueue, **options):
    return kind(storage, **{"clock": VirtualClock(), "call_timeout": 3600, **options})


async def payloads(storage):
    """Return the payloads in the store, in the order in which they would be served."""
    state = await DirectQueue(storage.storage).read_state()
    return [job.payload for job in state.queued_jobs()]


async def warm(queue):
    """Read the state, so that the next call needs one write and no read."""
    await queue.dequeue("nobody")


# Entering and leaving

VERBS = {
    "enqueue": lambda queue: queue.enqueue("work", b"payload"),
    "dequeue, waiting": lambda queue: queue.dequeue("work", wait=60),
    "ack": lambda queue: queue.ack("an-id"),
    "purge": lambda queue: queue.purge(),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
async def test_calls_before_a_broker_is_entered_and_after_it_is_left_say_what_to_do(storage, verb):
    queue = queue_on(storage)
    for kind, remedy in ((queue, "async with"), (GroupCommitLoop(storage), r"start\(\)")):
        with pytest.raises(QueueClosedError, match=remedy):
            await verb(kind)
    async with queue:
        pass
    with pytest.raises(QueueClosedError, match="make a new one, or start it again"):
        await verb(queue)
    assert (0, 0) == (storage.reads, storage.writes)


async def test_a_broker_can_be_entered_again_when_it_was_left(storage):
    queue = queue_on(storage)
    for payload in (b"first", b"second"):
        await queue.start()
        with pytest.raises(RuntimeError, match="is started already"):
            await queue.start()
        await queue.enqueue("work", payload)
        for _ in range(2):
            await queue.stop()
    assert [b"first", b"second"] == await payloads(storage)


async def test_leaving_even_by_an_error_finishes_calls_answers_waiting_dequeues_and_closes_the_storage(storage):
    storage.latency = 1.0
    closed = []

    async def release():
        closed.append([call.done() for call in calls])

    storage.release = release
    with pytest.raises(ZeroDivisionError):
        async with queue_on(storage) as queue:
            calls = [asyncio.create_task(queue.dequeue("other", wait=3600))]
            await asyncio.sleep(10)
            calls += [asyncio.create_task(queue.enqueue("work", b"%d" % number)) for number in range(9)]
            await asyncio.sleep(0)
            left = now()
            raise ZeroDivisionError
    assert [[True] * 10] == closed
    assert [] == await calls[0]
    assert now() - left < 4
    assert [b"%d" % number for number in range(9)] == await payloads(storage)


async def test_leaving_does_not_wait_for_the_next_poll(storage):
    async with queue_on(storage, poll_interval=600) as queue:
        waiting = asyncio.create_task(queue.dequeue("work", wait=3600))
        await asyncio.sleep(3000)  # by then, polls are as far apart as they get
        left = now()
    assert [] == await waiting
    assert now() - left < 1


@pytest.mark.parametrize("deadline", [None, 5])
async def test_leaving_ends_by_its_deadline_and_only_sent_calls_have_unknown_outcomes(storage, deadline):
    queue = queue_on(storage, max_pending=2)
    await queue.start()
    await warm(queue)
    storage.on_write(Fault.HANGS)
    calls = [asyncio.create_task(queue.enqueue("work", b"sent", deadline=3600))]
    await asyncio.sleep(1)
    calls += [asyncio.create_task(queue.enqueue("work", b"unsent", deadline=3600)) for _ in range(4)]
    await asyncio.sleep(1)
    left, writes = now(), storage.writes
    await queue.stop(deadline=deadline)
    assert now() - left == pytest.approx(deadline or 30, abs=0.5)
    sent, *unsent = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert isinstance(sent, UnknownOutcomeError)
    assert all(isinstance(error, QueueClosedError | DeadlineExceededError) for error in unsent)
    assert writes == storage.writes, "a queue that was left has written"


# Deadlines


@both
async def test_a_call_not_sent_by_its_deadline_is_not_done_and_one_sent_has_an_unknown_outcome(storage, kind):
    async with queue_on(storage, kind, deadline=4, call_timeout=8) as queue:
        storage.on_read(Fault.HANGS)
        with pytest.raises(DeadlineExceededError) as raised:
            await queue.enqueue("work", b"payload", deadline=3)
        assert isinstance(raised.value, TimeoutError)
        assert now() == pytest.approx(3)
        await asyncio.sleep(10)
        await warm(queue)
        storage.on_write(Fault.HANGS)
        began = now()
        sent = asyncio.create_task(queue.enqueue("work", b"payload", job_id="the-id"))
        await asyncio.sleep(1)
        with pytest.raises(DeadlineExceededError):
            await queue.enqueue("work", b"payload", deadline=2)
        assert now() - began == pytest.approx(3)
        with pytest.raises(UnknownOutcomeError) as unknown:
            await sent
        assert now() - began == pytest.approx(4)
        assert ("the-id",) == unknown.value.job_ids


@both
async def test_a_failing_store_is_asked_again_until_it_recovers_or_the_deadline(storage, kind):
    storage.down = True
    async with queue_on(storage, kind) as queue:
        with pytest.raises(DeadlineExceededError, match="the connection was reset"):
            await queue.enqueue("work", b"payload")
        assert now() == pytest.approx(30)
        assert 5 < storage.reads < 100
        storage.down = False
        await queue.enqueue("work", b"payload")
        assert now() < 30.1, "it waited for the pause of a call that has ended"
        storage.down = True
        call = asyncio.create_task(queue.enqueue("work", b"more"))
        await asyncio.sleep(20)
        storage.down = False
        await call
    assert [b"payload", b"more"] == await payloads(storage)


@both
async def test_the_wait_of_a_dequeue_does_not_count_against_its_deadline(storage, kind):
    async with queue_on(storage, kind) as queue:
        assert [] == await queue.dequeue("work", wait=100, deadline=3)
        assert now() == pytest.approx(100, abs=3)
        storage.down = True
        with pytest.raises(DeadlineExceededError):
            await queue.dequeue("work", wait=100, deadline=3)
        assert now() == pytest.approx(203, abs=6)


# Unknown outcomes

CALLS = {
    "enqueue": (lambda queue, job: queue.enqueue("work", b"payload", job_id="the-id"), lambda job: job.id == "the-id"),
    "enqueue_many": (
        lambda queue, job: queue.enqueue_many([Enqueue("work", b"1"), Enqueue("work", b"2")]),
        lambda jobs: [b"1", b"2"] == [job.payload for job in jobs],
    ),
    "ack": (lambda queue, job: queue.ack(job), lambda result: result is None),
    "heartbeat_many": (lambda queue, job: queue.heartbeat_many([job]), lambda result: result == []),
    "apply": (
        lambda queue, job: queue.apply(Ack(job), Enqueue("work", b"payload", job_id="the-id")),
        lambda results: results[0] is None and results[1].id == "the-id",
    ),
    "requeue_stale": (lambda queue, job: queue.requeue_stale(0), lambda result: result == 1),
}


async def unknown(queue, storage, fault, call):
    """Return the error of a call whose write met `fault` and had no answer by the deadline."""
    await queue.enqueue("first", b"payload")
    [job] = await queue.dequeue("first")
    storage.on_write(fault)
    with pytest.raises(UnknownOutcomeError) as raised:
        await CALLS[call][0](queue, job)
    return raised.value


@both
@pytest.mark.parametrize("call", CALLS)
async def test_resolve_returns_the_result_of_a_call_that_took_effect_or_says_that_it_had_none(storage, kind, call):
    async with queue_on(storage, kind, deadline=2, call_timeout=60) as queue:
        error = await unknown(queue, storage, Fault.HANGS_AFTER, call)
        began = now()
        storage.down = True
        with pytest.raises(UnknownOutcomeError) as again:
            await error.resolve(3)
        assert now() - began == pytest.approx(3)
        storage.down = False
        result = await again.value.resolve(120)
        assert CALLS[call][1](result), result
    without = Breakable(InMemoryStorage(clock=VirtualClock()))
    async with queue_on(without, kind, deadline=2, call_timeout=60) as queue:
        error = await unknown(queue, without, Fault.HANGS, call)
        with pytest.raises(DeadlineExceededError, match="certainly not done"):
            await error.resolve(120)


@both
async def test_an_ack_that_was_cancelled_as_it_landed_may_be_repeated_by_its_bare_id(kind):
    class Hooked(InMemoryStorage):
        async def write(self, content, if_match=None):
            etag = await super().write(content, if_match)
            asyncio.get_running_loop().call_soon(hook)
            return etag

    def hook():
        """Do nothing, until an ack is to be cancelled."""

    async with kind(Hooked()) as queue:
        await queue.enqueue("t", job_id="j")
        await queue.dequeue("t")
        ack = asyncio.create_task(queue.ack("j"))
        hook = ack.cancel
        with pytest.raises(asyncio.CancelledError):
            await ack
        await queue.ack("j")
        assert () == (await queue.read_state()).jobs


# Errors of the store


class Surprise(Exception):
    """An exception that no storage should raise."""


def certainly_not_written():
    error = StorageFatalError("the disk is full")
    error.nothing_written = True
    return error


REFUSALS = {
    "an exception that no storage should raise": (Surprise, UnknownOutcomeError, "Surprise"),
    "a cancellation": (asyncio.CancelledError, UnknownOutcomeError, ""),
    "a refusal": (lambda: StorageFatalError("access denied"), StorageFatalError, "access denied"),
    "a refusal without effect": (certainly_not_written, StorageFatalError, "the disk is full"),
}


@pytest.mark.parametrize(("error", "raised", "text"), REFUSALS.values(), ids=REFUSALS)
async def test_an_error_that_no_retry_can_mend_reaches_the_callers_at_once(storage, error, raised, text):
    storage.error = error
    async with queue_on(storage) as queue:
        await warm(queue)
        storage.on_write(Fault.LOST_REQUEST)
        began = now()
        errors = await asyncio.gather(*(queue.enqueue("work", b"no") for _ in range(5)), return_exceptions=True)
        assert began == now()
        assert [raised] * 5 == [type(each) for each in errors]
        assert all(text in str(each) for each in errors)
        await queue.enqueue("work", b"next")
    assert [b"next"] == await payloads(storage)


# A bounded buffer


@pytest.mark.parametrize("leaving", ["cancelled", "too late"])
async def test_callers_wait_in_order_at_a_full_buffer_and_those_who_give_up_delay_nobody(storage, leaving):
    async with queue_on(storage, max_pending=1) as queue:
        await warm(queue)
        storage.latency = 5.0
        calls, began = [], now()
        for number in range(6):
            deadline = 1 if leaving == "too late" and number in (2, 3) else 100
            calls.append(asyncio.create_task(queue.enqueue("work", b"%d" % number, deadline=deadline)))
            await asyncio.sleep(0.1)
        if leaving == "cancelled":
            for call in calls[2:4]:
                call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        expected = asyncio.CancelledError if leaving == "cancelled" else QueueFullError
        assert [expected] * 2 == [type(result) for result in results[2:4]]
        assert leaving == "cancelled" or "waiting for the store" in str(results[2])
        assert now() - began < 26, "the last call waited although the buffer had space"
    assert [b"0", b"1", b"4", b"5"] == await payloads(storage)


async def test_a_dequeue_waits_for_space_in_a_full_buffer_too(storage):
    async with queue_on(storage, max_pending=1) as queue:
        await warm(queue)
        storage.latency = 5.0
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(queue.enqueue("work", b"%d" % number))
            await asyncio.sleep(0.1)
            with pytest.raises(QueueFullError):
                await queue.dequeue("work", deadline=1)


# Waiters


@both
async def test_the_longest_waiting_dequeue_is_answered_first(storage, kind):
    async with queue_on(storage, kind) as queue:
        answered = []

        async def wait(name):
            [job] = await queue.dequeue("work", wait=600)
            answered.append((name, job.payload))

        waiting = []
        for name in range(4):
            waiting.append(asyncio.create_task(wait(name)))
            await asyncio.sleep(1.7)
        for number in range(4):
            late = asyncio.create_task(queue.dequeue("work", wait=0.1))
            await queue.enqueue("work", b"%d" % number)
            assert kind is DirectQueue or [] == await late, "it was called together with the enqueue"
            await asyncio.sleep(0.3)
        await asyncio.gather(*waiting)
        assert [(number, b"%d" % number) for number in range(4)] == answered


@both
async def test_a_waiting_dequeue_gets_its_job_when_the_rate_allows_it(storage, kind):
    async with queue_on(storage, kind) as queue:
        await queue.limit("work", rate=1, per=300.25)
        await queue.enqueue_many([Enqueue("work", b""), Enqueue("work", b"")])
        for _ in range(2):
            assert await queue.dequeue("work", wait=3600)
        assert 300.25 <= now() < 300.26, "a poll each second, and one when the rate allows the claim"


@both
async def test_a_cancelled_waiting_dequeue_costs_no_write_and_no_more_reads(storage, kind):
    async with queue_on(storage, kind) as queue:
        gone = asyncio.create_task(queue.dequeue("work", wait=600))
        await asyncio.sleep(5)
        gone.cancel()
        await asyncio.wait([gone])
        asked = storage.reads, storage.writes
        await asyncio.sleep(60)
        assert asked == (storage.reads, storage.writes)


@pytest.mark.parametrize("name", ["paused", "another"])
async def test_due_jobs_that_a_waiting_dequeue_cannot_have_do_not_delay_its_poll(storage, name):
    async with queue_on(storage) as one, queue_on(storage) as other:
        await other.pause("paused")
        await other.enqueue_many(Enqueue(name, b"", delay=number / 2) for number in range(1, 240))
        waiting = asyncio.create_task(one.dequeue(["paused", "wanted"], wait=300))
        await asyncio.sleep(10)
        assert not waiting.done()
        await (other.resume("paused") if name == "paused" else other.enqueue("wanted"))
        assert 1 == len(await asyncio.wait_for(waiting, 3.0)), "the poll interval is one second"
