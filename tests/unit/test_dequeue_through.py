"""A dequeue with a bound takes only jobs up to a sequence number, and leaves later jobs as they were."""

import asyncio
import random
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim
from jqueue.domain.operations import Ack, Preparation, SetLimits, perform
from jqueue.operations import Dequeue, Enqueue
from jqueue.testing.virtual_time import VirtualClock, run
from tests.property.plain_limits import PlainLimits, Record

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)


def do(draft, operation):
    """Return the result of an operation, which must not be refused."""
    result = perform(operation.prepared(PREPARATION), draft, NOW)
    assert not isinstance(result, JQueueError), result
    return result


def enqueue(draft, *named, **options):
    """Enqueue jobs of entrypoint a with these ids."""
    for job_id in named:
        do(draft, Enqueue("a", b"", job_id=job_id, **options))


def claimed(draft, names=None, count=10, **options):
    """Return the ids of the jobs that a dequeue claims."""
    return [job.id for job in do(draft, Dequeue(names, batch_size=count, **options))]


def entries(draft):
    """Return the number of entries in all heaps together."""
    order = draft.jobs.order
    heaps = [*order._ready.values(), order._scheduled, order._expiring, order.ended.retained]
    heaps += [heap for kinds in order._parked.values() for heap in kinds.values()]
    heaps += [] if order._ready_all is None else [order._ready_all]
    return sum(len(heap.entries) for heap in heaps) + len(order._later)


SOUGHT = [None, ("a",), ("a", "b")]
sought = pytest.mark.parametrize("names", SOUGHT)


@sought
def test_later_jobs_are_passed_over_at_any_priority(names):
    draft = Draft()
    enqueue(draft, "1", "2")
    enqueue(draft, "urgent", "urgent too", priority=-1)
    assert ["1", "2"] == claimed(draft, names, through=2)
    assert ["urgent", "urgent too"] == claimed(draft, names)


@sought
def test_jobs_passed_over_are_served_in_order_afterwards(names):
    draft = Draft()
    for number in range(20):
        enqueue(draft, f"{number}", priority=number % 3)
    assert ["0", "3", "6", "9", "1", "4", "7", "2"] == claimed(draft, names, count=8, through=10)
    assert ["5", "8"] == claimed(draft, names, count=8, through=10)
    assert [] == claimed(draft, names, through=10)
    assert ["12", "15", "18", "10", "13", "16", "19", "11", "14", "17"] == claimed(draft, names)


@sought
def test_a_job_parked_behind_a_later_one_is_found(names):
    draft = Draft()
    enqueue(draft, "held", concurrency_key="k")
    assert ["held"] == claimed(draft, names)
    enqueue(draft, "early", concurrency_key="k")
    enqueue(draft, "plain", priority=1)
    enqueue(draft, "late", priority=-1, concurrency_key="k")
    through = draft.jobs["plain"].sequence
    assert ["plain"] == claimed(draft, names, count=1)  # the others come up, and are parked
    do(draft, Ack(Claim("held", 1)))  # the late one comes back, as it is to be served first
    assert ["early"] == claimed(draft, names, through=through)
    do(draft, Ack(Claim("early", 1)))
    assert ["late"] == claimed(draft, names)


def test_a_bound_before_all_jobs_claims_nothing():
    draft = Draft()
    enqueue(draft, "1")
    assert [] == claimed(draft, through=0)
    assert ["1"] == claimed(draft, through=1)


def test_a_bounded_dequeue_that_is_undone_leaves_the_order_as_it_was():
    draft = Draft()
    enqueue(draft, *"abcdef")
    draft.settle()
    assert [*"abc"] == claimed(draft, through=3)
    draft.rollback()
    assert [*"ab"] == claimed(draft, count=2)
    draft.rollback()
    assert [*"abcdef"] == claimed(draft)


def test_ceilings_are_kept_for_a_bounded_dequeue():
    draft = Draft()
    do(draft, SetLimits("a", running=2))
    enqueue(draft, *"abcd")
    assert [*"ab"] == claimed(draft, through=3)
    assert [] == claimed(draft, through=3)
    do(draft, Ack(Claim("a", 1)))
    assert ["c"] == claimed(draft, through=3)


