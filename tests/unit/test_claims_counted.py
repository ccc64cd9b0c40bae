"""What a claim costs when ten thousand jobs wait, counted in comparisons and in jobs that are looked at."""

from datetime import UTC, datetime, timedelta
from math import log2

import pytest

from jqueue.domain.draft import Draft
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Dequeue, HandBack, Nack
from jqueue.domain.order import Order
from tests.deep_queue import DEEP

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("mail", "resize", "report")
FEW = 6 * log2(DEEP)
"""What is meant by a few: about eighty."""

sought = pytest.mark.parametrize("names", [("mail",), None, NAMES], ids=["one entrypoint", "all", "several"])


class Compared(int):
    """A number that counts how often it is compared."""

    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return int.__eq__(self, other)

    def __lt__(self, other):
        Compared.times += 1
        return int.__lt__(self, other)

    __hash__ = int.__hash__


class Looked(dict):
    """The table of the jobs, which counts how many of them are looked at."""

    jobs = 0

    def __getitem__(self, job_id):
        Looked.jobs += 1
        return super().__getitem__(job_id)

    def get(self, job_id, default=None):
        Looked.jobs += 1
        return super().get(job_id, default)

    def __iter__(self):
        Looked.jobs += len(self)
        return super().__iter__()

    def values(self):
        Looked.jobs += len(self)
        return super().values()

    def items(self):
        Looked.jobs += len(self)
        return super().items()


class Costs:
    """What has been counted since one asked last."""

    def __init__(self, monkeypatch):
        self.checks = 0
        is_ready = Order._is_ready

        def counted(order, entry):
            self.checks += 1
            return is_ready(order, entry)

        monkeypatch.setattr(Order, "_is_ready", counted)

    def since(self):
        found = (Compared.times, Looked.jobs, self.checks)
        Compared.times = Looked.jobs = self.checks = 0
        return found


@pytest.fixture
def costs(monkeypatch):
    return Costs(monkeypatch)


def waiting(number, **fields):
    """A job of any of three entrypoints and of any of a thousand priorities."""
    job = Job(id=f"job {number}", entrypoint=NAMES[number % 3], payload=b"", created_at=NOW, sequence=number + 1)
    return job.evolve(priority=Compared(number * 7919 % 1000), **fields)


def deep_draft(count=DEEP, **fields):
    """A draft of the jobs. If there are many, nearly all of them are packed."""
    draft = Draft()
    draft.load(waiting(number, **fields) for number in range(count))
    draft.jobs.entries = Looked(draft.jobs.entries)
    return draft


def claim(draft, names, count=1):
    claimed = Dequeue(names, batch_size=count, claim_timeout=30.0).change(draft, NOW)
    draft.settle()
    return claimed


@sought
def test_a_claim_costs_a_few_comparisons_and_looks_at_a_few_jobs(costs, names):
    draft = deep_draft()
    claim(draft, names)  # the order of all jobs is made when somebody asks for it first
    costs.since()
    for _ in range(300):
        assert 1 == len(claim(draft, names))
        compared, looked, checks = costs.since()
        assert compared <= FEW * (len(NAMES) if names == NAMES else 1)
        assert looked <= 12
        assert checks <= 1 + len(NAMES)


@sought
def test_the_first_claim_looks_at_no_more_jobs_than_the_next(costs, names):
    draft = deep_draft()
    costs.since()
    claim(draft, names)
    compared, looked, checks = costs.since()
    assert compared <= 4 * DEEP  # entries, not jobs, are put in order
    assert looked <= 12
    assert checks <= 1 + len(NAMES)


@sought
def test_many_claims_in_one_commit_cost_no_more_than_each_alone(costs, names):
    draft = deep_draft()
    claim(draft, names)
    costs.since()
    assert 1000 == len(claim(draft, names, 1000))
    compared, looked, checks = costs.since()
    assert compared <= 1000 * FEW * (len(NAMES) if names == NAMES else 1)
    assert looked <= 12 * 1000
    assert checks <= (1 + len(NAMES)) * 1000


@sought
@pytest.mark.parametrize("back", [lambda claim: Nack(claim), lambda claim: HandBack((claim,))], ids=["nack", "back"])
def test_jobs_that_come_back_again_and_again_leave_nothing_that_has_to_be_looked_through(costs, names, back):
    draft = deep_draft(300)
    claim(draft, names)
    costs.since()
    for _ in range(3000):
        [job] = claim(draft, names)
        back(job.claim).change(draft, NOW)
        draft.settle()
    compared, _, checks = costs.since()
    assert compared <= 3000 * 2 * FEW * (len(NAMES) if names == NAMES else 1)
    assert checks <= 3000 * 2 * (1 + len(NAMES)) * 2  # clean-ups, paid for by what was pushed
    order = draft.order
    heaps = [*order._ready.values(), *([] if order._ready_all is None else [order._ready_all])]
    assert all(len(heap.entries) <= 2 * 300 + 64 for heap in heaps)


@sought
def test_looking_in_vain_among_jobs_that_are_not_due_looks_at_a_few(costs, names):
    draft = deep_draft(run_at=NOW + timedelta(days=1), expires_at=NOW + timedelta(days=2))
    costs.since()
    for _ in range(100):
        assert [] == claim(draft, names)
        compared, looked, checks = costs.since()
        assert (compared, checks) == (0, 0)
        assert looked <= 6


def test_an_empty_look_for_one_entrypoint_does_not_look_at_the_jobs_of_others(costs):
    draft = deep_draft()
    costs.since()
    assert [] == claim(draft, ("nobody",))
    assert (0, 0, 0) == costs.since()


def test_the_jobs_that_were_counted_are_packed_but_for_the_last():
    draft = deep_draft()
    assert {"Job", "tuple"} == {entry.__class__.__name__ for entry in dict.values(draft.jobs.entries)}
    assert JobStatus.QUEUED is draft.jobs["job 0"].status
