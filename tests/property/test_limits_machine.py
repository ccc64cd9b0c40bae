"""Under any limits, the claimed job is the first one that a plain search of all jobs finds claimable.

A draft is changed by the real operations, some taken back, some made by another writer; beside it, a plain list.
"""

import os
import secrets
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import TABLES
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, JobStatus
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    HandBack,
    Nack,
    Pause,
    Preparation,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    perform,
)
from jqueue.testing.virtual_time import EPOCH
from tests.property.plain_limits import PlainLimits, Record, Rules

pytestmark = pytest.mark.wide

SEED = int(os.environ.get("JQUEUE_LIMITS_SEED") or secrets.randbits(32))
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)

names = st.sampled_from(["a", "a", "b", "c"])
sought = st.sampled_from([None, ("a",), ("b",), ("c",), ("b", "a"), ("c", "a", "nobody"), ("a", "b", "c")])
keys = st.sampled_from([None, "k", "k", "l"])
priorities = st.integers(-2, 2)
ceilings = st.none() | st.integers(1, 3)
delays = st.none() | st.integers(0, 6)
passing = st.sampled_from([0, 0, 1, 1, 2, 5, 20])
places = st.integers(0, 30)


class LimitsMachine(RuleBasedStateMachine):
    """Any operations in any order, on the draft and on the plain queue."""

    def __init__(self):
        super().__init__()
        self.draft, self.plain, self.count = Draft(), PlainLimits(), 0

    def now(self):
        return EPOCH + timedelta(seconds=self.plain.now)

    def do(self, operation, draft=None):
        """Return the result of an operation that must not be refused."""
        result = perform(operation.prepared(PREPARATION), self.draft if draft is None else draft, self.now())
        assert not isinstance(result, JQueueError), result
        return result

    def pick(self, place, *statuses):
        found = [job for job in self.plain.jobs if job.status in statuses]
        return found[place % len(found)] if found else None

    def has(self, *statuses):
        return any(job.status in statuses for job in self.plain.jobs)

    # Jobs

    @rule(name=names, priority=priorities, key=keys, limit=ceilings, delay=delays, count=st.integers(1, 3))
    def enqueue(self, name, priority, key, limit, delay, count):
        limit = limit if key else None
        for _ in range(count):
            self.count += 1
            options = {"concurrency_key": key, "concurrency_limit": limit, "delay": delay, "job_id": f"{self.count}"}
            self.do(Enqueue(name, b"", priority, **options))
            run_at = None if delay is None else self.plain.now + delay
            record = Record(
                f"{self.count}", name, priority, key, limit or 1, self.plain.now, self.plain.next_place(), run_at
            )
            record.attempt = self.draft.jobs[record.id].attempt
            self.plain.jobs.append(record)

    @rule(names=sought, count=st.integers(0, 4), passes=passing)
    def dequeue(self, names, count, passes):
        self.plain.now += passes
        claimed = self.do(Dequeue(names, batch_size=count))
        assert self.plain.claim(names, count) == [(job.id, job.attempt) for job in claimed]

    @rule(names=sought, count=st.integers(0, 4), passes=passing, place=places, again=st.integers(0, 3))
    def dequeue_through(self, names, count, passes, place, again):
        """Claim only jobs up to some place, and then all others in their unchanged order."""
        self.plain.now += passes
        job = self.pick(place, "queued", "running", "dead")
        through = 0 if job is None else self.draft.jobs[job.id].sequence
        among = {job.id for job in self.draft.jobs.values() if job.sequence <= through}
        claimed = self.do(Dequeue(names, batch_size=count, through=through))
        assert self.plain.claim(names, count, among) == [(job.id, job.attempt) for job in claimed]
        self.dequeue(names, again, 0)

    @precondition(lambda self: self.has("running"))
    @rule(place=places, way=st.sampled_from(["ack", "nack", "dead", "hand back", "unharmed", "revoke"]), delay=delays)
    def end(self, place, way, delay):
        job = self.pick(place, "running")
        claim = Claim(job.id, job.attempt)
        if way == "ack":
            self.do(Ack(claim))
            self.plain.jobs.remove(job)
        elif way == "hand back":
            self.do(Nack(claim, delay, charge=False) if delay else HandBack((claim,)))
            self.plain.hand_back(job, delay)
        elif way == "unharmed":
            self.do(Nack(claim, charge=False))
            self.plain.hand_back(job)
        elif way == "revoke":
            self.revoke(job.since)
        else:
            self.do(Nack(claim, delay, dead=way == "dead"))
            self.plain.fail(job, delay, dead=way == "dead")

    def revoke(self, since):
        """End the claims made until then, as an operator would."""
        stale = [job for job in self.plain.jobs if job.status == "running" and job.since <= since]
        assert self.do(RequeueStale(self.plain.now - since)) == len(stale)
        for job in sorted(stale, key=lambda job: job.place):
            self.plain.fail(job, revoked=True)

    @precondition(lambda self: self.has("queued", "running"))
    @rule(place=places)
    def cancel(self, place):
        job = self.pick(place, "queued", "running")
        self.do(Cancel(job.id, running=True))
        if job.status == "running":
            job.cancelled = True
        else:
            self.plain.jobs.remove(job)

    @precondition(lambda self: self.has("queued"))
    @rule(place=places, priority=priorities, delay=st.none() | st.integers(0, 6))
    def change(self, place, priority, delay):
        job = self.pick(place, "queued")
        if delay is None:
            self.do(Reprioritise(job.id, priority))
            job.priority = priority
        else:
            self.do(Reschedule(job.id, delay=delay))
            job.run_at = self.plain.now + delay if delay else None

    @precondition(lambda self: self.has("queued"))
    @rule(place=places, priority=priorities, names=sought)
    def change_after_a_look(self, place, priority, names):
        """Change a job that was found to be held back; it must be checked again."""
        self.dequeue(names, 4, 0)
        if self.has("queued"):
            self.change(place, priority, None)
        self.dequeue(names, 1, 0)

    @precondition(lambda self: self.has("dead"))
    @rule(place=places)
    def redrive(self, place):
        job = self.pick(place, "dead")
        self.do(Redrive(job.id))
        job.status, job.place = "queued", self.plain.next_place()
        job.run_at = None if self.plain.aging is None else self.plain.now

    # Limits

    @rule(name=names, paused=st.booleans())
    def pause(self, name, paused):
        self.do(Pause(name) if paused else Resume(name))
        self.plain.rules.setdefault(name, Rules()).paused = paused

    @rule(name=names, running=ceilings, rate=ceilings, per=st.sampled_from([1, 3, 10]))
    def limit(self, name, running, rate, per):
        per = per if rate else None
        self.do(SetLimits(name, running=running, rate=rate, per=per))
        rules = self.plain.rules.setdefault(name, Rules())
        rules.running, rules.rate, rules.per = running, rate, per
        if rate is None:
            rules.claims.clear()

    @rule(name=names, rate=st.integers(1, 2), per=st.sampled_from([1, 2, 5]), passes=passing)
    def rate(self, name, rate, per, passes):
        """Set a rate, and claim right before and right after its window opens again."""
        self.limit(name, None, rate, per)
        for passing in (passes, per - 1, 1):
            self.dequeue((name,), 2, passing)

    @rule(aging=st.sampled_from([None, None, 1, 3, 100]))
    def age(self, aging):
        self.do(Configure(aging=aging))
        self.plain.aging = aging

    # Time, commits, other writers

    @rule(passes=passing)
    def wait(self, passes):
        self.plain.now += passes

    @rule()
    def commit(self):
        self.draft.settle()

    @rule(data=st.data())
    def take_back(self, data):
        """Undo a commit that was refused, or an apply that failed."""
        savepoint = self.draft.savepoint()
        self.meddle(data, self.draft)
        self.draft.rollback(savepoint)

    @rule()
    def begin_anew(self):
        """Another queue object reads the blob."""
        self.draft = Draft(self.draft.freeze())

    @rule(names=sought, count=st.integers(0, 3), name=names, running=ceilings, paused=st.booleans(), ages=st.booleans())
    def other_writer(self, names, count, name, running, paused, ages):
        """Another writer claims and sets limits; then we read its changes."""
        self.dequeue(None, 1, 0)
        self.draft.settle()
        before = self.draft.freeze()
        other = Draft(before)
        aging = 2 if ages else self.plain.aging
        self.do(SetLimits(name, running=running), other)
        self.do(Pause(name) if paused else Resume(name), other)
        self.do(Configure(aging=aging), other)
        claimed = self.do(Dequeue(names, batch_size=count), other)
        rules = self.plain.rules.setdefault(name, Rules())
        rules.running, rules.rate, rules.per, rules.paused, self.plain.aging = running, None, None, paused, aging
        rules.claims.clear()
        assert self.plain.claim(names, count) == [(job.id, job.attempt) for job in claimed]
        after = other.freeze()
        known = {job.id: job for job in before.jobs}
        self.draft.take_header(after.model_copy(update={table: dict(getattr(after, table)) for table in TABLES}))
        self.draft.load(job for job in after.jobs if known.get(job.id) != job)
        self.dequeue(None, 1, 0)

    def meddle(self, data, draft):
        """Some operations on some jobs, refused or not."""
        ids = sorted(job.id for job in self.plain.jobs) or ["1"]
        claims = [Claim(job.id, job.attempt) for job in self.plain.jobs if job.status == "running"]
        operations = st.one_of(
            st.builds(Dequeue, sought, batch_size=st.integers(1, 9)),
            st.builds(Dequeue, sought, batch_size=st.integers(1, 9), through=places),
            st.builds(Pause, names),
            st.builds(Resume, names),
            st.builds(SetLimits, names, running=ceilings),
            st.builds(SetLimits, names, running=ceilings, rate=st.integers(1, 3), per=st.integers(1, 9)),
            st.builds(Configure, aging=st.sampled_from([None, 1, 50])),
            st.builds(Cancel, st.sampled_from(ids), st.booleans()),
            st.builds(Reschedule, st.sampled_from(ids), delay=st.integers(0, 9)),
            st.builds(Reprioritise, st.sampled_from(ids), priorities),
            st.builds(Redrive),
            st.builds(Enqueue, names, st.just(b""), priorities, job_id=st.just("meddled"), concurrency_key=keys),
            st.builds(RequeueStale, st.integers(0, 3)),
            *([st.builds(Ack, st.sampled_from(claims))] if claims else []),
            *([st.builds(Nack, st.sampled_from(claims), delays)] if claims else []),
        )
        for operation in data.draw(st.lists(operations, min_size=1, max_size=6)):
            perform(operation.prepared(PREPARATION), draft, self.now())

    @invariant()
    def both_know_the_same_jobs(self):
        statuses = {"queued": JobStatus.QUEUED, "running": JobStatus.IN_PROGRESS, "dead": JobStatus.DEAD}
        expected = {job.id: (statuses[job.status], job.attempt, job.priority) for job in self.plain.jobs}
        assert {job.id: (job.status, job.attempt, job.priority) for job in self.draft.jobs.values()} == expected

    def teardown(self):
        """Claim all jobs left, in order, as the limits are removed one after another."""
        for name in ("a", "b", "c"):
            for names in (None, (name,)):
                claimed = self.do(Dequeue(names, batch_size=20))
                assert self.plain.claim(names, 20) == [(job.id, job.attempt) for job in claimed]
            self.limit(name, None, None, 1)
            self.pause(name, False)
        self.plain.now += 50
        while (claimed := self.do(Dequeue(None, batch_size=3))) or self.has("running"):
            assert self.plain.claim(None, 3) == [(job.id, job.attempt) for job in claimed]
            running = [job for job in self.plain.jobs if job.status == "running"]
            for job in running[:2]:
                self.do(Ack(Claim(job.id, job.attempt)))
                self.plain.jobs.remove(job)
        assert not self.has("queued"), "jobs that no limit holds back were left"


FAST = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
LONG = settings(FAST, max_examples=2000, stateful_step_count=80)


def run(how):
    print(f"JQUEUE_LIMITS_SEED={SEED} tries the same again")
    run_state_machine_as_test(seed(SEED)(LimitsMachine), settings=how)


def test_the_claimed_job_is_the_first_that_no_limit_holds_back():
    run(FAST)


@pytest.mark.full
def test_the_claimed_job_is_the_first_that_no_limit_holds_back_in_long_runs():
    run(LONG)
