"""Calls that go to a broker while answers get lost, messages come late, and backups are restored."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from jqueue import BrokerQueue, JobNotFoundError, JobStatus
from jqueue.core.messages import Answer, Batch, Claim, encode, message_decoder
from jqueue.domain.draft import Draft
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, UnknownOutcomeError
from jqueue.domain.header import ClientRecord
from jqueue.domain.job import JobRecord
from jqueue.domain.models import QueueState
from jqueue.domain.operations.base import perform
from jqueue.domain.operations.codec import ClientBatch, refusal_of
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.lookups import AwaitResult
from jqueue.domain.operations.operator import CreateQueue
from jqueue.domain.operations.rules import Configure
from jqueue.ports.observer import Observer
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from tests.shared_memory import BrokerOnly, SharedMemory, Way, serving
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time


class Wire(SharedMemory):
    """A storage between whose clients and brokers a test can stand.

    Attributes:
        between: takes a message and the broker's handle, and returns the answer.
        sent: every message.
    """

    def __init__(self):
        super().__init__(clock=VirtualClock())
        self.between = lambda message, handle: handle(encode(message))
        self.sent = []

    async def take_seat(self, handle):
        async def on_wire(data):
            message = message_decoder().decode(data)
            self.sent.append(message)
            return await self.between(message, handle)

        return await super().take_seat(on_wire)

    async def lose(self):
        """Cut all connections, before an answer comes."""
        for link in self.links:
            link.close()
        await asyncio.Event().wait()


def queue_on(storage, **options):
    return BrokerQueue(storage, clock=VirtualClock(), **options)


@asynccontextmanager
async def client_of(wire):
    """Use a queue object whose calls go to the broker."""
    async with queue_on(wire) as client:
        await client.enqueue("first", b"")
        while not wire.sent:
            await asyncio.sleep(0.1)
            await client.enqueue("first", b"")
        yield client


@asynccontextmanager
async def client_of_offer(broker, wire):
    """Have a queue object serve, and use a client of it."""
    broker.offer()
    async with client_of(wire) as client:
        yield client


def test_a_look_that_is_refused_later_does_not_refuse_a_batch_that_has_landed():
    draft = Draft(QueueState())
    draft.note(draft.header.clients, "client", ClientRecord(3, "t", 1, EPOCH.timestamp()))
    batch = ClientBatch("client", 3, "t", 0, (Enqueue("a", b"", new_id="new"), AwaitResult("gone")), again=True)
    [results] = perform([batch], draft, EPOCH)  # type: ignore[misc]
    assert "new" == results[0].id
    assert isinstance(results[1], JobNotFoundError)


def test_a_batch_that_has_landed_is_not_refused_if_its_results_are_too_large_for_an_answer_by_now():
    draft = Draft(QueueState())
    perform([Enqueue("a", bytes(1000), job_id="one")], draft, EPOCH)
    draft.note(draft.header.clients, "client", ClientRecord(3, "t", 1, EPOCH.timestamp()))
    batch = ClientBatch("client", 3, "t", 0, (Enqueue("a", job_id="one"),) * 5, again=True, answer_bytes=5000)
    [results] = perform([batch], draft, EPOCH)  # type: ignore[misc]
    assert [JobRecord] * 2 + [UnknownOutcomeError] * 3 == [*map(type, results)]


def test_a_batch_that_creates_the_queue_is_known_if_another_call_of_the_commit_has_changed_it_before():
    draft = Draft(QueueState())
    batch = ClientBatch("client", 1, "t", 0, (CreateQueue(),))
    perform([Configure(history=60.0), batch], draft, EPOCH)
    assert 1 == draft.header.clients["client"].sequence
    draft.settle()
    assert [[None]] == perform([msgspec.structs.replace(batch, again=True)], draft, EPOCH)


async def test_a_client_goes_on_after_a_backup_was_restored():
    wire = Wire()
    async with serving(wire) as broker, client_of(wire) as client:
        backup, _ = await wire.read()
        for number in range(5):
            await client.enqueue("a", b"%d" % number)
        _, etag = await wire.read()
        await wire.write(backup, etag)
        with pytest.raises(UnknownOutcomeError):
            await broker.enqueue("c", b"")  # in flight when the broker sees the backup
        wire.sent.clear()
        for number in range(5):
            await client.enqueue("b", b"%d" % number)
        assert 6 == len(wire.sent), "the first is sent again, with the version of the backup"
        assert 5 == sum(job.entrypoint == "b" for job in (await client.read_state()).jobs)


async def test_an_operation_that_cannot_travel_as_json_fails_no_other_one():
    wire = Wire()
    async with serving(wire), client_of(wire) as client:
        half = "\ud800"
        outcomes = await asyncio.gather(
            client.enqueue("a", b""), client.dequeue(half), client.ack(half), return_exceptions=True
        )
        assert "a" == getattr(outcomes[0], "entrypoint", None)
        assert [] == outcomes[1]
        assert isinstance(outcomes[2], JobNotFoundError)


async def test_a_broker_that_does_not_know_an_operation_leaves_it_to_the_client():
    wire = Wire()

    async def older(message, handle):
        return encode(Answer(error=refusal_of(InvalidJobError("cannot read it"))))

    async with serving(wire), client_of(wire) as client:
        wire.between = older
        job = await client.enqueue("a", b"")
        assert job.id in [each.id for each in (await client.read_state()).jobs]
        [claimed] = await client.dequeue("a")
        assert job.id == claimed.id


@pytest.mark.parametrize("place", ["message", "operation"])
async def test_a_broker_refuses_what_it_does_not_know(place):
    """It would do something else than its client has asked for."""
    wire = Wire()
    async with serving(wire) as broker:
        batch = Batch(client="c", sequence=1, token="t", operations=(Enqueue("a", b"", new_id="new"),), seconds=(5.0,))
        message = msgspec.json.decode(encode(batch))
        (message if place == "message" else message["operations"][0])["newer"] = 1
        with pytest.raises(msgspec.ValidationError, match="newer"):
            message_decoder().decode(encode(message))
        assert [] == list((await broker.read_state()).jobs)


async def test_a_broker_that_is_cut_off_from_the_store_soon_delays_calls_no_more():
    wire = Wire()
    there = Way(wire)
    async with serving(there), client_of(wire) as client:
        there.is_down, began, slow = True, now(), 0
        while now() < began + 600:
            start = now()
            await client.enqueue("a", b"")
            slow += now() > start + 1
            await asyncio.sleep(0.5)
        assert slow <= 16


async def test_a_dequeue_does_not_wait_at_a_broker_that_is_cut_off_from_the_store():
    wire = Wire()
    there = Way(wire)
    async with serving(there), client_of(wire) as client:
        waiting = asyncio.create_task(client.dequeue("a", wait=600))
        await asyncio.sleep(1)
        there.is_down, began = True, now()
        async with queue_on(wire, share=False) as other:
            await other.enqueue("a", b"")
        [_] = await waiting
        assert now() < began + 30


async def test_a_broker_that_begins_does_not_wait_for_itself():
    class Slow(Wire):
        async def take_seat(self, handle):
            seat = await super().take_seat(handle)
            await asyncio.sleep(3)  # other tasks of the process can find the broker, and it does not know it is one
            return seat

    wire = Slow()
    async with queue_on(wire) as broker:
        broker.offer()
        for _ in range(10):
            began = now()
            await broker.enqueue("a", b"")
            assert now() < began + 0.5
            await asyncio.sleep(0.5)


async def test_a_dequeue_whose_claims_were_handed_back_is_known_as_not_done():
    wire = Wire()

    async def between(message, handle):
        if not isinstance(message, Claim):
            return await handle(encode(message))
        await handle(encode(message))
        return await wire.lose()

    async with serving(wire) as broker, queue_on(BrokerOnly(wire)) as client:
        await broker.enqueue("a", b"")
        wire.between = between
        with pytest.raises(UnknownOutcomeError) as caught:
            await client.dequeue("a", deadline=2)
        with pytest.raises(DeadlineExceededError):
            await caught.value.resolve(5)
        assert {JobStatus.QUEUED} == {job.status for job in (await broker.read_state()).jobs}


async def test_a_queue_object_that_has_served_is_a_client_again():
    wire = Wire()
    first = queue_on(wire)
    async with first:
        first.service()
    async with serving(wire), first:
        await first.enqueue("a", b"")
        assert wire.sent


async def test_an_observer_of_a_broker_sees_the_calls_of_its_clients_one_by_one():
    class Seen(Observer):
        calls = 0

        def committed(self, commit):
            self.calls += len(commit.calls)

    wire, seen = Wire(), Seen()
    async with serving(wire) as broker, client_of(wire) as client:
        broker.observe(seen)
        await asyncio.gather(
            client.apply(Enqueue("a", b""), Enqueue("a", b"")), *(client.enqueue("a", b"") for _ in range(3))
        )
        assert 4 == seen.calls


async def test_a_heartbeat_from_a_client_does_not_wait_behind_the_new_jobs_of_the_broker():
    wire = Wire()
    there = Way(wire)
    async with queue_on(there, max_pending=2) as broker, client_of_offer(broker, wire) as client:
        [job] = await client.dequeue("first")
        there.slow = 3
        full = [asyncio.create_task(broker.enqueue("a", b"")) for _ in range(20)]
        await asyncio.sleep(0.1)
        began = now()
        await asyncio.gather(client.enqueue("b", b""), client.heartbeat(job))
        assert now() < began + 7
        there.slow = 0
        await asyncio.gather(*full, return_exceptions=True)


async def test_a_very_large_call_is_not_sent_to_a_broker():
    wire = Wire()
    async with serving(wire), client_of(wire) as client:
        wire.sent.clear()
        jobs = await client.apply(*(Enqueue("a", bytes(50_000)) for _ in range(300)))
        assert 300 == len(jobs)
        assert [] == wire.sent


async def test_a_batch_whose_answer_cannot_be_read_is_sent_as_one_that_was_sent_before():
    wire, sent = Wire(), list[Batch]()

    async def between(message, handle):
        answer = await handle(encode(message))
        if isinstance(message, Batch):
            sent.append(message)
            return encode(Answer()) if len(sent) == 1 else answer
        return answer

    async with serving(wire) as broker, queue_on(BrokerOnly(wire)) as client:
        await client.enqueue("a", b"")
        wire.between = between
        await client.enqueue("a", b"")
        assert [False, True] == [batch.again for batch in sent]
        assert 2 == len((await broker.read_state()).jobs)
