"""Staged jobs are enqueued in one commit, all or none, and once for each transaction."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jqueue import DuplicateJobError, JobNotFoundError, Limits, QueueFullError
from jqueue.domain.limits import TRANSACTIONS_KEPT
from jqueue.domain.operations import Ack, EnqueueStaged, LastTransaction, StagedReceipt, Transaction
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.staged_jobs import block, both, ids_in, queue_on, store
from tests.virtual_world import in_virtual_time

LONG_AGO = timedelta(hours=1)


# Jobs that are added


@both
@in_virtual_time
async def test_staged_jobs_are_added_in_one_commit_and_claimed_by_the_same_queue_object_and_by_others(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        await queue.enqueue("work", b"", job_id="before")
        writes = storage.landed
        [receipt] = await queue.apply(EnqueueStaged((block("a", "b"), block("c", "d"))))
        assert (StagedReceipt(added=4), writes + 1) == (receipt, storage.landed)
        assert ["before", "a", "b"] == [job.id for job in await queue.dequeue("work", batch_size=3)]
        [job] = await other.dequeue("work")
        assert ("c", b"for c", 1) == (job.id, job.payload, job.attempt)
        assert ["d"] == [job.id for job in await queue.dequeue("work")]
        await queue.ack(job)
        assert 4 == len(await ids_in(storage))


@both
@in_virtual_time
async def test_jobs_are_created_when_they_are_committed_and_delays_count_from_then(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        staged = block("soon", delay=10)
        await asyncio.sleep(3600)
        await queue.apply(EnqueueStaged([staged, block("now")]))
        state = {job.id: job for job in (await queue.read_state()).jobs}
        assert VirtualClock().now() == state["soon"].created_at == state["now"].created_at
        assert timedelta(seconds=10) == state["soon"].run_at - state["soon"].created_at
        assert ["now"] == [job.id for job in await queue.dequeue(batch_size=9)]
        assert ["soon"] == [job.id for job in await queue.dequeue(batch_size=9, wait=11)]


@both
@in_virtual_time
async def test_staged_jobs_come_behind_all_jobs_that_a_rival_has_committed(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as rival:
        await queue.enqueue("work", b"", job_id="first")
        await rival.enqueue("work", b"", job_id="rival's")  # the copy in `queue` is now out of date
        await queue.apply(EnqueueStaged([block("a", "b")]))
        await rival.apply(EnqueueStaged([block("c")]))
        await queue.enqueue("work", b"", job_id="last")
        assert ["first", "rival's", "a", "b", "c", "last"] == await ids_in(storage)


@both
@in_virtual_time
async def test_rivals_that_stage_at_the_same_time_all_succeed(kind):
    storage = store()
    storage.latency = 0.01
    rivals = [queue_on(kind, storage) for _ in range(4)]
    for rival in rivals:
        await rival.__aenter__()
    added = [
        rival.apply(EnqueueStaged([block(f"{one}-{number}")], transaction=(f"app {one}", number)))
        for one, rival in enumerate(rivals)
        for number in range(5)
    ]
    plain = [rival.enqueue("work", b"", job_id=f"plain {one}") for one, rival in enumerate(rivals)]
    receipts = await asyncio.gather(*added, *plain)
    assert 20 == sum(each[0].added for each in receipts[:20])
    assert 24 == len(set(await ids_in(storage)))
    for rival in rivals:
        await rival.__aexit__(None, None, None)


@both
@in_virtual_time
async def test_staged_jobs_are_worked_on_like_any_others(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.apply(EnqueueStaged([block("a", "b", "c", max_attempts=1)]))
        first, second = await queue.dequeue(batch_size=2)
        await queue.nack(first, error="no")
        await queue.nack(second, charge=False)
        assert 1 == await queue.redrive()
        await queue.cancel("c")
        assert ["b", "a"] == [job.id for job in await queue.dequeue(batch_size=9)]


# All or nothing


@both
@in_virtual_time
async def test_staged_jobs_that_do_not_fit_are_refused_as_a_whole(kind):
    storage = store()
    async with queue_on(kind, storage, limits=Limits(blob_bytes=3000)) as queue:
        await queue.enqueue("work", b"", job_id="before")
        writes = storage.writes
        with pytest.raises(QueueFullError, match=r"no room for 20 jobs of \d+ bytes"):
            await queue.apply(EnqueueStaged([block(*(f"{n}" for n in range(20)))], transaction=("app", 1)))
        assert [None] == await queue.apply(LastTransaction("app"))
        assert (["before"], writes) == (await ids_in(storage), storage.writes)
        [receipt] = await queue.apply(EnqueueStaged([block("a")], transaction=("app", 1)))
        assert (1, False) == (receipt.added, receipt.repeated)


@both
@in_virtual_time
async def test_a_keyed_job_that_does_not_fit_undoes_the_placed_lines(kind):
    storage = store()
    async with queue_on(kind, storage, limits=Limits(blob_bytes=3000)) as queue:
        await queue.enqueue("work", b"", job_id="before")
        keyed = [block(f"{n}", unique_key=f"key {n}") for n in range(20)]
        call = queue.apply(EnqueueStaged([block("a", "b"), *keyed], transaction=("app", 1)))
        beside = queue.enqueue("work", b"", job_id="beside")
        results: Any = await asyncio.gather(call, beside, return_exceptions=True)
        failed, job = results
        assert isinstance(failed, QueueFullError)
        assert ("beside", ["before", "beside"]) == (job.id, await ids_in(storage))
        assert [None] == await queue.apply(LastTransaction("app"))
        assert [job.id] == [found.id for found in await queue.dequeue(batch_size=9)][1:]


@both
@in_virtual_time
async def test_a_taken_key_is_counted_or_undoes_everything(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"", job_id="holder", unique_key="taken")
        staged = [block("a"), block("x", "y", unique_key="taken"), block("z", unique_key="free")]
        with pytest.raises(DuplicateJobError):
            await queue.apply(EnqueueStaged(staged, transaction=("app", 1), on_conflict="raise"))
        assert ["holder"] == await ids_in(storage)
        [receipt] = await queue.apply(EnqueueStaged(staged, transaction=("app", 1)))
        assert StagedReceipt(added=2, taken=2) == receipt
        keys = {job.unique_key for job in (await queue.read_state()).jobs}
        assert ({"taken", "free", None}, 3) == (keys, len(await ids_in(storage)))


@both
@in_virtual_time
async def test_a_key_that_comes_twice_is_counted_as_taken_the_second_time(kind):
    async with queue_on(kind, store()) as queue:
        staged = [block("x", "y", unique_key="one"), block("z", unique_key="one")]
        assert [StagedReceipt(added=1, taken=2)] == await queue.apply(EnqueueStaged(staged))
        assert [StagedReceipt(taken=3)] == await queue.apply(EnqueueStaged(staged))


@both
@in_virtual_time
async def test_a_refused_operation_of_the_same_apply_undoes_staged_jobs(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"", job_id="before")
        [before] = await queue.dequeue()
        with pytest.raises(JobNotFoundError):
            await queue.apply(
                EnqueueStaged([block("a")], transaction=("app", 1)), Ack(before), Ack(before.claim._replace(attempt=7))
            )
        await queue.enqueue("work", b"", job_id="after")
        assert ["before", "after"] == await ids_in(storage)
        assert [None] == await queue.apply(LastTransaction("app"))


@both
@in_virtual_time
async def test_staged_jobs_share_an_apply_with_other_operations(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"")
        [job] = await queue.dequeue()
        writes = storage.landed
        await queue.apply(Ack(job), EnqueueStaged([block("a")]), Enqueue("work", b"", job_id="b"))
        assert (["a", "b"], writes + 1) == (await ids_in(storage), storage.landed)


# Transactions


@both
@in_virtual_time
async def test_a_repeated_transaction_adds_nothing_and_writes_nothing(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        assert [None] == await other.apply(LastTransaction("app"))
        [first] = await queue.apply(EnqueueStaged([block("a")], transaction=("app", 3)))
        assert StagedReceipt(added=1) == first
        writes = storage.landed
        for version in (3, 2, 0):
            for each in (queue, other):
                [again] = await each.apply(EnqueueStaged([block(f"again {version}")], transaction=("app", version)))
                assert StagedReceipt(repeated=True, version=3) == again
        assert [3] == await other.apply(LastTransaction("app")) == await queue.apply(LastTransaction("app"))
        assert (["a"], writes) == (await ids_in(storage), storage.landed)
        [later] = await other.apply(EnqueueStaged([block("b")], transaction=Transaction("app", 10)))
        assert StagedReceipt(added=1, version=3) == later
        [another] = await queue.apply(EnqueueStaged([block("c")], transaction=("another app", 1)))
        assert StagedReceipt(added=1) == another


@both
@in_virtual_time
async def test_a_transaction_without_jobs_is_remembered_too(kind):
    async with queue_on(kind, store()) as queue:
        assert [StagedReceipt()] == await queue.apply(EnqueueStaged([], transaction=("app", 1)))
        assert [1] == await queue.apply(LastTransaction("app"))
        [again] = await queue.apply(EnqueueStaged([block("a")], transaction=("app", 1)))
        assert again.repeated


@both
@in_virtual_time
async def test_an_empty_staging_without_a_transaction_writes_nothing(kind):
    storage = store()
    async with queue_on(kind, storage) as queue:
        assert [StagedReceipt()] == await queue.apply(EnqueueStaged([]))
        assert 0 == storage.writes


@both
@in_virtual_time
async def test_the_last_transaction_is_read_from_the_store(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        await queue.enqueue("work", b"")
        await other.apply(EnqueueStaged([], transaction=("app", 5)))
        assert [5] == await queue.apply(LastTransaction("app"))


@both
@in_virtual_time
async def test_a_transaction_is_forgotten_with_a_commit_after_its_time(kind):
    async with queue_on(kind, store()) as queue:
        await queue.apply(EnqueueStaged([], transaction=Transaction("short", 1, keep=LONG_AGO)))
        await queue.apply(EnqueueStaged([], transaction=("long", 1)))
        await asyncio.sleep(3599)
        await queue.enqueue("work", b"")
        assert {"short", "long"} == set((await queue.read_state()).transactions)
        await asyncio.sleep(2)
        await queue.enqueue("work", b"")
        assert {"long"} == set((await queue.read_state()).transactions)
        assert [StagedReceipt(added=1)] == await queue.apply(EnqueueStaged([block("a")], transaction=("short", 1)))


@both
@in_virtual_time
async def test_the_transactions_nearest_their_expiry_go_first_if_there_are_too_many(kind):
    async with queue_on(kind, store()) as queue:
        for number in range(TRANSACTIONS_KEPT + 10):
            keep = timedelta(days=1 + (number + 100) % (TRANSACTIONS_KEPT + 10))
            await queue.apply(EnqueueStaged([], transaction=Transaction(f"app {number}", number, keep)))
        kept = (await queue.read_state()).transactions
        assert TRANSACTIONS_KEPT == len(kept)
        least = min(record.until for record in kept.values())
        assert least > VirtualClock().now().timestamp() + 10 * 86400
        newest = f"app {TRANSACTIONS_KEPT + 9}"
        assert newest in kept


@both
@in_virtual_time
async def test_transactions_outlive_other_commits_and_other_writers(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        await queue.apply(EnqueueStaged([], transaction=("app", 1)))
        for _ in range(3):
            await other.enqueue("work", b"")
            await queue.enqueue("work", b"")
        assert [1] == await other.apply(LastTransaction("app"))
