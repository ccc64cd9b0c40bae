"""The auditor finds each kind of broken promise, and none if all were kept."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue import Job, JobStatus, QueueState
from tests.kill.journal import JobAt, Kind, Line, Verb, decode, encode, payload_of
from tests.kill.ledger import Ledger, ViolationError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _job(attempt=0, claimed=False, job_id="a", **changes):
    job = Job(id=job_id, entrypoint="t", payload=payload_of(job_id), attempt=attempt, created_at=NOW)
    if claimed:
        job = job.evolve(status=JobStatus.IN_PROGRESS, heartbeat_at=NOW)
    return job.evolve(**changes)


def _state(*jobs, version=1, **finished):
    return QueueState(jobs=jobs, version=version, queue="q", finished=finished)


def _says(ledger, verb, *jobs, worker="w", kind=Kind.DONE, call=1):
    """Let the ledger hear a call and its answer; `kind` is INTENT for a call without an answer."""
    names = tuple(JobAt(*job) for job in jobs)
    ledger.hear(worker, Line(call, Kind.INTENT, verb, () if verb is Verb.DEQUEUE else names))
    if kind is not Kind.INTENT:
        ledger.hear(worker, Line(call, kind, verb, names, "" if kind is Kind.DONE else "SomeError"))


@pytest.fixture
def ledger():
    """Return a ledger in which one job was enqueued and claimed by its first attempt."""
    ledger = Ledger()
    _says(ledger, Verb.ENQUEUE, ("a",))
    ledger.check(_state(_job()))
    _says(ledger, Verb.DEQUEUE, ("a", 1))
    return ledger


def test_a_line_reads_back_as_it_was_written():
    line = Line(3, Kind.DONE, Verb.APPLY, (JobAt("a", 2), JobAt("b")), "note")
    assert line == decode(encode(line))


def test_calls_that_took_effect_pass_the_audit(ledger):
    ledger.check(_state(_job(1, claimed=True), version=2))
    _says(ledger, Verb.HEARTBEAT, ("a", 1))
    ledger.check(_state(_job(1, claimed=True, heartbeat_at=NOW + timedelta(seconds=1)), version=3))
    _says(ledger, Verb.APPLY, ("a", 1), ("b",))
    ledger.check(_state(_job(job_id="b"), version=4, a=1))
    _says(ledger, Verb.DEQUEUE, ("b", 1))
    _says(ledger, Verb.ACK, ("b", 1))
    ledger.check_drained(_state(version=6, a=1, b=1))
    assert (2, 5) == (ledger.jobs, ledger.states)


def test_a_call_without_an_answer_may_be_done_or_not_done():
    ledger = Ledger()
    _says(ledger, Verb.ENQUEUE, ("a",), kind=Kind.INTENT)
    ledger.check(_state())
    ledger.check(_state(_job(), version=2))
    assert ["a"] == ledger.forget_worker("w")


def test_a_job_missing_without_an_ack_is_lost(ledger):
    with pytest.raises(ViolationError, match="1 jobs are gone and nobody acked them: a") as caught:
        ledger.check(_state(version=2))
    assert 1 == caught.value.lost


def test_a_job_that_was_only_seen_in_the_file_can_be_lost_too():
    ledger = Ledger()
    _says(ledger, Verb.ENQUEUE, ("a",), kind=Kind.INTENT)
    ledger.check(_state(_job()))
    with pytest.raises(ViolationError, match="nobody acked them"):
        ledger.check(_state(version=2))


def test_an_acked_job_must_not_stay_in_the_file(ledger):
    _says(ledger, Verb.ACK, ("a", 1))
    with pytest.raises(ViolationError, match="still there"):
        ledger.check(_state(_job(1, claimed=True), version=2))


def test_an_acked_job_must_not_come_back(ledger):
    _says(ledger, Verb.ACK, ("a", 1), kind=Kind.INTENT)
    ledger.check(_state(version=2, a=1))
    with pytest.raises(ViolationError, match="came back"):
        ledger.check(_state(_job(1), version=3))


def test_an_acked_job_must_not_be_claimed_again(ledger):
    _says(ledger, Verb.ACK, ("a", 1))
    ledger.check(_state(version=2, a=1))
    with pytest.raises(ViolationError, match="was claimed by attempt 2 after attempt 1 acked it"):
        _says(ledger, Verb.DEQUEUE, ("a", 2))


def test_only_the_newest_claim_may_ack(ledger):
    _says(ledger, Verb.DEQUEUE, ("a", 2), worker="other")
    _says(ledger, Verb.ACK, ("a", 1))
    with pytest.raises(ViolationError, match="after attempt 2 claimed it"):
        ledger.check(_state(version=2, a=1))


def test_a_refused_ack_must_have_no_effect(ledger):
    _says(ledger, Verb.ACK, ("a", 1), kind=Kind.REFUSED)
    with pytest.raises(ViolationError, match="never tried, or was refused"):
        ledger.check(_state(version=2, a=1))


def test_an_attempt_must_not_shrink(ledger):
    with pytest.raises(ViolationError, match="shrank from 1 to 0"):
        ledger.check(_state(_job(), version=2))


def test_a_claim_has_one_holder(ledger):
    with pytest.raises(ViolationError, match="was given to w and to other"):
        _says(ledger, Verb.DEQUEUE, ("a", 1), worker="other")


def test_a_nacked_claim_is_over(ledger):
    _says(ledger, Verb.NACK, ("a", 1))
    with pytest.raises(ViolationError, match="whose nack was acknowledged"):
        ledger.check(_state(_job(1, claimed=True), version=2))


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (_state(version=2, a=1), "b, enqueued in the same apply, is not there"),
        (_state(_job(1, claimed=True), _job(job_id="b"), version=2), "the ack in the same apply had no effect"),
    ],
)
def test_half_an_apply_is_found(ledger, state, found):
    _says(ledger, Verb.APPLY, ("a", 1), ("b",), kind=Kind.INTENT)
    with pytest.raises(ViolationError, match=found):
        ledger.check(state)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (_state(_job(1), _job(job_id="b"), version=2), "nobody enqueued it"),
        (_state(_job(1, payload=b"another"), version=2), "another payload"),
        (_state(_job(1), version=0), "went back from version 1 to 0"),
        (_state(_job(1), version=2).model_copy(update={"queue": "other"}), "another queue"),
    ],
)
def test_an_impossible_state_is_found(ledger, state, found):
    with pytest.raises(ViolationError, match=found):
        ledger.check(state)


def test_jobs_left_in_a_drained_queue_are_found(ledger):
    with pytest.raises(ViolationError, match="1 jobs are left"):
        ledger.check_drained(_state(_job(1), version=2))


def test_no_error_shows_a_payload(ledger):
    with pytest.raises(ViolationError) as caught:
        ledger.check(_state(_job(1, payload=b"a secret"), version=2))
    assert "secret" not in str(caught.value)


def _end_range(ledger, *done, kind=Kind.DONE):
    """Let the ledger hear the end of a range with two jobs, the claim of both, and the jobs that are done."""
    _says(ledger, Verb.ENQUEUE, ("b",))
    _says(ledger, Verb.CLAIM_RANGE, ("a", 1), ("b", 1))
    ledger.check(_state(_job(1, claimed=True), _job(1, claimed=True, job_id="b"), version=2))
    _says(ledger, Verb.END_RANGE, ("range", 1), *((job_id, 1) for job_id in done), kind=kind)


@pytest.mark.parametrize("kind", [Kind.DONE, Kind.INTENT, Kind.UNKNOWN])
def test_the_end_of_a_range_finishes_the_jobs_that_are_done(ledger, kind):
    _end_range(ledger, "a", kind=kind)
    ledger.check(_state(_job(1, job_id="b"), version=3, range=1))
    with pytest.raises(ViolationError, match="a came back after attempt 1 acked it"):
        ledger.check(_state(_job(1), version=4, range=1))


def test_an_end_of_a_range_that_loses_or_keeps_a_job_is_found(ledger):
    _end_range(ledger, "a")
    with pytest.raises(ViolationError, match="1 jobs are gone and nobody acked them: b"):
        ledger.check(_state(version=3, range=1))
    with pytest.raises(ViolationError, match="a is still there, though"):
        ledger.check(_state(_job(1), _job(1, job_id="b"), version=3, range=1))


def test_jobs_of_a_range_that_leave_without_its_end_are_lost(ledger):
    _end_range(ledger, "a", "b", kind=Kind.INTENT)
    with pytest.raises(ViolationError, match="2 jobs are gone"):
        ledger.check(_state(version=3))


def test_a_cancelled_job_leaves_and_does_not_come_back(ledger):
    _says(ledger, Verb.CANCEL, ("a",))
    with pytest.raises(ViolationError, match="a is still there, though its cancellation was acknowledged"):
        ledger.check(_state(_job(1), version=2))
    ledger.check(_state(version=2))
    with pytest.raises(ViolationError, match="a came back"):
        ledger.check(_state(_job(1), version=3))


def test_a_cancellation_that_was_refused_removes_no_job(ledger):
    _says(ledger, Verb.CANCEL, ("a",), kind=Kind.REFUSED)
    with pytest.raises(ViolationError, match="1 jobs are gone"):
        ledger.check(_state(version=2))


def test_a_job_whose_enqueue_and_cancellation_come_after_the_state_is_not_taken_for_cancelled(ledger):
    _says(ledger, Verb.ENQUEUE, ("b",), kind=Kind.INTENT)
    _says(ledger, Verb.CANCEL, ("b",), kind=Kind.INTENT)
    ledger.check(_state(_job(1, claimed=True), version=2))
    ledger.check(_state(_job(1, claimed=True), _job(job_id="b"), version=3))
    ledger.check(_state(_job(1, claimed=True), version=4))
    with pytest.raises(ViolationError, match="b came back"):
        ledger.check(_state(_job(1, claimed=True), _job(job_id="b"), version=5))
