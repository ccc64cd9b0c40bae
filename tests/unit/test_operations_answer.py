"""The class of an operation alone defines the capabilities that it needs and the meaning of its result."""

import asyncio
import pkgutil
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib import import_module
from inspect import getmembers, isclass, signature
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.core.direct import DirectQueue
from jqueue.core.sets.queue_set import QueueSet
from jqueue.domain import operations
from jqueue.domain.errors import ClaimLostError, InvalidJobError
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Dequeue, JobReference, Operation, Peek
from jqueue.domain.operations.jobs import UNPREPARED
from jqueue.formats.port import Step
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Capabilities
from tests.unit.test_store_queue import Shelf, once

EVERY = sorted(
    {
        kind
        for module in pkgutil.iter_modules(operations.__path__, f"{operations.__name__}.")
        for _, kind in getmembers(import_module(module.name), isclass)
        if issubclass(kind, Operation)
    },
    key=lambda kind: kind.__name__,
)
CAPABILITIES = {field.name for field in fields(Capabilities)}


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_operations_need_only_existing_capabilities(kind):
    assert CAPABILITIES >= set(kind.always_needs)


class Sing(Operation):
    """An operation that no queue knows."""

    always_needs = ("schedules",)

    def change(self, draft, now):
        """Change nothing."""
        return "la"


async def test_an_operation_unknown_to_a_queue_is_refused_by_its_needs():
    shelf = Shelf()
    shelf.capabilities = Capabilities(schedules=False)
    [refused] = await StoreQueue(shelf).apply_each(Sing())
    assert "no schedules" in str(refused)
    assert isinstance(refused, InvalidJobError)
    assert ["la"] == await StoreQueue(Shelf()).apply_each(Sing())


# Search keys

DIFFERENT: dict[str, Any] = {
    "entrypoints": ("work", ("work", "play")),
    "batch_size": (1, 2),
    "claim_timeout": (30, 60),
    "holder": ("worker-1", "worker-2"),
    "through": (1, 2),
    "enqueue_bytes": (1_000, 2_000),
}
"""Two values for each field of a dequeue."""

OF_THE_QUEUE = {"enqueue_bytes"}
"""Fields that the queue sets, not the caller."""

SEARCHED = [field.name for field in fields(Dequeue) if field.name != "batch_size"]


@pytest.mark.parametrize("name", SEARCHED)
def test_a_search_key_tells_apart_dequeues_that_differ_in_any_field(name):
    """Otherwise a dequeue would get the empty answer of another one with another filter."""
    given = [Dequeue(**{name: value}) for value in DIFFERENT[name]]
    one, other = given if name in OF_THE_QUEUE else [dequeue.prepared(UNPREPARED) for dequeue in given]
    assert one.search_key() != other.search_key()
    assert Peek(one).search_key() != Peek(other).search_key()
    assert one.search_key() == replace(one, batch_size=9).search_key() == Peek(one).search_key()


def test_search_keys_ignore_the_batch_size_and_a_dequeue_of_none_has_no_key():
    assert Dequeue("work").search_key() == Dequeue("work", batch_size=9).search_key()
    assert Dequeue("work", batch_size=0).search_key() is None


OF_THE_CALL = {"self", "wait", "deadline"}
"""Parameters of the verb that are no fields of the dequeue."""


def dequeues(queue, entrypoint, **options):
    """Return the prepared operations of a dequeue."""
    return queue._dequeues(entrypoint, options)


@pytest.mark.parametrize("name", sorted(signature(DirectQueue.dequeue).parameters.keys() - OF_THE_CALL))
def test_a_cached_dequeue_is_reused_only_by_calls_with_equal_arguments(name):
    """Otherwise a call with another filter would get the jobs that an earlier call asked for."""
    queue = DirectQueue(InMemoryStorage())
    field = "entrypoints" if name == "entrypoint" else name
    asked = [{"entrypoint": "work"} | {name: value} for value in DIFFERENT[field]]
    [one], [other] = [dequeues(queue, **each) for each in asked]
    assert getattr(one, field) != getattr(other, field)
    assert one is dequeues(queue, **asked[0])[0]


@pytest.mark.parametrize("wrong", [{"batch_size": True}, {"batch_size": []}, {"claim_timeout": []}])
async def test_a_wrong_dequeue_is_refused_although_an_equal_one_is_cached(wrong):
    queue = DirectQueue(InMemoryStorage())
    await queue.dequeue("work")
    with pytest.raises(InvalidJobError):
        await queue.dequeue("work", **wrong)


