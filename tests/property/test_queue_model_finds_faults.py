"""The comparison with the plain model finds planted faults, each within its number of examples."""

from datetime import timedelta

import pytest
from hypothesis.stateful import run_state_machine_as_test

from jqueue.core.engine.requests import Request
from jqueue.core.engine.staleness import StaleWatch
from jqueue.domain.draft import Draft
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Ack, Cancel, Nack, Redrive, dequeue, perform, schedules
from jqueue.domain.operations.operator import Sweep
from jqueue.domain.order import Order
from jqueue.domain.transitions import Verb
from tests.property.call_machine import search
from tests.property.queue_machine import BrokerMachine, DirectMachine, QueueMachine, SharedMachine

pytestmark = pytest.mark.wide

SEARCH = search(examples=2000)


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
        draft.jobs.put(draft.jobs[self.job.job_id].evolve(priority=0))

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


def what_a_key_held_back_never_comes_back(patch):
    patch(Order, "_unpark", lambda self, key: None)


def a_key_has_one_place_more_than_it_should(patch):
    def is_free(self, job):
        running = self.running_keys.get(job.concurrency_key, 0)
        return job.concurrency_key is None or running <= (job.concurrency_limit or 1)

    patch(Order, "_is_free", is_free)


def a_ceiling_is_looked_at_once_for_a_batch(patch):
    take_ready = Draft.take_ready

    def take(self, names, now):
        job = take_ready(self, names, now)
        if job is not None:
            self.jobs.order.running.pop(job.entrypoint, None)
        return job

    patch(Draft, "take_ready", take)


def claims_are_not_counted_against_the_rate(patch):
    patch(dequeue, "count_claims", lambda draft, entrypoint, now, claims: None)


def a_pause_is_not_for_those_who_take_any_job(patch):
    patch(Order, "_all_ready", lambda self, all_ready=Order._all_ready: all_ready(without_rules(self)))


def without_rules(order):
    order.rules, order._ready_all = {}, None
    return order


def aging_is_measured_from_the_first_enqueue(patch):
    patch(Order, "_rank", lambda self, job: job.priority * (self.settings.aging or 1) + job.created_at.timestamp())


def a_cron_entry_fires_for_the_first_time_missed(patch):
    patch(schedules, "last_until", lambda cron, timezone, due, now: due)


def a_cancelled_job_is_queued_again(patch):
    get = Draft.held
    patch(Draft, "held", lambda self, claim: get(self, claim).evolve(cancel_requested=False))


def a_result_is_kept_with_its_payload(patch):
    ack = Ack.change

    def keep(self, draft, now):
        payload = draft.jobs[self.job.job_id].payload if self.job.job_id in draft.jobs else b""
        ack(self, draft, now)
        if self.job.job_id in draft.jobs:
            draft.jobs.put(draft.jobs[self.job.job_id].evolve(payload=payload))

    patch(Ack, "change", keep)


def limits_set_again_are_written(patch):
    set_rules = Draft.set_rules

    def touch(self, entrypoint, rules):
        set_rules(self, entrypoint, rules)
        self.touch()

    patch(Draft, "set_rules", touch)


@pytest.mark.parametrize(
    ("plant", "machine"),
    [
        (redrive_resets_attempts, DirectMachine),
        pytest.param(nack_forgets_priority, BrokerMachine, marks=pytest.mark.full),
        (dequeue_ignores_run_at, DirectMachine),
        pytest.param(a_claim_frees_the_unique_key, BrokerMachine, marks=pytest.mark.full),
        (a_lost_claim_is_as_good_as_the_current_one, SharedMachine),
        (cancel_removes_a_job_in_progress, DirectMachine),
        (what_was_refused_leaves_the_rest_of_its_apply, BrokerMachine),
        (a_reused_id_begins_at_its_first_attempt, DirectMachine),
        pytest.param(stale_claims_stay, SharedMachine, marks=pytest.mark.full),
        pytest.param(a_claim_that_has_moved_is_swept, BrokerMachine, marks=pytest.mark.full),
        (a_look_writes, DirectMachine),
        pytest.param(what_a_key_held_back_never_comes_back, DirectMachine, marks=pytest.mark.full),
        pytest.param(a_key_has_one_place_more_than_it_should, BrokerMachine, marks=pytest.mark.full),
        pytest.param(a_ceiling_is_looked_at_once_for_a_batch, DirectMachine, marks=pytest.mark.full),
        (claims_are_not_counted_against_the_rate, DirectMachine),
        (a_pause_is_not_for_those_who_take_any_job, DirectMachine),
        pytest.param(aging_is_measured_from_the_first_enqueue, DirectMachine, marks=pytest.mark.full),
        (a_cron_entry_fires_for_the_first_time_missed, DirectMachine),
        pytest.param(a_cancelled_job_is_queued_again, DirectMachine, marks=pytest.mark.full),
        pytest.param(a_result_is_kept_with_its_payload, DirectMachine, marks=pytest.mark.full),
        (limits_set_again_are_written, DirectMachine),
    ],
)
def test_the_comparison_finds_a_fault(plant, machine: type[QueueMachine], monkeypatch):
    plant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=SEARCH)
