"""Calls of a queue object that go to a broker: what the simulation of brokers has found once."""

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone

import msgspec
import pytest

from jqueue import BrokerQueue, JobNotFoundError, JobStatus, Limits, QueueFullError, UnknownOutcomeError
from jqueue.core import broker_server
from jqueue.core.messages import Answer, Batch, Claim, encode, message_decoder
from jqueue.domain import commits, stats
from jqueue.domain.draft import Draft
from jqueue.domain.errors import BatchUnknownError, DeadlineExceededError, InvalidJobError
from jqueue.domain.header import ClientRecord
from jqueue.domain.job import Claim as JobClaim
from jqueue.domain.job import JobRecord
from jqueue.domain.models import QueueState
from jqueue.domain.operations import dequeue
from jqueue.domain.operations.base import perform
from jqueue.domain.operations.codec import AllOrNothing, ClientBatch, Guarded, encode_result, refusal_of
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Arrive, Enqueue
from jqueue.domain.operations.lookups import AwaitResult
from jqueue.domain.operations.operator import CreateQueue, EmptyCommit
from jqueue.domain.operations.rules import Configure, SetLimits, SetSchedule
from jqueue.ports.observer import Observer
from jqueue.ports.queue import Wait
from jqueue.ports.sharing import LARGEST_MESSAGE
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from tests.shared_memory import BrokerOnly, SharedMemory, Way, serving
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time


def queue_on(storage, **options):
    return BrokerQueue(storage, clock=VirtualClock(), **options)


def batch_of(*operations, **fields):
    """Return a message with operations, as a client sends it."""
    batch = {"do": "batch", "client": "c", "sequence": 1, "token": "t", "seconds": [9] * len(operations)}
    return encode(batch | {"operations": operations} | fields)


class GatedMemory(SharedMemory):
    """A storage whose writes and reads wait at gates."""

    def __init__(self):
        super().__init__(clock=VirtualClock())
        self.gate, self.read_gate = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.read_gate.set()

    async def write(self, content, if_match=None):
        await self.gate.wait()
        return await super().write(content, if_match)

    async def read_if_changed(self, etag):
        await self.read_gate.wait()
        return await super().read_if_changed(etag)

    async def read(self):
        await self.read_gate.wait()
        return await super().read()


async def test_a_claim_of_a_call_that_expired_while_this_process_looked_for_it_is_handed_back():
    storage = GatedMemory()
    async with serving(storage) as broker:
        await broker.enqueue("a", b"")
        async with BrokerQueue(storage, clock=VirtualClock()) as client:
            loop = asyncio.get_running_loop()
            storage.gate.clear()
            storage.read_gate.clear()
            loop.call_later(1, lambda: storage.links[-1].close())
            loop.call_later(2, storage.gate.set)
            loop.call_later(4, storage.read_gate.set)
            with pytest.raises(UnknownOutcomeError):
                await client.dequeue("a", deadline=3)
            await asyncio.sleep(5)
        state = await BrokerQueue(storage, share=False).read_state()
        assert [(JobStatus.QUEUED, 1)] == [(job.status, job.attempt) for job in state.jobs]


async def test_a_call_of_several_operations_that_came_too_late_raises_that():
    async def handle(message):
        late = [encode_result(EmptyCommit(), DeadlineExceededError("late")) for _ in range(message.count(b'"Ack"'))]
        return encode(Answer(results=late))

    storage = GatedMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as client:
        await client.enqueue("a", b"")
        jobs = await client.dequeue("a")
        await storage.take_seat(handle)
        await asyncio.sleep(1)
        with pytest.raises(DeadlineExceededError):
            await client.ack_many(jobs)


async def test_a_batch_that_is_known_returns_the_job_that_held_the_unique_key():
    async with BrokerQueue(GatedMemory(), clock=VirtualClock(), share=False) as queue:
        first = await queue.enqueue("a", b"", unique_key="k", unique_for=60)
        await queue.ack_many(await queue.dequeue("a"))
        new = Enqueue("a", b"", unique_key="k", job_id="second", on_conflict="return")
        for again in (False, True):
            batch = ClientBatch("client", 1, "t", 1, (new, EmptyCommit()), (EPOCH + timedelta(1),) * 2, again)
            [[job, _]] = await queue.apply(batch)
            assert (first.id, JobStatus.COMPLETED) == (job.id, job.status)


