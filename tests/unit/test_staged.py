"""Staged jobs are enqueued in one commit, all or none, and once for each transaction, whatever happens to the write."""

import asyncio
from datetime import timedelta

import pytest

from jqueue import (
    BrokerQueue,
    CASConflictError,
    DeadlineExceededError,
    DirectQueue,
    DuplicateJobError,
    Enqueue,
    InMemoryStorage,
    InvalidJobError,
    JobNotFoundError,
    Limits,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.core.staged import StagedWriter, read_staged
from jqueue.domain.commits import TRANSACTIONS_KEPT
from jqueue.domain.models import QueueState
from jqueue.domain.operations import Ack, EnqueueStaged, LastTransaction, StagedReceipt, Transaction
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
LONG_AGO = timedelta(hours=1)


def block(*ids, entrypoint="work", **details):
    """Staged jobs with these ids, as somebody else reads them."""
    writer = StagedWriter()
    for job_id in ids:
        writer.add(job_id, entrypoint, b"for " + job_id.encode(), **details)
    return read_staged(writer.finish())


def queue_on(kind, storage, **options):
    return kind(storage, clock=VirtualClock(), **options)


def store():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()))


async def ids_in(storage):
    """The ids of all jobs in their order, as a reader sees them that knows nothing."""
    state = await DirectQueue(storage, clock=VirtualClock()).read_state()
    assert not state.set_aside
    places = [job.sequence for job in state.jobs]
    assert len(places) == len(set(places)), "two jobs have one place"
    return [job.id for job in sorted(state.jobs, key=lambda job: job.sequence)]


# What is added


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
async def test_places_are_behind_all_others_whatever_a_rival_has_committed_between(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as rival:
        await queue.enqueue("work", b"", job_id="first")
        await rival.enqueue("work", b"", job_id="rival's")  # the queue's copy is out of date now
        await queue.apply(EnqueueStaged([block("a", "b")]))
        await rival.apply(EnqueueStaged([block("c")]))
        await queue.enqueue("work", b"", job_id="last")
        assert ["first", "rival's", "a", "b", "c", "last"] == await ids_in(storage)


@both
@in_virtual_time
async def test_rivals_that_stage_at_the_same_time_all_get_through(kind):
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
async def test_what_has_no_room_is_refused_as_a_whole(kind):
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
async def test_a_keyed_job_without_room_undoes_the_lines_that_were_placed(kind):
    storage = store()
    async with queue_on(kind, storage, limits=Limits(blob_bytes=3000)) as queue:
        await queue.enqueue("work", b"", job_id="before")
        keyed = [block(f"{n}", unique_key=f"key {n}") for n in range(20)]
        call = queue.apply(EnqueueStaged([block("a", "b"), *keyed], transaction=("app", 1)))
        beside = queue.enqueue("work", b"", job_id="beside")
        failed, job = await asyncio.gather(call, beside, return_exceptions=True)
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
async def test_a_key_that_comes_twice_is_taken_the_second_time(kind):
    async with queue_on(kind, store()) as queue:
        staged = [block("x", "y", unique_key="one"), block("z", unique_key="one")]
        assert [StagedReceipt(added=1, taken=2)] == await queue.apply(EnqueueStaged(staged))
        assert [StagedReceipt(taken=3)] == await queue.apply(EnqueueStaged(staged))


@both
@in_virtual_time
async def test_an_operation_refused_beside_undoes_it(kind):
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
async def test_it_shares_an_apply_with_what_succeeds(kind):
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
async def test_nothing_staged_and_no_transaction_writes_nothing(kind):
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
async def test_of_too_many_transactions_those_go_that_would_be_forgotten_first(kind):
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


# In one commit with others


@in_virtual_time
async def test_calls_made_at_the_same_time_share_one_commit():
    storage = store()
    async with queue_on(BrokerQueue, storage) as queue:
        await queue.enqueue("work", b"", job_id="before")
        [before] = await queue.dequeue()
        writes = storage.landed
        results = await asyncio.gather(
            queue.apply(EnqueueStaged([block("a", "b")], transaction=("app", 1))),
            queue.enqueue("work", b"", job_id="plain"),
            queue.apply(EnqueueStaged([block("c")], transaction=("other", 1))),
            queue.apply(EnqueueStaged([block("never")], transaction=("app", 1))),
            queue.dequeue("work", batch_size=9),
            queue.ack(before),
        )
        assert writes + 1 == storage.landed
        assert ([2, 1, 0], True) == ([results[at][0].added for at in (0, 2, 3)], results[3][0].repeated)
        assert ["plain"] == [job.id for job in results[4]]
        assert ["a", "b", "plain", "c"] == await ids_in(storage)
        assert ["a", "b", "c"] == [job.id for job in await queue.dequeue("work", batch_size=9)]


@both
@pytest.mark.parametrize("together", [True, False])
@in_virtual_time
async def test_a_dequeue_that_waits_gets_staged_jobs_at_once(kind, together):
    async with queue_on(kind, store()) as queue:
        await queue.enqueue("other", b"")
        waiting = [asyncio.create_task(queue.dequeue("work", wait=60)) for _ in range(3)]
        if not together:
            await asyncio.sleep(20)  # by now it looks rarely
        started = VirtualClock().now()
        await queue.apply(EnqueueStaged([block("a", "b", "c")]))
        found = await asyncio.gather(*waiting)
        assert ["a", "b", "c"] == sorted(job.id for [job] in found)
        assert VirtualClock().now() - started < timedelta(seconds=0.1)


@both
@in_virtual_time
async def test_claims_and_bare_ids_from_before_are_good_afterwards(kind):
    """The queue object reads the queue anew; what it handed out is its own all the same."""
    async with queue_on(kind, store(), stale_timeout=60) as queue:
        await queue.enqueue("work", b"", job_id="mine")
        await queue.dequeue()
        await queue.apply(EnqueueStaged([block("a")]))
        await queue.heartbeat("mine")
        await queue.apply(EnqueueStaged([block("b")]))
        await queue.ack("mine")
        assert ["a", "b"] == [job.id for job in (await queue.read_state()).jobs]


@both
@in_virtual_time
async def test_a_claim_that_stands_still_is_revoked_in_its_time_although_jobs_are_staged_between(kind):
    async with queue_on(kind, store(), stale_timeout=60) as queue:
        await queue.enqueue("work", b"", job_id="lost")
        await queue.dequeue()
        for number in range(12):
            assert [] == await queue.dequeue("work"), f"revoked after {5 * number} s"
            await asyncio.sleep(5)
            await queue.apply(EnqueueStaged([block(f"{number}", entrypoint="other")]))
        assert ["lost"] == [job.id for job in await queue.dequeue("work")]


@both
@in_virtual_time
async def test_claims_that_ended_elsewhere_are_watched_no_more(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        for number in range(50):
            await other.enqueue("work", b"", job_id=f"{number}")
            [job] = await other.dequeue("work")
            await queue.apply(EnqueueStaged([block(f"sees {number}", entrypoint="other")]))
            await other.ack(job)
        await queue.enqueue("work", b"")
        await queue.apply(LastTransaction("app"))
        assert {} == queue._engine.watch._seen


# Whatever happens to the write


@both
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LOST_REQUEST, Fault.LANDS_LATER])
@in_virtual_time
async def test_what_a_fault_does_to_the_write_is_found_out_and_the_jobs_are_added_once(kind, fault):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"", job_id="before")
        storage.on_write(fault)
        [receipt] = await queue.apply(EnqueueStaged([block("a", "b")], transaction=("app", 1)))
        assert StagedReceipt(added=2) == receipt
        await asyncio.sleep(5)
        assert ["before", "a", "b"] == await ids_in(storage)
        await queue.enqueue("work", b"", job_id="after")
        assert ["before", "a", "b", "after"] == await ids_in(storage)
        assert ["before", "a", "b", "after"] == [job.id for job in await queue.dequeue(batch_size=9)]


