"""The cost of a claim when ten thousand jobs wait, counted in comparisons and in jobs that are looked at."""

from datetime import timedelta

import pytest

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import HandBack, Nack
from tests.counted_claims import FEW, NAMES, NOW, Costs, claim, deep_draft
from tests.deep_queue import DEEP

pytestmark = pytest.mark.wide

sought = pytest.mark.parametrize("names", [("mail",), None, NAMES], ids=["one entrypoint", "all", "several"])


@pytest.fixture
def costs(monkeypatch):
    return Costs(monkeypatch)


@sought
def test_a_claim_costs_a_few_comparisons_and_looks_at_a_few_jobs(costs, names):
    draft = deep_draft()
    claim(draft, names)  # the order of all jobs is made at the first dequeue without an entrypoint
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


@pytest.mark.wide
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
def test_heaps_stay_small_when_jobs_return_to_the_queue_many_times(costs, names, back):
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
    order = draft.jobs.order
    heaps = [*order._ready.values(), *([] if order._ready_all is None else [order._ready_all])]
    assert all(len(heap.entries) <= 2 * 300 + 64 for heap in heaps)


@pytest.mark.wide
@sought
def test_an_empty_dequeue_checks_few_of_the_jobs_that_are_not_due(costs, names):
    draft = deep_draft(run_at=NOW + timedelta(days=1), expires_at=NOW + timedelta(days=2))
    costs.since()
    for _ in range(100):
        assert [] == claim(draft, names)
        compared, looked, checks = costs.since()
        assert (compared, checks) == (0, 0)
        assert looked <= 6


def test_an_empty_dequeue_of_one_entrypoint_checks_no_jobs_of_others(costs):
    draft = deep_draft()
    costs.since()
    assert [] == claim(draft, ("nobody",))
    assert (0, 0, 0) == costs.since()


def test_the_counted_jobs_are_packed_except_the_last():
    draft = deep_draft()
    assert {"Job", "tuple"} == {entry.__class__.__name__ for entry in dict.values(draft.jobs.entries)}
    assert JobStatus.QUEUED is draft.jobs["job 0"].status
