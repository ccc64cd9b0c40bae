"""Many processes on one store, under every fault there is: no rule is broken, and broken rules are found.

A failure names the seed; `run_seed(SEED, Settings(...))` replays it.
"""

import pytest

from jqueue.core.staleness import StaleWatch
from jqueue.domain import commits
from jqueue.domain.commits import Verdict
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.models import JobStatus
from jqueue.testing.simulation import Settings, Violation, run_seed

SEEDS_TO_FIND = 150


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.4])
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_no_seed_breaks_a_rule(first, rate):
    for seed in range(first, first + 15):
        run_seed(seed, Settings(rate=rate))


def test_a_seed_replays_to_the_last_call():
    assert run_seed(7, Settings(rate=0.2)) == run_seed(7, Settings(rate=0.2))


def found(settings):
    """The rule that the first violation is of."""
    for seed in range(SEEDS_TO_FIND):
        try:
            run_seed(seed, settings)
        except Violation as violation:
            return violation.rule
    return None


def test_a_queue_that_does_not_recognise_its_commits_is_found(monkeypatch):
    real = commits.recognise

    def forget(header, commit):
        verdict = real(header, commit)
        return Verdict.NOT_DONE if verdict is Verdict.LANDED else verdict

    monkeypatch.setattr("jqueue.core.engine.recognise", forget)
    assert found(Settings(rate=0.2)) in (2, 3, 4)


def test_a_queue_that_goes_by_its_own_timeout_is_found(monkeypatch):
    monkeypatch.setattr(StaleWatch, "_timeout", lambda self, _: self._default_timeout)
    assert 6 == found(Settings(rate=0.05))


def test_a_queue_that_does_not_check_attempts_is_found(monkeypatch):
    def unchecked(self, claim):
        job = self.get(claim.job_id)
        if job.status is not JobStatus.IN_PROGRESS:
            raise ClaimLostError(*claim)
        return job

    monkeypatch.setattr("jqueue.domain.draft.Draft.held", unchecked)
    assert found(Settings(rate=0.1)) in (1, 2, 4, 9)