@both
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT])
@in_virtual_time
async def test_jobs_that_landed_and_were_worked_on_meanwhile_are_not_added_again(kind, fault):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as other:
        await queue.enqueue("nobody's", b"", job_id="before")
        storage.on_write(fault)
        storage.on_read(*[Fault.LOST_REQUEST] * 3)  # it cannot look at once
        call = asyncio.create_task(queue.apply(EnqueueStaged([block("a", "b")])))
        while storage.landed < 2:
            await asyncio.sleep(0.001)
        storage._read_faults.clear()
        for job in await other.dequeue("work", batch_size=2):
            await other.ack(job)
        [receipt] = await call
        assert StagedReceipt(added=2) == receipt
        assert ["before"] == await ids_in(storage)


@both
@in_virtual_time
async def test_a_commit_lost_to_a_rival_adds_the_jobs_once_behind_the_rivals(kind):
    storage = store()
    async with queue_on(kind, storage) as queue, queue_on(kind, storage) as rival:
        await queue.enqueue("work", b"", job_id="first")
        storage.latency = 0.1
        call = asyncio.create_task(queue.apply(EnqueueStaged([block("a", "b")], transaction=("app", 1))))
        await rival.apply(EnqueueStaged([block("c")], transaction=("other", 0)))
        receipt = (await call)[0]
        assert 2 == receipt.added
        assert {"first", "a", "b", "c"} == set(await ids_in(storage))
        assert [1] == await rival.apply(LastTransaction("app"))


