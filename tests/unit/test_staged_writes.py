"""Staged jobs in one commit with other calls, under every fault of its write, and what is refused before it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    CASConflictError,
    DeadlineExceededError,
    DirectQueue,
    InMemoryStorage,
    InvalidJobError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.models import QueueState
from jqueue.domain.operations import EnqueueStaged, LastTransaction, StagedReceipt, Transaction
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.staged_jobs import block, both, ids_in, queue_on, store
from tests.virtual_world import in_virtual_time

LONG_AGO = timedelta(hours=1)


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
            await asyncio.sleep(20)  # by now the queue polls rarely
        started = VirtualClock().now()
        await queue.apply(EnqueueStaged([block("a", "b", "c")]))
        found = await asyncio.gather(*waiting)
        assert ["a", "b", "c"] == sorted(job.id for [job] in found)
        assert VirtualClock().now() - started < timedelta(seconds=0.1)


@both
@in_virtual_time
async def test_claims_and_bare_ids_stay_valid_after_jobs_are_staged(kind):
    """The queue object reads the queue anew, and still knows the claims that it handed out."""
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
async def test_claims_that_ended_elsewhere_are_no_longer_watched(kind):
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


# Faults of the write


@both
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LOST_REQUEST, Fault.LANDS_LATER])
@in_virtual_time
async def test_staged_jobs_are_added_once_under_every_fault_of_the_write(kind, fault):
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
        storage.on_read(*[Fault.LOST_REQUEST] * 3)  # so that it cannot read at once
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
async def test_a_store_that_refuses_every_write_leaves_no_lines_placed():
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
async def test_a_deadline_during_the_write_leaves_an_outcome_that_can_be_resolved(kind, lands):
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
async def test_repeating_a_transaction_tells_if_the_cancelled_call_was_done(kind, lands):
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
async def test_a_lost_answer_does_not_carry_lines_into_the_next_commit():
    """After any failure behind the write, the next commit begins with a read."""
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


# Wrong arguments

staging: Any = EnqueueStaged  # takes them without the type checker's objection
asking: Any = LastTransaction


@pytest.mark.parametrize(
    "wrong",
    [
        staging(block("a")),
        staging(["a"]),
        staging([None]),
        staging(None),
        staging([block("a").encoded]),
        staging([], transaction="app"),
        staging([], transaction=("app",)),
        staging([], transaction=("app", 1, 2, 3)),
        staging([], transaction=("app", -1)),
        staging([], transaction=("app", 1.5)),
        staging([], transaction=("app", 2**63)),
        staging([], transaction=("app", True)),
        staging([], transaction=("", 1)),
        staging([], transaction=(None, 1)),
        staging([], transaction=("line\nbreak", 1)),
        staging([], transaction=Transaction("app", 1, keep=-1)),
        staging([], on_conflict="ignore"),
        asking(""),
        asking(None),
        asking(["app"]),
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
    with pytest.raises(InvalidJobError, match="pass it to a queue"):
        EnqueueStaged([block("a")]).apply(QueueState(), VirtualClock().now())


def test_the_repr_shows_no_payloads():
    shown = repr(EnqueueStaged([block("a"), block("b", unique_key="k")]))
    assert "for a" not in shown
    assert "Zm9yI" not in shown
    assert "for b" not in shown
