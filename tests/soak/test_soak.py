"""A small run of the soak (`python -m tests.soak`), and broken promises that its auditor finds."""

import asyncio
import itertools

import pytest

from jqueue import Job, JobStatus, QueueState
from tests.kill.journal import JobAt
from tests.object_stores import store_of
from tests.soak.journal import Kind, Line, Verb, decode, encode
from tests.soak.ledger import SLACK, Ledger
from tests.soak.race import race
from tests.soak.run import Settings, Soak

pytestmark = pytest.mark.wide

SECONDS = 2.0


@pytest.mark.parametrize("server", ["gcs_server"])
async def test_processes_with_lost_answers_get_true_outcomes(request, server, tmp_path):
    settings = Settings(server, SECONDS, processes=2, rate=0.1, seed=7, session=1.0)
    soak = Soak(settings, store_of(request, server), tmp_path)
    async with asyncio.timeout(100):
        await soak.run()
    assert soak.ledger.violations == []
    assert soak.ledger.version > 0
    assert soak.requests > 0
    assert soak.ledger.kinds[Kind.DONE, Verb.LEAVE] >= 2


@pytest.mark.parametrize("server", ["seaweedfs"])
async def test_all_writers_of_a_race_finish(request, server):
    async with asyncio.timeout(100):
        finish = await race(store_of(request, server), writers=4, commits=4)
    assert finish.is_fair
    assert len(finish.seconds) == 4


class LedgerLines:
    """A ledger with short calls that add lines to it."""

    def __init__(self):
        self.ledger = Ledger()
        self._calls = itertools.count(1)

    def call(self, verb, *jobs, kind=Kind.DONE, worker="w1", **more):
        """Add the lines of a call and its answer."""
        number, names = next(self._calls), tuple(JobAt(*job) for job in jobs)
        if kind is not Kind.INTENT:
            before = () if verb is Verb.DEQUEUE else names
            self.ledger.hear(worker, Line(number, Kind.INTENT, verb, before))
        self.ledger.hear(worker, Line(number, kind, verb, names, **more))

    def found(self, *jobs, finished=None, version=9):
        """Return the violations that the auditor finds, given the state at the end."""
        state = QueueState(jobs=jobs, queue="q", version=version, finished=finished or {})
        return "\n".join(violation.what for violation in self.ledger.audit(state))


@pytest.fixture
def lines():
    """Return a ledger with one job that was enqueued and claimed once."""
    lines = LedgerLines()
    lines.call(Verb.ENQUEUE, ("a", 0))
    lines.call(Verb.DEQUEUE, ("a", 1))
    return lines


def job(status=JobStatus.QUEUED, job_id="a"):
    return Job(id=job_id, entrypoint="one", payload=b"", status=status, attempt=1)


def test_calls_that_keep_all_promises_pass_the_audit(lines):
    lines.call(Verb.ACK, ("a", 1))
    lines.call(Verb.ACK, ("a", 1))  # a repeated ack
    lines.call(Verb.ACK, ("a", 0), kind=Kind.REFUSED)
    lines.call(Verb.ENQUEUE, ("b", 0), kind=Kind.UNKNOWN)
    lines.call(Verb.ENQUEUE, ("c", 0), kind=Kind.NOT_DONE)
    lines.call(Verb.ENQUEUE, ("d", 0), kind=Kind.LANDED)
    lines.call(Verb.DEQUEUE, ("d", 1))
    lines.call(Verb.ACK, ("d", 1), kind=Kind.INTENT)  # the caller was killed
    assert lines.found(finished={"a": 1, "d": 1}) == ""


def test_a_job_that_vanishes_is_found(lines):
    assert lines.found() == "a is gone, and nobody acked it"


def test_an_ack_that_was_lost_is_found(lines):
    lines.call(Verb.ACK, ("a", 1))
    assert lines.found(job()) == "a is still there, though attempt [1] acked it"


def test_acks_by_two_claims_are_found(lines):
    lines.call(Verb.ACK, ("a", 1))
    lines.call(Verb.DEQUEUE, ("a", 2), worker="w2")
    lines.call(Verb.ACK, ("a", 2), worker="w2")
    found = lines.found()
    assert "a was acked by 2 claims, attempts [1, 2]" in found
    assert "a was handed out as attempt [2] although attempt 1 acked it" in found


def test_a_claim_with_two_holders_is_found(lines):
    lines.call(Verb.DEQUEUE, ("a", 1), worker="w2")
    lines.call(Verb.ACK, ("a", 1))
    assert lines.found() == "a, attempt 1, was handed to w1 (call 2) and w2 (call 3)"


def test_a_claim_with_two_ends_is_found(lines):
    lines.call(Verb.NACK, ("a", 1))
    lines.call(Verb.ACK, ("a", 1))
    assert lines.found() == "a, attempt 1, was ended twice, by nack of w1 and ack of w1"


def test_an_ack_that_was_refused_and_done_is_found(lines):
    lines.call(Verb.ACK, ("a", 1), kind=Kind.NOT_DONE)
    assert "a was finished by attempt 1, which was refused or never tried" in lines.found(finished={"a": 1})


def test_an_enqueue_that_was_refused_and_done_is_found(lines):
    lines.call(Verb.ACK, ("a", 1))
    lines.call(Verb.ENQUEUE, ("b", 0), kind=Kind.REFUSED)
    assert lines.found(job(job_id="b")) == "b was there, though its enqueue was refused"


def test_half_an_apply_is_found(lines):
    lines.call(Verb.APPLY, ("a", 1), ("b", 0), kind=Kind.UNKNOWN)
    assert lines.found(finished={"a": 1}) == "a was acked, but b, enqueued in the same apply, was never seen"


def test_a_job_that_comes_back_is_found(lines):
    lines.call(Verb.ACK, ("a", 1))
    lines.ledger.see(QueueState(queue="q", version=8, finished={"a": 1}))
    assert "a is in version 9, though it was finished before" in lines.found(job())


def test_an_unknown_job_and_an_older_version_are_found(lines):
    lines.call(Verb.ACK, ("a", 1))
    lines.ledger.see(QueueState(queue="q", version=10))
    found = lines.found(job(job_id="b"))
    assert "the object went back from version 10 to 9" in found
    assert "b is in the object, and nobody enqueued it" in found


def test_a_late_answer_is_found(lines):
    lines.call(Verb.ACK, ("a", 1), seconds=20.0 + SLACK + 1, allowed=20.0)
    assert "it took 26.0 s, and 20 s were allowed" in lines.found()


def test_a_line_is_read_as_it_was_written():
    line = Line(3, Kind.UNKNOWN, Verb.APPLY, (JobAt("a", 1), JobAt("b")), 1.5, 0.25, 20.0, "TimeoutError")
    assert decode(encode(line)) == line