@pytest.mark.parametrize("way", [lambda storage: storage, BrokerOnly], ids=["a store", "a broker alone"])
async def test_results_that_are_too_large_for_one_answer_are_refused_before_the_commit_and_all_callers_served(way):
    storage, sizes, key = GatedMemory(), list[int](), "key"
    async with serving(storage, limits=Limits(object_bytes=None)) as broker, queue_on(way(storage)) as client:
        handle = storage.handle
        assert handle is not None
        there = await broker.enqueue("a", bytes(1 << 20), unique_key=key)
        operations = (
            *[Enqueue("a", new_id=f"{number}", unique_key=key) for number in range(40)],
            Enqueue("a", new_id="new"),
        )
        for number, sent in enumerate([operations, [AllOrNothing(operations)]], 1):
            before = await storage.read()
            assert b"InvalidJobError" in await handle(batch_of(*sent, sequence=number))
            assert before == await storage.read()

        async def measured(message):
            answer = await handle(message)
            sizes.append(len(answer))
            return answer

        storage.handle = measured
        jobs = await asyncio.gather(
            *(client.enqueue("a", b"", unique_key=key) for _ in range(40)), client.enqueue("b", b"new")
        )
        assert [there] * 40 == jobs[:-1]
        assert 2 == (await broker.stats()).ready
        assert max(sizes) < LARGEST_MESSAGE


async def test_a_job_travels_once_and_a_claim_through_a_broker_takes_no_more_than_an_answer_holds(monkeypatch):
    monkeypatch.setattr(dequeue, "CALL_BYTES", 1 << 20)
    storage = SharedMemory(clock=VirtualClock())
    limits = Limits(object_bytes=None, payload_bytes=16 << 20, blob_bytes=256 << 20)
    async with serving(storage, limits=limits), queue_on(storage, limits=limits) as client:
        assert storage.handle is not None
        new = Enqueue("b", bytes(1 << 20), new_id="new", headers={"a": "b"})
        assert 1000 > len(await storage.handle(batch_of(new)))
        for _ in range(4):
            job = await client.enqueue("a", bytes(400_000), headers={"a": "b"})
            assert (400_000, {"a": "b"}) == (len(job.payload), job.headers)
        assert [3, 1] == [len(await client.dequeue("a", batch_size=9)) for _ in range(2)]


class LateClaims(SharedMemory):
    """A storage at whose broker each dequeue arrives a second after what was sent meanwhile."""

    async def take_seat(self, handle):
        async def late(message):
            await asyncio.sleep(b'"claim"' in message)
            return await handle(message)

        return await super().take_seat(late)


async def test_an_end_of_a_wait_that_overtakes_its_dequeue_is_sent_again_until_the_broker_has_answered():
    storage, wait = LateClaims(clock=VirtualClock()), Wait(60)
    async with serving(storage), BrokerQueue(storage, clock=VirtualClock()) as client:
        waiting = asyncio.create_task(client.dequeue("a", wait=wait))
        await asyncio.sleep(0.5)
        wait.end()
        assert [] == await waiting
        assert now() < 3
        await asyncio.sleep(60)
        assert 1 < sum(message.count(b'"stop"') for message in storage.links[-1].messages) < 5


async def test_a_broker_that_is_closed_before_the_store_answers_leaves_the_call_to_its_client():
    storage = GatedMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as client:
        async with serving(storage) as broker:
            await broker.enqueue("a", b"")
            storage.read_gate.clear()
            storage.gate.clear()
            stuck = asyncio.create_task(broker.enqueue("a", b""))
            await asyncio.sleep(0.1)
            waiting = asyncio.create_task(client.dequeue("a", wait=60, deadline=60))
            await asyncio.sleep(0.1)
            asyncio.get_running_loop().call_later(100, storage.gate.set)
            asyncio.get_running_loop().call_later(100, storage.read_gate.set)
        assert 1 == len(await waiting)
    with pytest.raises(UnknownOutcomeError):
        await stuck


