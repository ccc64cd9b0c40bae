"""The soak, in small; `python -m tests.soak` is the whole. And the auditor finds what must not happen."""

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
async def test_processes_whose_answers_get_lost_are_told_the_truth(request, server, tmp_path):
    settings = Settings(server, SECONDS, processes=2, rate=0.1, seed=7, session=1.0)
    soak = Soak(settings, store_of(request, server), tmp_path)
    async with asyncio.timeout(100):
        await soak.run()
    assert soak.ledger.violations == []
    assert soak.ledger.version > 0
    assert soak.requests > 0
    assert soak.ledger.kinds[Kind.DONE, Verb.LEAVE] >= 2


@pytest.mark.parametrize("server", ["seaweedfs"])
async def test_all_writers_of_a_race_get_through(request, server):
    async with asyncio.timeout(100):
        finish = await race(store_of(request, server), writers=4, commits=4)
    assert finish.is_fair
    assert len(finish.seconds) == 4


class Told:
    """A ledger, and short ways to tell it things."""

    def __init__(self):
        self.ledger = Ledger()
        self._calls = itertools.count(1)

    def call(self, verb, *jobs, kind=Kind.DONE, worker="w1", **more):
        """A call with its answer. Returns its number."""
        number, names = next(self._calls), tuple(JobAt(*job) for job in jobs)
        if kind is not Kind.INTENT:
            before = () if verb is Verb.DEQUEUE else names
            self.ledger.hear(worker, Line(number, Kind.INTENT, verb, before))
        self.ledger.hear(worker, Line(number, kind, verb, names, **more))

    def found(self, *jobs, finished=None, version=9):
        """What the auditor finds, given the state at the end."""
        state = QueueState(jobs=jobs, queue="q", version=version, finished=finished or {})
        return "\n".join(violation.what for violation in self.ledger.audit(state))


@pytest.fixture
def told():
    """A ledger that has heard of one job, enqueued and claimed once."""
    told = Told()
    told.call(Verb.ENQUEUE, ("a", 0))
    told.call(Verb.DEQUEUE, ("a", 1))
    return told


def job(status=JobStatus.QUEUED, job_id="a"):
    return Job(id=job_id, entrypoint="one", payload=b"", status=status, attempt=1)


def test_what_may_happen_is_passed_over(told):
    told.call(Verb.ACK, ("a", 1))
    told.call(Verb.ACK, ("a", 1))  # again
    told.call(Verb.ACK, ("a", 0), kind=Kind.REFUSED)
    told.call(Verb.ENQUEUE, ("b", 0), kind=Kind.UNKNOWN)
    told.call(Verb.ENQUEUE, ("c", 0), kind=Kind.NOT_DONE)
    told.call(Verb.ENQUEUE, ("d", 0), kind=Kind.LANDED)
    told.call(Verb.DEQUEUE, ("d", 1))
    told.call(Verb.ACK, ("d", 1), kind=Kind.INTENT)  # killed
    assert told.found(finished={"a": 1, "d": 1}) == ""


def test_a_job_that_vanishes_is_found(told):
    assert told.found() == "a is gone, and nobody acked it"


def test_an_ack_that_was_lost_is_found(told):
    told.call(Verb.ACK, ("a", 1))
    assert told.found(job()) == "a is still there, though attempt [1] acked it"


def test_acks_by_two_claims_are_found(told):
    told.call(Verb.ACK, ("a", 1))
    told.call(Verb.DEQUEUE, ("a", 2), worker="w2")
    told.call(Verb.ACK, ("a", 2), worker="w2")
    found = told.found()
    assert "a was acked by 2 claims, attempts [1, 2]" in found
    assert "a was handed out as attempt [2] although attempt 1 acked it" in found


def test_a_claim_with_two_holders_is_found(told):
    told.call(Verb.DEQUEUE, ("a", 1), worker="w2")
    told.call(Verb.ACK, ("a", 1))
    assert told.found() == "a, attempt 1, was handed to w1 (call 2) and w2 (call 3)"


def test_a_claim_with_two_ends_is_found(told):
    told.call(Verb.NACK, ("a", 1))
    told.call(Verb.ACK, ("a", 1))
    assert told.found() == "a, attempt 1, was ended twice, by nack of w1 and ack of w1"


def test_an_ack_that_was_refused_and_done_is_found(told):
    told.call(Verb.ACK, ("a", 1), kind=Kind.NOT_DONE)
    assert "a was finished by attempt 1, which was refused or never tried" in told.found(finished={"a": 1})


def test_an_enqueue_that_was_refused_and_done_is_found(told):
    told.call(Verb.ACK, ("a", 1))
    told.call(Verb.ENQUEUE, ("b", 0), kind=Kind.REFUSED)
    assert told.found(job(job_id="b")) == "b was there, though its enqueue was refused"


def test_half_an_apply_is_found(told):
    told.call(Verb.APPLY, ("a", 1), ("b", 0), kind=Kind.UNKNOWN)
    assert told.found(finished={"a": 1}) == "a was acked, but b, enqueued in the same apply, was never seen"


def test_a_job_that_comes_back_is_found(told):
    told.call(Verb.ACK, ("a", 1))
    told.ledger.see(QueueState(queue="q", version=8, finished={"a": 1}))
    assert "a is in version 9, though it was finished before" in told.found(job())


def test_a_job_of_nobody_and_an_object_that_goes_back_are_found(told):
    told.call(Verb.ACK, ("a", 1))
    told.ledger.see(QueueState(queue="q", version=10))
    found = told.found(job(job_id="b"))
    assert "the object went back from version 10 to 9" in found
    assert "b is in the object, and nobody enqueued it" in found


def test_a_late_answer_is_found(told):
    told.call(Verb.ACK, ("a", 1), seconds=20.0 + SLACK + 1, allowed=20.0)
    assert "it took 26.0 s, and 20 s were allowed" in told.found()


def test_a_line_is_read_as_it_was_written():
    line = Line(3, Kind.UNKNOWN, Verb.APPLY, (JobAt("a", 1), JobAt("b")), 1.5, 0.25, 20.0, "TimeoutError")
    assert decode(encode(line)) == line
