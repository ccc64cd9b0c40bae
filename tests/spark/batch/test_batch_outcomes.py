"""Outcomes of jobs as plain values, which pass unchanged from a handler's process to the queue."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.errors import ClaimLostError, DuplicateJobError, InvalidBlobError, InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, JobStatus
from jqueue.domain.operations import Ack, Enqueue, Heartbeat, Nack, Pause, Preparation
from jqueue.spark.batch.all_or_nothing import AllOrNothing
from jqueue.spark.batch.outcomes import (
    Outcome,
    decode_outcomes,
    encode_outcomes,
    enqueue_of_plain,
    outcome_of,
    plain_of_enqueue,
)

PREPARATION = Preparation(Limits(), 300.0, lambda: "an id", ClaimRegistry().find)
CLAIM = Claim("a job", 3)

SAID = [
    (Ack(CLAIM), "done"),
    (Ack(CLAIM, {"sum": [1, 2.5, None, "é"]}), "done"),
    (Nack(CLAIM, delay=timedelta(minutes=2), error=ValueError("no")), "retried"),
    (Nack(CLAIM), "retried"),
    (Nack(CLAIM, error="gone", dead=True), "dead"),
    (Nack(CLAIM, delay=5, charge=False), "snoozed"),
    (Nack(CLAIM, delay=0, charge=False), "snoozed"),
    (Nack(CLAIM, charge=False), "handed_back"),
]


def through_json(outcome):
    return Outcome.of_plain(json.loads(json.dumps(outcome.plain())))


@pytest.mark.parametrize(("operation", "kind"), SAID)
def test_the_outcome_of_a_job_is_the_same_on_the_driver(operation, kind):
    prepared = operation.prepared(PREPARATION)
    outcome = outcome_of([prepared])
    assert kind == outcome.kind
    assert outcome == through_json(outcome)
    assert prepared == through_json(outcome).operation().prepared(PREPARATION)


FULL = Enqueue(
    "next",
    b"\x00\xff",
    priority=-3,
    job_id="a name",
    delay=timedelta(seconds=90),
    expires_at=datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    max_attempts=4,
    headers={"trace": "ü"},
    unique_key="key",
    unique_for=60,
    on_conflict="raise",
    concurrency_key="tenant",
    concurrency_limit=2,
    keep_result=timedelta(hours=1),
)


@pytest.mark.parametrize("enqueue", [Enqueue("next", b""), FULL, Enqueue("n", b"x", run_at=FULL.expires_at)])
def test_an_on_ack_enqueue_is_the_same_on_the_driver(enqueue):
    again = enqueue_of_plain(json.loads(json.dumps(plain_of_enqueue(enqueue))))
    assert enqueue.prepared(PREPARATION).values == again.prepared(PREPARATION).values


def test_on_ack_enqueues_and_their_ack_become_one_operation():
    outcome = through_json(outcome_of([Enqueue("next", b"1"), Enqueue("next", b"2"), Ack(CLAIM)]))
    operation = outcome.operation()
    assert isinstance(operation, AllOrNothing)
    assert [Enqueue("next", b"1"), Enqueue("next", b"2"), Ack(CLAIM)] == list(operation.operations)


def test_a_failed_job_has_no_on_ack_enqueues():
    assert () == outcome_of([Enqueue("next", b"1"), Nack(CLAIM, error="no")]).added


def test_operations_that_are_not_an_outcome_are_refused():
    with pytest.raises(InvalidJobError, match=r"takes only Enqueue\(...\), got Pause"):
        outcome_of([Pause("next"), Ack(CLAIM)])
    with pytest.raises(InvalidJobError, match="the last operation"):
        outcome_of([Ack(CLAIM), Enqueue("next", b"")])


@pytest.mark.parametrize(
    "plain",
    [None, [], ["a", 1], ["a", "b", "done"], ["a", 1, "finished"], [1, 2, "done"], ["a", 1, "done", {"x": 1}], "done"],
)
def test_an_invalid_plain_outcome_is_refused(plain):
    with pytest.raises(ValueError, match="no outcome"):
        Outcome.of_plain(plain)


@pytest.mark.parametrize("kind", ["killed", "overdue"])
def test_an_outcome_of_an_ended_process_has_no_operation_without_its_handler(kind):
    with pytest.raises(ValueError, match="the options of its handler"):
        Outcome("a", 1, kind).operation()


TEXTS = st.text(max_size=20)


@given(
    st.lists(
        st.builds(
            Outcome,
            job_id=TEXTS,
            attempt=st.integers(0, 2**53),
            kind=st.sampled_from(["done", "retried", "dead", "killed"]),
            result=st.none() | TEXTS | st.lists(st.integers()),
            delay=st.none() | st.floats(0, 10**9),
            error=st.none() | TEXTS,
        )
    )
)
def test_staged_outcomes_survive_a_round_trip(outcomes):
    assert outcomes == decode_outcomes(encode_outcomes(outcomes))


def test_incomplete_staged_outcomes_are_refused():
    content = encode_outcomes([Outcome(f"job {number}", 1, "done") for number in range(5)])
    for length in range(len(content)):
        with pytest.raises(InvalidBlobError, match="damaged"):
            decode_outcomes(content[:length])
    with pytest.raises(InvalidBlobError, match="damaged"):
        decode_outcomes(content.replace(b"done", b"gone"))


# Operations that succeed or fail together


async def test_operations_together_succeed_or_fail_as_one_and_others_are_done():
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue("other", b"", unique_key="taken")
    for number in range(3):
        await queue.enqueue("work", b"%d" % number)
    jobs = await queue.dequeue("work", batch_size=3)
    version = (await queue.read_state()).version
    results = await queue.apply_each(
        AllOrNothing((Enqueue("next", b"0"), Ack(jobs[0]))),
        AllOrNothing(
            (Enqueue("next", b"1"), Enqueue("next", b"", unique_key="taken", on_conflict="raise"), Ack(jobs[1]))
        ),
        Ack(jobs[2]),
    )
    state = await queue.read_state()
    assert version + 1 == state.version, "one commit"
    assert isinstance(results[1], DuplicateJobError)
    assert [None] == [results[2]]
    assert [("other", b""), ("work", b"1"), ("next", b"0")] == [(job.entrypoint, job.payload) for job in state.jobs]
    assert JobStatus.IN_PROGRESS is state.jobs[1].status


async def test_operations_together_with_a_lost_claim_are_not_done():
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue("work", b"")
    [lost] = await queue.dequeue("work")
    await queue.requeue_stale(0)
    [result] = await queue.apply_each(AllOrNothing((Enqueue("next", b""), Ack(lost))))
    assert isinstance(result, ClaimLostError)
    assert ["work"] == [job.entrypoint for job in (await queue.read_state()).jobs]


def test_operations_together_name_the_jobs_of_each():
    together = AllOrNothing((Enqueue("next", b"", job_id="b"), Ack(Claim("a", 1)), Heartbeat((Claim("c", 1),))))
    assert ["b", "a", "c"] == list(together.job_ids())


def test_an_invalid_operation_makes_operations_together_invalid():
    async def go():
        queue = DirectQueue(InMemoryStorage())
        return await queue.apply_each(AllOrNothing((Enqueue("", b""),)))

    [result] = asyncio.run(go())
    assert isinstance(result, InvalidJobError)