async def test_a_broker_that_cannot_look_which_queue_it_serves_leaves_the_call_to_its_client():
    storage = GatedMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as broker, BrokerQueue(storage) as client:
        await client.enqueue("a", b"")
        await storage.take_seat(broker.service().handle)
        await asyncio.sleep(1)
        storage.read_gate.clear()
        asyncio.get_running_loop().call_later(12, storage.read_gate.set)
        await client.enqueue("a", b"", deadline=20)


async def test_a_batch_with_a_dequeue_is_refused():
    storage = SharedMemory()
    async with serving(storage) as broker:
        await broker.enqueue("a", b"")
        dequeue = {"type": "Dequeue", "entrypoints": ["a"]}
        for operation in (dequeue, {"type": "Guarded", "operation": dequeue}):
            assert storage.handle is not None
            assert b"InvalidJobError" in await storage.handle(batch_of(operation))
        assert [JobStatus.QUEUED] == [job.status for job in (await broker.read_state()).jobs]


async def test_a_client_with_a_larger_size_limit_is_held_to_that_of_its_broker():
    storage, small, large = SharedMemory(), Limits(blob_bytes=20_000, hot_bytes=None), Limits(blob_bytes=1 << 60)
    async with serving(storage, limits=small) as broker, BrokerQueue(storage, limits=large) as client:
        await broker.enqueue("a", keep_result=60)
        with pytest.raises(QueueFullError, match="18000 bytes"):
            await client.enqueue("a", b"x" * 20_000)
        await client.ack((await client.dequeue("a"))[0], result="x" * 20_000)
        assert 0 < (await client.read_state()).jobs[0].result_dropped
        assert len((await storage.read())[0]) < 20_000


HARMFUL = [
    SetLimits("a", rate=1, per=0),
    SetLimits("a", rate=1),
    SetSchedule("nightly", "never", "a"),
    Configure(history=0),
    Enqueue("a", new_id="wrong", keep_result=timedelta(days=1)),
    Enqueue("a", new_id="wrong", unique_key="k", unique_for=-1.0),
    Enqueue("a", new_id="wrong", run_at=datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
    Ack(JobClaim("b", 1), keep_result=timedelta(days=1)),
    Nack(JobClaim("b", 1), delay=-1.0),
    Arrive(JobRecord("wrong", "a", b"", JobStatus.IN_PROGRESS, 1, EPOCH)),
    Arrive(JobRecord("wrong", "a", b"", JobStatus.QUEUED, 1, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))))),
    AllOrNothing((Enqueue("a", new_id="wrong"), SetLimits("a", rate=1, per=0))),
    Guarded(SetLimits("a", rate=1, per=0), entrypoint="a"),
    ClientBatch("another", 9, "t", 0, (Enqueue("a", new_id="wrong"),)),
]


@pytest.mark.parametrize("operation", HARMFUL, ids=str)
async def test_a_value_that_would_harm_the_queue_is_refused_before_the_commit(operation):
    storage = SharedMemory()
    async with serving(storage) as broker:
        job = await broker.enqueue("b", b"", job_id="b")
        [claimed] = await broker.dequeue("b")
        before = await storage.read()
        assert storage.handle is not None
        assert b"InvalidJobError" in await storage.handle(batch_of(operation))
        assert before == await storage.read()
        await broker.ack(claimed)
        assert job.id == claimed.id


async def test_a_broker_with_as_many_clients_as_the_queue_remembers_says_so_once(caplog, monkeypatch):
    for module in (broker_server, commits, stats):
        monkeypatch.setattr(module, "CLIENTS_KEPT", 8)
    storage = SharedMemory()

    async def enqueue(*clients):
        assert storage.handle is not None
        for client in clients:
            await storage.handle(batch_of(Enqueue("a", new_id=client), client=client))

    async with serving(storage) as broker:
        await enqueue(*(f"c{number}" for number in range(7)))
        assert () == (await broker.stats()).warnings
        assert "Use fewer queue objects" not in caplog.text
        await enqueue("one more", "another", "and another")
        assert 1 == caplog.text.count("Use fewer queue objects")
        [warning] = (await broker.stats()).warnings
        assert "the last batches of as many" in warning
        assert 8 == len((await broker.read_state()).clients)


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