@in_virtual_time
async def test_a_store_that_refuses_for_good_leaves_nothing_placed():
    class Refusing(FaultyStorage):
        refuses = False

        async def write(self, content, if_match=None):
            if self.refuses:
                raise CASConflictError("always somebody else")
            return await super().write(content, if_match)

    storage = Refusing(InMemoryStorage())
    queue = queue_on(DirectQueue, storage, max_retries=2)
    await queue.enqueue("work", b"", job_id="before")
    storage.refuses = True
    with pytest.raises(UnknownOutcomeError):  # the etag has never moved
        await queue.apply(EnqueueStaged([block("a")], transaction=("app", 1)))
    storage.refuses = False
    await queue.enqueue("work", b"", job_id="after")
    assert ["before", "after"] == await ids_in(storage)
    assert [StagedReceipt(added=1)] == await queue.apply(EnqueueStaged([block("a")], transaction=("app", 1)))


@both
@pytest.mark.parametrize("lands", [True, False])
@in_virtual_time
async def test_a_deadline_that_passes_meanwhile_leaves_an_outcome_that_can_be_resolved(kind, lands):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"", job_id="before")
        storage.on_write(Fault.HANGS_AFTER if lands else Fault.HANGS)
        with pytest.raises(UnknownOutcomeError) as raised:
            await queue.apply(EnqueueStaged([block("a")], transaction=("app", 4)), deadline=2)
        if lands:
            assert [StagedReceipt(added=1)] == await raised.value.resolve(timeout=60)
        else:
            with pytest.raises(DeadlineExceededError):
                await raised.value.resolve(timeout=60)
        [last] = await queue.apply(LastTransaction("app"))
        assert (["before", "a"], 4) == (await ids_in(storage), last) if lands else (["before"], None)


@both
@pytest.mark.parametrize("lands", [True, False])
@in_virtual_time
async def test_a_caller_who_leaves_finds_by_the_transaction_whether_it_was_done(kind, lands):
    storage = store()
    async with queue_on(kind, storage) as queue:
        await queue.enqueue("work", b"", job_id="before")
        storage.on_write(Fault.LOST_ANSWER if lands else Fault.LOST_REQUEST)
        call = asyncio.create_task(queue.apply(EnqueueStaged([block("a")], transaction=("app", 1))))
        while storage.writes < 2:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        [again] = await queue.apply(EnqueueStaged([block("a")], transaction=("app", 1)))
        assert again.repeated is lands
        assert ["before", "a"] == await ids_in(storage)


@in_virtual_time
async def test_a_store_that_breaks_between_blocks_and_answer_does_not_keep_lines_for_the_next_commit():
    """Whatever fails after the write, the next commit begins with a read."""
    storage = store()
    queue = queue_on(DirectQueue, storage)
    await queue.enqueue("work", b"", job_id="before")
    storage.error = lambda: StorageError("half a response")
    storage.on_write(Fault.LOST_ANSWER)
    storage.on_read(Fault.LOST_REQUEST)
    await queue.apply(EnqueueStaged([block("a")]))
    for number in range(3):
        await queue.enqueue("work", b"", job_id=f"after {number}")
    assert ["before", "a", "after 0", "after 1", "after 2"] == await ids_in(storage)


# What is wrong is said at once


@pytest.mark.parametrize(
    "wrong",
    [
        EnqueueStaged(block("a")),
        EnqueueStaged(["a"]),
        EnqueueStaged([None]),
        EnqueueStaged(None),
        EnqueueStaged([block("a").encoded]),
        EnqueueStaged([], transaction="app"),
        EnqueueStaged([], transaction=("app",)),
        EnqueueStaged([], transaction=("app", 1, 2, 3)),
        EnqueueStaged([], transaction=("app", -1)),
        EnqueueStaged([], transaction=("app", 1.5)),
        EnqueueStaged([], transaction=("app", 2**63)),
        EnqueueStaged([], transaction=("app", True)),
        EnqueueStaged([], transaction=("", 1)),
        EnqueueStaged([], transaction=(None, 1)),
        EnqueueStaged([], transaction=("line\nbreak", 1)),
        EnqueueStaged([], transaction=Transaction("app", 1, keep=-1)),
        EnqueueStaged([], on_conflict="ignore"),
        LastTransaction(""),
        LastTransaction(None),
        LastTransaction(["app"]),
    ],
    ids=repr,
)
@in_virtual_time
async def test_wrong_arguments_are_refused_before_anything_is_sent(wrong):
    storage = store()
    queue = queue_on(DirectQueue, storage)
    with pytest.raises(InvalidJobError) as raised:
        await queue.apply(wrong)
    assert "\n" not in str(raised.value)
    assert (0, 0) == (storage.reads, storage.writes)


def test_staged_jobs_cannot_be_added_to_a_value():
    with pytest.raises(InvalidJobError, match="by a queue"):
        EnqueueStaged([block("a")]).apply(QueueState(), VirtualClock().now())


def test_payloads_are_not_shown():
    shown = repr(EnqueueStaged([block("a"), block("b", unique_key="k")]))
    assert "for a" not in shown
    assert "Zm9yI" not in shown
    assert "for b" not in shown
