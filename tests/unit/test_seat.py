"""The broker's seat in the header of a queue, and the clients that find their broker by it, in virtual time."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from jqueue import BrokerQueue, DirectQueue
from jqueue.core.json_views import stats_values
from jqueue.core.messages import Answer, Batch, Claim, Stop, encode, message_decoder
from jqueue.domain.errors import (
    DeadlineExceededError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.header import BrokerSeat
from jqueue.domain.operations.operator import CreateQueue, TakeSeat
from jqueue.ports.sharing import LinkError, LinkRefusedError, NoBrokerError
from jqueue.testing.virtual_time import VirtualClock
from tests.shared_memory import BrokerOnly, NetworkMemory, SharedMemory, Way, serving
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time

HERE, THERE = "http://here:8470", "http://there:8470"


@pytest.fixture
def storage():
    return NetworkMemory(clock=VirtualClock())


def queue_on(storage, **options):
    return BrokerQueue(storage, clock=VirtualClock(), **options)


async def seat_of(storage):
    return (await DirectQueue(storage, clock=VirtualClock()).read_state()).broker


@asynccontextmanager
async def broker_on(storage, url=HERE):
    """Serve a queue, until it is closed or dead."""
    async with queue_on(storage) as broker:
        if not (await storage.read())[0]:
            await broker.apply(CreateQueue())
        storage.brokers[url] = broker.service().handle
        broker.offer(url)
        yield broker
    storage.brokers.pop(url, None)


async def seat_at(storage, url):
    """Wait until a broker has the seat."""
    while (seat := await seat_of(storage)) is None or seat.url != url:
        await asyncio.sleep(0.01)
    return seat


def sent_to(storage, url):
    """Return the number of messages that were sent to a broker, without the questions if it is there."""
    messages = [message for where, link in storage.links if where == url for message in link.messages]
    return sum(not isinstance(message_decoder().decode(message), Stop) for message in messages)


# Clients


async def test_a_client_of_a_dead_broker_commits_itself_and_asks_again_later_and_later(storage):
    async with broker_on(storage), queue_on(storage) as client:
        await seat_at(storage, HERE)
        await client.enqueue("work")
        alive = storage.brokers.pop(HERE)
        asked = len(storage.links)
        for _ in range(60):
            await client.enqueue("work")
            await asyncio.sleep(1)
        assert len(storage.links) - asked <= 14, "a dead broker is asked again and again"
        storage.brokers[HERE] = alive
        await asyncio.sleep(60)
        served = sent_to(storage, HERE)
        await client.enqueue("work")
        assert sent_to(storage, HERE) == served + 1
        assert (await client.stats()).ready == 62
        await asyncio.sleep(3)
        seat = await seat_of(storage)
        assert (seat.term, seat.doubted_at) == (2, 0), "the broker has not seen that it was doubted"


@pytest.mark.parametrize("another", [True, False], ids=["another program has its port", "its machine is gone"])
async def test_a_broker_that_is_gone_costs_one_program_a_dial_and_the_next_ones_none(storage, another):
    operator = DirectQueue(storage, clock=VirtualClock())
    await operator.apply(CreateQueue())
    await operator.apply(TakeSeat(HERE, "gone", 0))

    async def no_answer(message):
        if another:
            raise NoBrokerError(StorageFatalError("it answers with the status 404"), everything=True)
        await asyncio.Event().wait()

    storage.brokers[HERE] = no_answer
    async with queue_on(storage) as first:
        await first.enqueue("work")
    assert (len(storage.links), now()) == (1, 0.0 if another else 0.3)
    async with queue_on(storage) as second:
        await second.enqueue("work")
        assert (await second.stats()).ready == 2
    assert len(storage.links) == 1
    seat = await seat_of(storage)
    assert seat == BrokerSeat("gone", HERE, 1, doubted_at=VirtualClock().now().timestamp())
    view, at = await operator.view(), VirtualClock().now()
    figures = await view.stats(at)
    shown = [stats_values("q", view, figures, at + timedelta(seconds=age))["broker"] for age in (0, 61)]
    assert [None, HERE] == shown, "`jqueue stats` names no broker that did not answer a moment ago"
    await asyncio.sleep(60)
    async with queue_on(storage) as third:
        await third.enqueue("work")
    assert len(storage.links) == 2


async def test_a_client_that_only_looks_for_jobs_leaves_the_seat_of_a_broker_that_is_gone(storage):
    """It may have no right to write."""
    operator = DirectQueue(storage, clock=VirtualClock())
    await operator.apply(CreateQueue())
    await operator.apply(TakeSeat(HERE, "gone", 0))
    version = (await storage.read())[1]
    async with queue_on(storage) as client:
        assert [] == await client.dequeue("work", wait=30)
    assert version == (await storage.read())[1]


@pytest.mark.parametrize("busy", [True, False])
async def test_a_client_that_is_cut_off_from_a_live_broker_keeps_others_from_it_for_a_minute_at_most(storage, busy):
    """A broker that commits is never doubted. An idle one clears its name with the next commit that it makes."""
    apart = Way(storage)

    async def dial_nobody(url):
        return await storage.dial_url("http://nowhere:8470")

    apart.dial_url = dial_nobody  # type: ignore[attr-defined]
    async with broker_on(storage), queue_on(storage) as client, queue_on(apart) as lonely:
        await seat_at(storage, HERE)
        doubted, end = set(), now() + 100
        while now() < end:
            await lonely.enqueue("work")
            if busy:
                await client.enqueue("work")
            await asyncio.sleep(1)
            doubted.add((await seat_of(storage)).doubted_at)
        assert doubted == {0} if busy else len(doubted) <= 3
        await asyncio.sleep(60)
        served = sent_to(storage, HERE)
        await client.enqueue("work")
        assert sent_to(storage, HERE) == served + 1


async def test_a_client_goes_to_another_broker_as_soon_as_a_commit_shows_it(storage):
    async with broker_on(storage, HERE), queue_on(storage) as client:
        await seat_at(storage, HERE)
        await client.enqueue("work")
        del storage.brokers[HERE]
        for _ in range(6):  # the pauses grow
            await client.enqueue("work")
            await asyncio.sleep(1)
        async with broker_on(storage, THERE):
            await seat_at(storage, THERE)
            await client.enqueue("work")  # finds it, as the write conflicts, and goes there
            await client.enqueue("work")
            assert sent_to(storage, THERE) == 2


async def test_clients_come_back_soon_after_a_broker_reaches_the_store_again(storage):
    there = Way(storage)
    async with broker_on(there), queue_on(storage) as client:
        seat = await seat_at(storage, HERE)
        await client.enqueue("work")
        there.is_down, end = True, now() + 25
        while now() < end:
            await client.enqueue("work")
            await asyncio.sleep(0.5)
        there.is_down = False
        await asyncio.sleep(6)  # the broker's own next try to reach the store, and its look at the seat
        assert (await seat_of(storage)).term == seat.term + 1
        await client.enqueue("work")  # this commit shows the new term
        served = sent_to(storage, HERE)
        await client.enqueue("work")
        assert sent_to(storage, HERE) == served + 1


async def test_a_second_broker_waits_without_touching_the_store_until_the_first_is_gone(storage):
    async with broker_on(storage, HERE):
        first = await seat_at(storage, HERE)
        async with broker_on(storage, THERE):
            await asyncio.sleep(30)
            version = (await storage.read())[1]
            await asyncio.sleep(30)
            assert version == (await storage.read())[1]
            assert await seat_of(storage) == first
            del storage.brokers[HERE]
            begun = now()
            second = await seat_at(storage, THERE)
            assert (second.term, now() - begun <= 5) == (2, True)
            await asyncio.sleep(60)
            assert await seat_of(storage) == second


async def test_a_broker_that_lost_its_seat_answers_still_and_sends_its_clients_on(storage):
    async with broker_on(storage, HERE) as first, queue_on(storage) as client:
        await seat_at(storage, HERE)
        await client.enqueue("work")
        storage.brokers[THERE] = storage.brokers[HERE]
        await DirectQueue(storage, clock=VirtualClock()).apply(TakeSeat(THERE, "another", 1))
        await client.enqueue("work")  # answered, after a conflict that shows the new seat
        before = sent_to(storage, HERE)
        await client.enqueue("work")
        assert (sent_to(storage, HERE), sent_to(storage, THERE)) == (before, 1)
        assert (await first.stats()).ready == 3
        assert [url for url, link in storage.links if link.messages and not link.closed] == [THERE], (
            "an old connection was left open"
        )


async def test_a_client_that_is_sent_on_and_on_commits_itself(storage):
    operator = DirectQueue(storage, clock=VirtualClock())
    await operator.apply(CreateQueue())
    terms = iter(range(100))

    async def elsewhere(message):
        """Leave, after another process has taken the seat."""
        if isinstance(message_decoder().decode(message), Stop):
            return encode(Answer())
        await operator.apply(TakeSeat(HERE, f"w{(term := next(terms))}", term))
        return encode(Answer(leaving=True))

    storage.brokers[HERE] = elsewhere
    await operator.apply(TakeSeat(HERE, "w", next(terms)))
    async with queue_on(storage) as client:
        for _ in range(10):
            await client.enqueue("work")
        assert sent_to(storage, HERE) <= 5
        assert (await client.stats()).ready == 10
        await asyncio.sleep(11)
        before = sent_to(storage, HERE)
        await client.enqueue("work")
        assert sent_to(storage, HERE) > before


async def test_a_broker_that_is_closed_leaves_the_seat_and_no_caller_sees_an_error(storage):
    async with queue_on(storage) as client:
        async with broker_on(storage):
            await seat_at(storage, HERE)
            waiting = asyncio.create_task(client.dequeue("work", wait=60))
            calls = [asyncio.create_task(client.enqueue("other")) for _ in range(5)]
            await asyncio.sleep(1)
        left = await seat_of(storage)
        assert (left.url, left.term) == ("", 1)
        await asyncio.gather(*calls)
        await client.enqueue("work")
        assert len(await waiting) == 1


async def test_a_broker_of_another_queue_is_left_alone():
    """A URL such as http://127.0.0.1:8470 may mean another process on another machine."""
    storage, other = NetworkMemory(clock=VirtualClock()), NetworkMemory(clock=VirtualClock())
    async with broker_on(storage), broker_on(other), queue_on(storage) as client:
        await seat_at(storage, HERE)
        await seat_at(other, HERE)
        storage.brokers[HERE] = other.brokers[HERE]
        await client.enqueue("work")
        assert (await client.stats()).ready == 1
        assert (await DirectQueue(other, clock=VirtualClock()).stats()).ready == 0