@pytest.fixture
def wire():
    return Wire()


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


@pytest.mark.parametrize(("sequence", "token"), [(2, "t"), (3, "of a copy")])
def test_a_batch_that_comes_after_a_later_one_or_from_a_copy_of_the_client_is_refused_and_does_nothing(sequence, token):
    draft = Draft(QueueState())
    draft.note(draft.header.clients, "client", ClientRecord(3, "t", 1, EPOCH.timestamp()))
    batch = ClientBatch("client", sequence, token, 0, (Enqueue("a", b""),), again=True)
    [refused] = perform([batch], draft, EPOCH)  # type: ignore[misc]
    assert isinstance(refused, BatchUnknownError)
    assert ({}, 3) == (draft.jobs, draft.header.clients["client"].sequence)


def test_a_batch_that_creates_the_queue_is_known_if_another_call_of_the_commit_has_changed_it_before():
    draft = Draft(QueueState())
    batch = ClientBatch("client", 1, "t", 0, (CreateQueue(),))
    perform([Configure(history=60.0), batch], draft, EPOCH)
    assert 1 == draft.header.clients["client"].sequence
    draft.settle()
    assert [[None]] == perform([msgspec.structs.replace(batch, again=True)], draft, EPOCH)


async def test_a_client_goes_on_after_a_backup_was_restored(wire):
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


async def test_an_operation_that_cannot_travel_as_json_fails_no_other_one(wire):
    async with serving(wire), client_of(wire) as client:
        half = "\ud800"
        outcomes = await asyncio.gather(
            client.enqueue("a", b""), client.dequeue(half), client.ack(half), return_exceptions=True
        )
        assert "a" == getattr(outcomes[0], "entrypoint", None)
        assert [] == outcomes[1]
        assert isinstance(outcomes[2], JobNotFoundError)


async def test_a_broker_that_does_not_know_an_operation_leaves_it_to_the_client(wire):

    async def older(message, handle):
        return encode(Answer(error=refusal_of(InvalidJobError("cannot read it"))))

    async with serving(wire), client_of(wire) as client:
        wire.between = older
        job = await client.enqueue("a", b"")
        assert job.id in [each.id for each in (await client.read_state()).jobs]
        [claimed] = await client.dequeue("a")
        assert job.id == claimed.id


@pytest.mark.parametrize("place", ["message", "operation"])
async def test_a_broker_refuses_what_it_does_not_know(wire, place):
    """It would do something else than its client has asked for."""
    async with serving(wire) as broker:
        batch = Batch(client="c", sequence=1, token="t", operations=(Enqueue("a", b"", new_id="new"),), seconds=(5.0,))
        message = msgspec.json.decode(encode(batch))
        (message if place == "message" else message["operations"][0])["newer"] = 1
        with pytest.raises(msgspec.ValidationError, match="newer"):
            message_decoder().decode(encode(message))
        assert [] == list((await broker.read_state()).jobs)


async def test_a_broker_that_is_cut_off_from_the_store_soon_delays_calls_no_more(wire):
    there = Way(wire)
    async with serving(there), client_of(wire) as client:
        there.is_down, began, slow = True, now(), 0
        while now() < began + 600:
            start = now()
            await client.enqueue("a", b"")
            slow += now() > start + 1
            await asyncio.sleep(0.5)
        assert slow <= 16


async def test_a_dequeue_does_not_wait_at_a_broker_that_is_cut_off_from_the_store(wire):
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


async def test_a_dequeue_whose_claims_were_handed_back_is_known_as_not_done(wire):

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


async def test_a_queue_object_that_has_served_is_a_client_again(wire):
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


async def test_a_heartbeat_from_a_client_does_not_wait_behind_the_new_jobs_of_the_broker(wire):
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


async def test_a_very_large_call_is_not_sent_to_a_broker(wire):
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
