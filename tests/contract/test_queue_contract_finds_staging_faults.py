"""The queue contract finds faults with staged jobs and named claims: a faulty queue for each of its tests."""

from dataclasses import replace

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations import Dequeue, Enqueue, EnqueueStaged, LastTransaction, StagedReceipt
from jqueue.testing.virtual_time import VirtualClock
from tests.contract.whole_contract import WholeQueueContract
from tests.virtual_world import in_virtual_time


class Changing(DirectQueue):
    """A queue that changes each operation before it is applied."""

    def change(self, operation):
        return operation

    async def apply(self, *operations, **options):
        return await super().apply(*map(self.change, operations), **options)


class ForgetsTransactions(Changing):
    def change(self, operation):
        return replace(operation, transaction=None) if isinstance(operation, EnqueueStaged) else operation


class KnowsOnlyItsOwnTransactions(Changing):
    """Each queue object recognises only transactions of its own."""

    def change(self, operation):
        if not isinstance(operation, EnqueueStaged) or operation.transaction is None:
            return operation
        app_id, version = operation.transaction[:2]
        return replace(operation, transaction=(f"{id(self)} {app_id}", version))


class AddsBlockByBlock(DirectQueue):
    async def apply(self, *operations, **options):
        staged, receipts = operations[0], []
        if len(operations) > 1 or not isinstance(staged, EnqueueStaged):
            for each in operations:
                receipts += await super().apply(each, **options)
            return receipts
        for number, block in enumerate(staged.staged):
            part = replace(staged, staged=[block], transaction=None if number else staged.transaction)
            receipts += await super().apply(part, **options)
        return [StagedReceipt(sum(each.added for each in receipts), sum(each.taken for each in receipts))]


class SkipsTakenKeysAlways(Changing):
    """Leaves out jobs with taken keys, even if the conflict must raise."""

    def change(self, operation):
        return replace(operation, on_conflict="return") if isinstance(operation, EnqueueStaged) else operation


class DropsDetails(DirectQueue):
    async def apply(self, *operations, **options):
        if not isinstance(operations[0], EnqueueStaged):
            return await super().apply(*operations, **options)
        jobs = [Enqueue("work", b"") for block in operations[0].staged for _ in range(block.jobs)]
        return [StagedReceipt(len(await self.enqueue_many(jobs)))]


class NoLastTransaction(DirectQueue):
    async def apply(self, *operations, **options):
        return [None] if isinstance(operations[0], LastTransaction) else await super().apply(*operations, **options)


class DropsHolders(Changing):
    def change(self, operation):
        return replace(operation, holder=None) if isinstance(operation, Dequeue) else operation


class NamesNoClaim(DirectQueue):
    def _holder(self):
        return None


class IgnoresBounds(Changing):
    def change(self, operation):
        return replace(operation, through=None) if isinstance(operation, Dequeue) else operation


class OneByOne(DirectQueue):
    async def apply_each(self, *operations, **options):
        results = []
        for each in operations:
            results += await super().apply_each(each, **options)
        return results


@pytest.mark.parametrize(
    ("kind", "finder"),
    [
        (AddsBlockByBlock, "test_staged_jobs_are_added_in_one_commit_behind_all_others"),
        (AddsBlockByBlock, "test_what_has_no_room_is_not_added_in_part"),
        (AddsBlockByBlock, "test_an_operation_refused_beside_undoes_it"),
        (DropsDetails, "test_staged_jobs_are_what_an_enqueue_makes"),
        (DropsDetails, "test_staged_jobs_are_claimed_and_ended_by_whoever_added_them"),
        (DropsDetails, "test_who_waits_for_jobs_gets_staged_ones"),
        (ForgetsTransactions, "test_a_transaction_is_added_once_whoever_repeats_it"),
        (ForgetsTransactions, "test_of_many_who_add_the_same_transaction_at_once_one_does"),
        (ForgetsTransactions, "test_writers_that_stage_at_once_lose_nothing"),
        (KnowsOnlyItsOwnTransactions, "test_a_transaction_is_added_once_whoever_repeats_it"),
        (KnowsOnlyItsOwnTransactions, "test_of_many_who_add_the_same_transaction_at_once_one_does"),
        (NoLastTransaction, "test_a_transaction_is_added_once_whoever_repeats_it"),
        (SkipsTakenKeysAlways, "test_a_key_that_is_taken_leaves_its_job_out_or_undoes_all"),
        (SkipsTakenKeysAlways, "test_wrong_arguments_are_refused"),
        (DropsHolders, "test_who_lost_its_memory_finds_what_it_held"),
        (DropsHolders, "test_a_heartbeat_keeps_the_holder"),
        (DropsHolders, "test_every_end_of_a_claim_ends_the_holder"),
        (DropsHolders, "test_a_job_to_be_stopped_keeps_its_holder_until_the_claim_ends"),
        (DropsHolders, "test_wrong_names_and_places_are_refused"),
        (NamesNoClaim, "test_a_claim_tells_who_holds_it_and_since_when"),
        (IgnoresBounds, "test_only_jobs_up_to_a_place_are_claimed"),
        (OneByOne, "test_acks_and_the_next_claim_are_one_commit"),
    ],
)
@in_virtual_time
async def test_the_contract_finds_a_fault(kind, finder):
    storage = InMemoryStorage(clock=VirtualClock())
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        await getattr(WholeQueueContract(), finder)(lambda **options: kind(storage, clock=VirtualClock(), **options))