async def test_a_client_whom_the_broker_refuses_commits_itself(storage):
    async with broker_on(storage), queue_on(storage) as client:
        await seat_at(storage, HERE)
        refused = []

        async def refuse(message):
            refused.append(message)
            raise LinkRefusedError(StorageFatalError("no token"))

        storage.brokers[HERE] = refuse
        for _ in range(5):
            await client.enqueue("work")
            await asyncio.sleep(1)
        assert ((await client.stats()).ready, len(refused)) == (5, 1)


async def test_a_broker_creates_no_queue_and_serves_the_one_that_a_client_creates(storage):
    async with queue_on(storage) as broker, queue_on(storage) as client:
        storage.brokers[HERE] = broker.service().handle
        broker.offer(HERE)
        await asyncio.sleep(10)
        assert await storage.read() == (b"", None)
        await client.enqueue("work")
        await seat_at(storage, HERE)


async def test_two_brokers_behind_one_url_do_not_take_the_seat_in_turns(storage):
    async with broker_on(storage), broker_on(storage):
        await asyncio.sleep(20)
        seat, version = await seat_of(storage), (await storage.read())[1]
        assert seat is not None
        assert seat.term <= 2
        await asyncio.sleep(60)
        assert version == (await storage.read())[1]


# Clients without a store