@pytest.mark.wide
@sought
def test_heap_entries_do_not_accumulate(names):
    draft = Draft()
    dice = random.Random(7)
    for number in range(300):
        key = dice.choice([None, "k", "l"])
        enqueue(draft, f"{number}", priority=dice.randrange(3), concurrency_key=key)
    claimed(draft, names, count=1)
    before, most = entries(draft), 0
    for _ in range(1000):
        for job_id in claimed(draft, names, count=3, through=dice.randrange(20, 200)):
            do(draft, Ack(Claim(job_id, 1)))
            enqueue(draft, job_id + "'", priority=dice.randrange(3), concurrency_key=dice.choice([None, "k", "l"]))
        draft.settle()
        most = max(most, entries(draft))
    assert most < 4 * before


jobs = st.lists(
    st.tuples(
        st.sampled_from("aab"),
        st.integers(-1, 1),
        st.sampled_from(["k", "k", "l", None]),
        st.sampled_from([1, 1, 1, 2]),
    ),
    min_size=2,
    max_size=12,
)
steps = st.lists(
    st.tuples(st.sampled_from(["claim", "claim", "ack", "add"]), st.integers(0, 9), st.sampled_from(SOUGHT)),
    min_size=8,
    max_size=30,
)


@pytest.mark.wide
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(jobs, steps)
def test_a_bounded_dequeue_claims_the_same_jobs_as_the_plain_model(jobs, steps):
    draft, plain, count = Draft(), PlainLimits(), 0

    def add(name, priority, key, limit):
        nonlocal count
        count += 1
        options = {"concurrency_key": key, "concurrency_limit": limit if key else None}
        do(draft, Enqueue(name, b"", priority, job_id=f"{count}", **options))
        plain.jobs.append(Record(f"{count}", name, priority, key, limit, 0, count, None))

    for job in jobs[: len(jobs) // 2]:
        add(*job)
    for what, at, names in steps:
        running = [job for job in plain.jobs if job.status == "running"]
        if what == "add":
            add(*jobs[at % len(jobs)])
        elif what == "ack" and running:
            job = running[at % len(running)]
            do(draft, Ack(Claim(job.id, job.attempt)))
            plain.jobs.remove(job)
        elif what == "claim":
            among = {job.id for job in plain.jobs if job.place <= at}
            found = do(draft, Dequeue(names, batch_size=2, through=at))
            assert plain.claim(names, 2, among) == [(job.id, job.attempt) for job in found]
    while (found := plain.claim(None, 3)) or any(job.status == "running" for job in plain.jobs):
        assert found == [(job.id, job.attempt) for job in do(draft, Dequeue(None, batch_size=3))]
        for job in [job for job in plain.jobs if job.status == "running"]:
            do(draft, Ack(Claim(job.id, job.attempt)))
            plain.jobs.remove(job)
    assert not plain.jobs
    assert not draft.jobs.order._later


@pytest.mark.parametrize("wrong", [-1, "3", 1.5, True, 2**63])
def test_a_bound_must_be_a_valid_sequence_number(wrong):
    with pytest.raises(InvalidJobError, match="through"):
        Dequeue(through=wrong).prepared(PREPARATION)


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_a_bounded_dequeue_does_not_bound_others_in_its_commit(kind):
    async def try_it():
        async with kind(InMemoryStorage(), clock=VirtualClock()) as queue:
            for job_id in "abcd":
                await queue.enqueue("x", b"", job_id=job_id)
            [second] = [job for job in (await queue.read_state()).jobs if job.id == "b"]
            bounded, more = await queue.apply(
                Dequeue("x", batch_size=9, through=second.sequence), Dequeue("x", batch_size=9)
            )
            assert ["a", "b"] == [job.id for job in bounded]
            assert ["c", "d"] == [job.id for job in more]

    run(try_it())


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_an_empty_bounded_dequeue_does_not_answer_the_others(kind):
    """Dequeues with equal arguments share an empty answer; the bound is one of the arguments."""

    async def try_it():
        async with kind(InMemoryStorage(), clock=VirtualClock()) as queue:
            await queue.enqueue("x", b"", job_id="a")
            await queue.enqueue("y", b"", job_id="b")
            calls = [queue.apply(Dequeue("x", batch_size=9, through=bound)) for bound in (0, 1, 1)]
            [[nothing], [first], [second]] = await asyncio.gather(*calls)
            assert ([], ["a"], []) == (nothing, [job.id for job in first], second)
            [y] = await queue.dequeue("y")
            assert "b" == y.id

    run(try_it())
