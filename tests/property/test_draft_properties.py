"""A draft behaves as a value: a rollback leaves no trace, in any order of operations and faults."""

from datetime import UTC, datetime, timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.operations import (
    Ack,
    Amend,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    HandBack,
    Heartbeat,
    Nack,
    Pause,
    Preparation,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    Unschedule,
    perform,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
LATER = START + timedelta(seconds=1)
ids = st.sampled_from(["a", "b", "c", "d"])
entrypoints = st.sampled_from(["x", "y"])
claims = st.builds(Claim, ids, st.integers(1, 4))
delays = st.none() | st.integers(0, 20)
times = st.integers(0, 40).map(lambda seconds: START + timedelta(seconds=seconds))
amendments = {"priority": st.integers(-2, 2), "run_at": times, "unique_key": st.sampled_from(["k", "l"])}
free_operations = st.one_of(
    st.builds(
        Enqueue,
        entrypoints,
        st.just(b""),
        st.integers(-2, 2),
        job_id=ids,
        delay=delays,
        expires_at=st.none() | times,
        max_attempts=st.none() | st.integers(1, 2),
        unique_key=st.none() | st.sampled_from(["k", "l"]),
        on_conflict=st.sampled_from(["return", "raise", "replace"]),
    ),
    st.builds(Dequeue, st.none() | entrypoints | st.just(["x", "y"]), batch_size=st.integers(0, 3)),
    st.builds(Ack, claims),
    st.builds(Nack, claims, delays, st.none() | st.just("error")),
    st.builds(Nack, claims, charge=st.just(False), delay=delays),
    st.builds(lambda many: Heartbeat(tuple(many)), st.lists(claims, max_size=3)),
    st.builds(lambda many: HandBack(tuple(many)), st.lists(claims, max_size=3)),
    st.builds(Cancel, ids),
    st.builds(Redrive, st.none() | ids),
    st.builds(Purge, st.sampled_from([JobStatus.DEAD, JobStatus.QUEUED])),
    st.builds(RequeueStale, st.integers(0, 10)),
    st.builds(Reschedule, ids, delay=st.integers(0, 20)),
    st.builds(Reprioritise, ids, st.integers(-2, 2)),
    st.builds(Amend, ids, st.fixed_dictionaries({}, optional=amendments)),
)
"""Operations that set no limits, so that no job is held back."""

keyed = st.builds(
    Enqueue,
    entrypoints,
    st.just(b""),
    st.integers(-2, 2),
    job_id=ids,
    delay=delays,
    concurrency_key=st.just("c"),
    concurrency_limit=st.none() | st.integers(1, 2),
    keep_result=delays,
)
limits = st.builds(SetLimits, entrypoints, running=st.none() | st.integers(1, 2)) | st.builds(
    SetLimits, entrypoints, rate=st.integers(1, 2), per=st.integers(1, 10)
)
operations = st.one_of(
    free_operations,
    keyed,
    keyed,
    limits,
    st.builds(Ack, claims, st.just([1])),
    st.builds(Cancel, ids, st.just(True)),
    st.builds(Amend, ids, st.fixed_dictionaries({}, optional={**amendments, "concurrency_key": st.just("c")})),
    st.builds(Pause, entrypoints),
    st.builds(Resume, entrypoints),
    st.builds(Configure, aging=st.none() | st.integers(1, 20), dead_retention=delays),
    st.builds(SetSchedule, st.just("m"), st.just("*/10 * * * * *"), entrypoints),
    st.builds(Unschedule, st.just("m")),
)
free_steps = st.lists(st.tuples(free_operations, times), max_size=15)
steps = st.lists(st.tuples(operations, times), max_size=15)
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)


def prepared(operation):
    return operation.prepared(PREPARATION)


def served(draft, now):
    """Return the jobs that the indexes hand out, in order, to three kinds of consumers."""
    orders = []
    for sought in (None, ("x",), ("y", "x")):
        savepoint = draft.savepoint()
        orders.append([job.id for job in perform(prepared(Dequeue(sought, batch_size=100)), draft, now)])
        draft.rollback(savepoint)
    return orders


def shape(result):
    """Return a result without the places of its jobs and the identity of its errors."""
    if isinstance(result, list):
        return [shape(each) for each in result]
    if isinstance(result, Job):
        return result.evolve(sequence=0)
    return str(result) if isinstance(result, JQueueError) else result


def placed(state):
    """Return the jobs by id, with places counted from 1: a draft does not reuse the places of removed jobs."""
    ranks = {sequence: rank for rank, sequence in enumerate(sorted(job.sequence for job in state.jobs), 1)}
    return {job.id: job.evolve(sequence=ranks[job.sequence]) for job in state.jobs}


def same(one, other):
    assert placed(one) == placed(other)
    assert one.model_copy(update={"jobs": ()}) == other.model_copy(update={"jobs": ()})


@given(steps, steps, times)
def test_a_rollback_leaves_no_trace(before, undone, now):
    draft = Draft()
    for operation, at in before:
        perform(prepared(operation), draft, at)
    expected, orders = draft.freeze(), served(draft, now)
    savepoint = draft.savepoint()
    for operation, at in undone:
        perform(prepared(operation), draft, at)
    draft.rollback(savepoint)
    same(expected, draft.freeze())
    assert orders == served(draft, now)


@given(steps, times)
@example([(Enqueue("x", job_id="a", delay=0), LATER), (Pause("x"), START), (Dequeue(), LATER)], START)
def test_the_indexes_of_a_changed_draft_equal_those_of_a_new_one(before, now):
    draft = Draft()
    for operation, at in before:
        perform(prepared(operation), draft, at)
    anew = Draft(draft.freeze())
    assert served(anew, now) == served(draft, now)
    assert sorted(anew.jobs.keys_held) == sorted(draft.jobs.keys_held)
    assert sorted(anew.jobs.claimed) == sorted(draft.jobs.claimed)
    assert anew.jobs.order.running == draft.jobs.order.running
    assert anew.jobs.order.running_keys == draft.jobs.order.running_keys
    latest = max([now, *(at for _, at in before)])  # a draft does not forget what was due at a later time
    assert served(anew, latest) == served(draft, latest)
    assert anew.next_due() == draft.next_due()


@given(free_steps, times)
def test_jobs_are_served_by_priority_and_then_by_place_on_any_clock(before, now):
    draft = Draft()
    for operation, at in before:
        perform(prepared(operation), draft, at)
    state = draft.freeze()
    ready = [
        job.id
        for job in state.queued_jobs()
        if (job.run_at is None or job.run_at <= now) and (job.expires_at is None or job.expires_at > now)
    ]
    assert ready == served(draft, now)[0]


@given(steps)
def test_every_operation_is_a_pure_function_of_values(before):
    """`Operation.apply` on states gives what a draft gives, and leaves the state that it was given alone."""
    draft, state = Draft(), QueueState()
    for operation, at in before:
        kept = state.model_copy()
        result = perform(prepared(operation), draft, at)
        try:
            state_after, pure = prepared(operation).apply(state, at)
        except JQueueError as error:
            state_after, pure = state, error
        assert shape(pure) == shape(result)
        assert kept == state
        state = state_after
    same(state, draft.freeze())


@given(steps)
def test_attempts_only_grow_and_no_id_is_ever_claimed_twice_with_one_attempt(before):
    draft = Draft()
    seen = set()
    for operation, at in before:
        result = perform(prepared(operation), draft, at)
        if isinstance(operation, Dequeue) and not isinstance(result, JQueueError):
            for job in result:
                assert job.claim not in seen
                seen.add(job.claim)