@asynccontextmanager
async def client_without_store(**options):
    storage = SharedMemory(clock=VirtualClock())
    async with serving(storage), queue_on(BrokerOnly(storage), **options) as client:
        yield storage, client


def answer_by(storage, handle):
    """Let a function answer the messages of all clients, which connect anew."""
    storage.handle = handle
    for link in storage.links:
        link.close()


async def test_a_client_without_a_store_waits_for_its_broker_until_the_deadline():
    async with client_without_store() as (storage, client):
        await client.enqueue("work")
        handle, storage.handle = storage.handle, None
        for link in storage.links:
            link.close()
        begun = now()
        with pytest.raises(DeadlineExceededError, match="nothing was done"):
            await client.enqueue("work", deadline=7)
        assert 7 <= now() - begun < 8
        waiting = asyncio.create_task(client.enqueue("work"))
        await asyncio.sleep(5)
        storage.handle = handle
        await waiting
        assert (await client.stats()).ready == 2


async def test_a_call_that_a_dead_broker_may_have_done_has_an_unknown_outcome():
    async with client_without_store() as (storage, client):
        await client.enqueue("work")
        handle = storage.handle

        async def silent(message):
            await handle(message)
            storage.handle = None
            raise LinkError("silent", sent=True)

        answer_by(storage, silent)
        with pytest.raises(UnknownOutcomeError) as raised:
            await client.enqueue("work", deadline=3)
        storage.handle = handle
        job = await raised.value.resolve(10)
        assert job.id in {each.id for each in (await client.read_state()).jobs}