@dataclass(frozen=True)
class Count(Operation):
    """An operation that notes each time it is applied, and finds nothing."""

    key: str
    applied: list[str]

    claims_jobs = True

    def search_key(self):
        """Return the given key."""
        return self.key or None

    def change(self, draft, now):
        """Change nothing."""
        self.applied.append(self.key)
        return []


async def test_a_commit_searches_once_for_each_search_key():
    applied: list[str] = []
    async with BrokerQueue(InMemoryStorage()) as queue:
        await asyncio.gather(*(queue.apply(Count(key, applied)) for key in ("a", "b", "a", "", "b", "")))
    rounds = applied.count("a")
    assert rounds
    assert (rounds, 2 * rounds) == (applied.count("b"), applied.count(""))


# Results

NAME_NO_OPERATION = [
    "jqueue.core.calls.claim_registry",
    "jqueue.core.engine.requests",
    "jqueue.core.sets.set_claims",
    "jqueue.core.sets.members",
    "jqueue.formats.engine",
    "jqueue.formats.freshness",
    "jqueue.formats.outcomes",
    "jqueue.formats.queue",
]
"""Modules that carry operations without naming any."""


@pytest.mark.parametrize("name", NAME_NO_OPERATION)
def test_a_module_that_carries_operations_names_none_of_them(name):
    known = [value for value in vars(import_module(name)).values() if isclass(value) and issubclass(value, Operation)]
    assert known in ([], [Operation])


WORK = Dequeue("work")


@dataclass(frozen=True)
class Grab(Operation):
    """Claim one job as `Dequeue` does: another operation that no queue knows."""

    claims_jobs = True

    dequeue: Dequeue = WORK

    def prepared(self, preparation):
        """Prepare the dequeue."""
        return Grab(self.dequeue.prepared(preparation))

    def change(self, draft, now):
        """Claim a job."""
        return self.dequeue.change(draft, now)

    def claims(self, result):
        """Return one claim for each job."""
        return self.dequeue.claims(result)

    def tell(self, claims, result):
        """Note the claims as handed out."""
        claims.remember(result)


@dataclass(frozen=True)
class Drop(Operation):
    """Acknowledge several jobs, and lose those whose claim is lost."""

    ends_claims = True
    needs_space = False

    jobs: tuple[JobReference, ...]

    def prepared(self, preparation):
        """Replace each reference by its claim."""
        return Drop(tuple(preparation.find_claim(job) for job in self.jobs))

    def change(self, draft, now):
        """Ack each job."""
        return [Ack(job).change(draft, now) for job in self.jobs]

    def references(self):
        """Return the claims that it ends."""
        return self.jobs

    def tell(self, claims, result):
        """Note the claims as ended."""
        for claim in self.jobs:
            claims.end(claim)


@pytest.mark.parametrize("make", [lambda: DirectQueue(InMemoryStorage()), lambda: StoreQueue(Shelf())])
async def test_claims_that_a_new_operation_hands_out_and_ends_are_known_to_the_queue(make):
    queue = make()
    await queue.enqueue("work", b"1")
    [[job]] = await queue.apply_each(Grab())
    assert queue.held_claim(job.id) is not None
    await queue.apply_each(Drop((job.id,)))
    assert queue.held_claim(job.id) is None
    with pytest.raises(ClaimLostError) as lost:
        await queue.heartbeat(job)
    assert lost.value.ended_here


async def test_a_claim_that_a_new_operation_has_ended_for_a_caller_that_left_is_held_again():
    registry = ClaimRegistry()
    job = Job(id="1", entrypoint="work", payload=b"", created_at=datetime.now(UTC), attempt=1)
    registry.note([Grab()], [[job]])
    ended = [Drop((job.claim,))]
    registry.note(ended, [[None]])
    assert registry.held(job.claim) is None
    registry.reopen(ended)
    assert registry.held(job.claim) is not None


async def test_a_set_of_queues_finds_the_queue_of_the_jobs_that_a_new_operation_names():
    one, other = DirectQueue(InMemoryStorage()), DirectQueue(InMemoryStorage())
    await other.enqueue("work", b"1")
    async with QueueSet(one, other) as queues:
        [job] = await queues.dequeue("work")
        await queues.apply(Drop((job,)))
        assert queues.held_claim(job.id) is None
    assert () == (await other.read_state()).jobs


async def test_a_new_operation_is_retried_after_another_program_took_its_job():
    """A job in the mirror may be gone from the store: a claim that another program won is not handed out."""
    shelf = Shelf()
    queue = StoreQueue(shelf)
    for payload in (b"1", b"2"):
        await queue.enqueue("work", payload)
    shelf.before = once(lambda change: change.step is Step.CLAIM and shelf.put(change.job_id, None))
    [[job]] = await queue.apply_each(Grab())
    assert b"2" == job.payload
