"""The worker contract finds faulty workers and queues: each fault fails the test that is meant to find it.

A queue sees most faults of a worker as wrong calls. So they are planted in the queue, which changes these calls.
"""

import pytest
from msgspec.structs import replace

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JobCancelledError
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.contract.worker_contract import HeartbeatsContract, WorkerContract
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide


class Outcomes(DirectQueue):
    """A queue that changes the operations of the worker."""

    def changed(self, operation):
        return operation

    async def apply_each(self, *operations, **options):
        return await super().apply_each(*map(self.changed, operations), **options)

    async def apply(self, *operations, **options):
        return await super().apply(*map(self.changed, operations), **options)


class NeverAcks(Outcomes):
    def changed(self, operation):
        return Nack(operation.job, delay=3600, charge=False) if isinstance(operation, Ack) else operation


class ChargesAlways(Outcomes):
    def changed(self, operation):
        return replace(operation, charge=True) if isinstance(operation, Nack) else operation


class NeverGivesUp(Outcomes):
    def changed(self, operation):
        if not isinstance(operation, Nack):
            return operation
        return replace(operation, dead=False, delay=operation.delay or 3600)


class Unfenced(Outcomes):
    """Outcomes are accepted without a claim."""

    async def apply_each(self, *operations, **options):
        jobs = {job.id: job for job in (await self.read_state()).jobs}
        current = [replace(operation, job=jobs[operation.job.id]) for operation in operations]
        return await DirectQueue.apply_each(self, *current, **options)


class SendsNoHeartbeats(DirectQueue):
    async def heartbeat_many(self, jobs, **options):
        return []


class MissesCancellations(DirectQueue):
    async def heartbeat_many(self, jobs, **options):
        errors = await super().heartbeat_many(jobs, **options)
        return [error for error in errors if not isinstance(error, JobCancelledError)]


class MissesLostClaims(DirectQueue):
    async def heartbeat_many(self, jobs, **options):
        errors = await super().heartbeat_many(jobs, **options)
        return [error for error in errors if isinstance(error, JobCancelledError)]


class SetsNoLimits(DirectQueue):
    async def limit(self, entrypoint, **options):
        return None


class RunsTooMany(Worker):
    """Runs one job more at a time than its concurrency."""

    def __init__(self, *, concurrency=10, **options):
        super().__init__(concurrency=concurrency + 1, **options)


class HasNoBatches(Worker):
    """Calls batch handlers with one job at a time."""

    def handler(self, entrypoint=None, **options):
        return super().handler(entrypoint, **{**options, **({"batch": 1} if "batch" in options else {})})


@pytest.mark.parametrize(
    ("broken", "finder"),
    [
        (RunsTooMany, "test_as_many_jobs_are_claimed_and_run_as_the_concurrency_says_and_no_more"),
        (NeverAcks, "test_each_job_is_run_once_and_leaves"),
        (NeverGivesUp, "test_a_failing_job_is_tried_again_until_it_is_dead"),
        (ChargesAlways, "test_a_snoozed_job_comes_back_uncharged"),
        (ChargesAlways, "test_what_does_not_finish_in_time_is_handed_back_and_done_by_another"),
        (SendsNoHeartbeats, "test_heartbeats_keep_a_job_and_a_batch_that_take_longer_than_their_claims_last"),
        (MissesLostClaims, "test_a_handler_whose_claim_is_lost_is_stopped_and_nothing_of_it_is_committed"),
        (Unfenced, "test_an_outcome_that_comes_after_the_claim_was_lost_changes_nothing"),
        (MissesCancellations, "test_a_job_cancelled_while_it_runs_is_stopped_and_leaves"),
        (HasNoBatches, "test_a_batch_takes_one_slot_and_has_each_job_once_and_never_too_many"),
        (SetsNoLimits, "test_a_limit_of_running_jobs_holds_for_all_workers_together"),
    ],
)
@in_virtual_time
async def test_the_contract_finds_a_fault(broken, finder, caplog):
    is_queue = issubclass(broken, DirectQueue)
    kind, storage = broken if is_queue else DirectQueue, InMemoryStorage(clock=VirtualClock())

    class Contract(WorkerContract, HeartbeatsContract):
        worker_kind = Worker if is_queue else broken

    test = getattr(Contract(), finder)
    arguments = {"caplog": caplog} if "caplog" in test.__code__.co_varnames else {}
    with pytest.raises((AssertionError, TimeoutError, ValueError)):
        await test(lambda **options: kind(storage, **{"clock": VirtualClock(), **options}), **arguments)
