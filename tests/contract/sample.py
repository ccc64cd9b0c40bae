"""Sample of the queue contract, which `make test` runs on the stores that do not get the whole contract.

The contract is about the queue, which is the same everywhere. Stores differ in how they take and refuse requests. So
`make test` runs the whole contract in memory with each queue. Elsewhere it runs the sample: each verb once, races,
and tests that depend on the time and the errors of the store. `make test-wide` runs the whole contract on a file with
each queue, on SeaweedFS with the broker, and on the older formats.
`make test-full` runs it on every store.
"""

import functools
import inspect

import pytest

SAMPLE = {
    # each verb
    "test_a_job_is_claimed_once_and_gone_when_acked",
    "test_what_a_verb_returns_is_what_the_queue_holds",
    "test_headers_and_names_may_hold_any_text",
    "test_a_job_id_makes_an_enqueue_idempotent",
    "test_of_many_claims_each_stands_for_itself",
    "test_a_job_is_dead_when_its_attempts_are_used_up",
    "test_dead_jobs_are_redriven_by_entrypoint_or_all_in_their_order",
    "test_purge_removes_dead_jobs_and_no_others",
    "test_a_job_that_nobody_claimed_can_be_cancelled",
    "test_a_job_that_waits_may_be_put_off",
    "test_the_holder_of_a_cancelled_job_is_told_at_its_heartbeat",
    "test_limits_outlast_the_queue_object_that_set_them",
    "test_a_job_fired_is_as_the_entry_says",
    "test_a_job_with_its_result_stays_without_its_payload",
    "test_stats_count_what_is_there",
    # all or nothing, in one commit
    "test_enqueue_many_adds_all_or_none",
    "test_apply_does_several_things_in_one_commit_with_results_in_order",
    "test_one_refusal_undoes_all_of_an_apply",
    "test_what_is_done_each_for_itself_is_one_commit",
    # claims
    "test_a_claim_may_be_used_through_another_queue_object",
    "test_a_revoked_claim_is_refused_and_changes_nothing",
    "test_an_ack_repeated_with_the_same_job_succeeds",
    # races
    "test_commit_order_holds_across_enqueuers_whatever_their_clocks_say",
    "test_calls_of_one_task_group_are_all_done",
    "test_of_racing_enqueues_one_gets_the_key",
    "test_a_key_is_exact_for_queue_objects_that_claim_at_once",
    "test_a_ceiling_is_exact_for_queue_objects_that_claim_at_once",
    "test_queues_that_dequeue_at_once_fire_an_entry_once",
    "test_a_dequeue_cancelled_at_any_moment_leaves_no_job_claimed_by_nobody",
    "test_an_enqueue_cancelled_at_any_moment_is_done_once_or_not_at_all",
    # time and waiting
    "test_a_delayed_job_is_served_when_its_time_has_come",
    "test_a_job_not_claimed_by_its_expiry_is_removed",
    "test_a_claim_that_nobody_confirms_within_its_timeout_is_served_again",
    "test_a_waiting_dequeue_is_answered_by_an_enqueue_from_elsewhere",
    "test_whoever_waits_gets_the_result_when_it_is_there",
    # the history
    "test_the_history_tells_what_happened_to_a_job",
    "test_events_are_the_same_after_they_were_moved",
    # content of the store
    "test_polling_a_queue_with_nothing_ready_never_writes",
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",
    "test_a_blob_that_is_cut_off_is_refused_and_left_alone",
}


def sampled(contract, rest=pytest.mark.full):
    """Mark each test of a contract outside the sample: as `full`, or as `rest`."""
    tests = {
        name: test
        for name, test in inspect.getmembers(contract, inspect.iscoroutinefunction)
        if name.startswith("test_")
    }
    assert SAMPLE <= set(tests), f"no tests of the contract: {sorted(SAMPLE - set(tests))}"
    for name in sorted(set(tests) - SAMPLE):  # the same order in each process of a run
        setattr(contract, name, rest(_copy_of(tests[name])))
    return contract


sampled_at_first = functools.partial(sampled, rest=pytest.mark.wide)
"""Class decorator: `make test` runs the sample, and `make test-wide` the rest."""


def _copy_of(test):
    """Return a copy for one class: a mark belongs to the function, which classes for other stores share."""

    @functools.wraps(test)
    async def run_test(*args, **kwargs):
        await test(*args, **kwargs)

    return run_test
