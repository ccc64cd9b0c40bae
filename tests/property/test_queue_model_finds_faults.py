"""The comparison with the plain model finds what a queue does wrong: each fault here is found within its examples."""

from datetime import timedelta

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from jqueue.core.requests import Request
from jqueue.core.staleness import StaleWatch
from jqueue.domain.draft import Draft
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Cancel, Nack, Redrive, perform
from jqueue.domain.operations.operator import Sweep
from jqueue.domain.transitions import Verb
from tests.property.queue_machine import BrokerMachine, DirectMachine, QueueMachine, SharedMachine

SEARCH = settings(
    max_examples=2000,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,  # so that what is found today is found tomorrow
    phases=[Phase.generate],
    report_multiple_bugs=False,
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)


def redrive_resets_attempts(patch):
    queue = Redrive._queue

    def reset(self, draft, job, now):
        queue(self, draft, job, now)
        draft.jobs[job.id] = draft.jobs[job.id].evolve(attempt=0)

    patch(Redrive, "_queue", reset)


def nack_forgets_priority(patch):
    nack = Nack.change

    def forget(self, draft, now):
        nack(self, draft, now)
        draft._index(self.job.job_id, draft.jobs[self.job.job_id].evolve(priority=0))

    patch(Nack, "change", forget)


def dequeue_ignores_run_at(patch):
    take_ready = Draft.take_ready
    patch(Draft, "take_ready", lambda self, names, now: take_ready(self, names, now + timedelta(days=1)))


def a_claim_frees_the_unique_key(patch):
    key_holder = Draft.key_holder

    def queued_holder(self, key, now):
        holder = key_holder(self, key, now)
        job = self.jobs.get(holder)
        return None if job is not None and job.status is JobStatus.IN_PROGRESS else holder

    patch(Draft, "key_holder", queued_holder)


def a_lost_claim_is_as_good_as_the_current_one(patch):
    held = Draft.held

    def held_by_anybody(self, claim):
        job = self.jobs.get(claim.job_id)
        named = claim.attempt and job is not None and job.status is JobStatus.IN_PROGRESS
        return job if named else held(self, claim)

    patch(Draft, "held", held_by_anybody)


def cancel_removes_a_job_in_progress(patch):
    cancel = Cancel.change

    def remove(self, draft, now):
        job = draft.get(self.job_id)
        if job.status is not JobStatus.IN_PROGRESS:
            return cancel(self, draft, now)
        draft.move(job, Verb.ACK, None, JobStatus.COMPLETED)
        return job

    patch(Cancel, "change", remove)


def what_was_refused_leaves_the_rest_of_its_apply(patch):
    def keep(self, draft, now):
        results = [perform(operation, draft, now) for operation in self.operations]
        errors = [result for result in results if isinstance(result, Exception)]
        return errors[0] if self.atomic and errors else results

    patch(Request, "perform", keep)


def a_reused_id_begins_at_its_first_attempt(patch):
    patch(Draft, "note_floor", lambda self, attempt: None)


def stale_claims_stay(patch):
    patch(StaleWatch, "suspects", lambda self: ())


def a_claim_that_has_moved_is_swept(patch):
    sweep = Sweep.change

    def sweep_all(self, draft, now):
        there = [claim for claim, _ in self.suspects if claim.job_id in draft.jobs]
        return sweep(Sweep(tuple((claim, draft.jobs[claim.job_id].heartbeat_at) for claim in there)), draft, now)

    patch(Sweep, "change", sweep_all)


def a_look_writes(patch):
    patch(Draft, "changed", True)


@pytest.mark.parametrize(
    ("plant", "machine"),
    [
        (redrive_resets_attempts, DirectMachine),
        (nack_forgets_priority, BrokerMachine),
        (dequeue_ignores_run_at, DirectMachine),
        pytest.param(a_claim_frees_the_unique_key, BrokerMachine, marks=pytest.mark.full),
        (a_lost_claim_is_as_good_as_the_current_one, SharedMachine),
        (cancel_removes_a_job_in_progress, DirectMachine),
        (what_was_refused_leaves_the_rest_of_its_apply, BrokerMachine),
        (a_reused_id_begins_at_its_first_attempt, DirectMachine),
        pytest.param(stale_claims_stay, SharedMachine, marks=pytest.mark.full),
        pytest.param(a_claim_that_has_moved_is_swept, BrokerMachine, marks=pytest.mark.full),
        (a_look_writes, DirectMachine),
    ],
)
def test_the_comparison_finds_a_fault(plant, machine: type[QueueMachine], monkeypatch):
    plant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SEARCH)