async def test_a_refused_dequeue_delays_no_other_call():
    async with client_without_store() as (storage, client):
        await client.enqueue("work")
        handle = storage.handle

        async def for_producers(message):
            if not isinstance(message_decoder().decode(message), Batch):
                raise LinkRefusedError(StorageFatalError("a producer may not claim jobs"))
            return await handle(message)

        answer_by(storage, for_producers)
        for wait in (None, 5.0):
            begun = now()
            with pytest.raises(StorageFatalError, match="may not claim"):
                await client.dequeue("work", wait=wait)
            await client.enqueue("work")
            assert now() - begun < 1


async def test_a_refusal_of_one_call_is_the_error_of_that_call_alone():
    async with client_without_store() as (storage, client):
        await client.enqueue("work")
        handle = storage.handle

        async def strict(message):
            """Refuse a whole message, as a server does that checks roles."""
            batch = message_decoder().decode(message)
            if isinstance(batch, Batch) and any(type(each).__name__ == "Pause" for each in batch.operations):
                raise LinkRefusedError(StorageFatalError("a producer may not do Pause"))
            return await handle(message)

        answer_by(storage, strict)
        results = await asyncio.gather(
            client.enqueue("work"), client.pause("work"), client.enqueue("work"), return_exceptions=True
        )
        assert [type(each).__name__ for each in results] == ["Job", "StorageFatalError", "Job"]


async def test_a_dequeue_whose_message_was_lost_may_have_claimed_until_its_deadline():
    """A message that comes late claims jobs, although those of the call were looked for before."""
    async with client_without_store() as (storage, client):
        await client.enqueue("other")
        handle, claims = storage.handle, []

        async def deaf(message):
            if isinstance(message_decoder().decode(message), Claim):
                claims.append(message)
                raise LinkError("cut", sent=len(claims) == 1)
            return await handle(message)

        answer_by(storage, deaf)
        with pytest.raises(UnknownOutcomeError):
            await client.dequeue("work", deadline=7)
