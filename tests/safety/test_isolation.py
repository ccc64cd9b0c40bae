"""Safety rules 8 and 9 of docs/reference/protocol.md: tests named after the ways to break them.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    Claim,
    ClaimLostError,
    InvalidJobError,
    JobNotFoundError,
    JobStatus,
    Limits,
    QueueFullError,
)
from jqueue.domain.draft import Draft
from jqueue.operations import Ack, Dequeue, Enqueue, Heartbeat, Operation
from jqueue.testing.faults import Fault

pytestmark = pytest.mark.virtual_time

# 8. One bad operation, job or payload never fails another's.


async def test_rule_8_a_refused_operation_does_not_affect_others_of_its_commit(world):
    async with world.process(kind=BrokerQueue) as queue:
        good = [await queue.enqueue("t", b"") for _ in range(2)]
        results: Any = await asyncio.gather(
            queue.enqueue("t", b"", job_id="new"),
            queue.cancel("nobody"),
            queue.cancel(good[0].id),
            queue.ack(good[1].id),
            queue.dequeue("t"),
            return_exceptions=True,
        )
        assert [JobNotFoundError, ClaimLostError] == [type(results[1]), type(results[3])]
        assert good[0].id == results[2].id
        assert [good[1].id] == [job.id for job in results[4]]
        assert {"new", good[1].id} == (await world.jobs()).keys()


async def test_rule_8_partial_changes_of_a_refused_operation_are_undone(world):
    """A replacement that finds no space must leave the job that it was to replace."""

    async with world.process(kind=BrokerQueue, limits=Limits(blob_bytes=20_000)) as queue:
        await queue.enqueue("t", b"", job_id="old", unique_key="key")
        results = await asyncio.gather(
            queue.enqueue("t", b"x" * 15_000, unique_key="key", on_conflict="replace"),
            queue.enqueue("t", b"", job_id="new"),
            return_exceptions=True,
        )
        assert isinstance(results[0], QueueFullError)
        assert {"old", "new"} == (await world.jobs()).keys()


async def test_rule_8_one_of_many_calls_of_a_commit_fails_alone(world):
    async with world.process(kind=BrokerQueue, limits=Limits(blob_bytes=20_000, hot_bytes=None)) as queue:
        sizes = [10] * 10 + [14_000] + [10] * 10
        results = await asyncio.gather(*(queue.enqueue("t", bytes(n)) for n in sizes), return_exceptions=True)
        assert [10] == [place for place, result in enumerate(results) if isinstance(result, QueueFullError)]
        jobs = await queue.dequeue("t", batch_size=20)
        writes = world.storage.writes
        claims = [job.claim for job in jobs]
        claims[7] = Claim(jobs[7].id, 2)
        results = await asyncio.gather(*(queue.ack(claim) for claim in claims), return_exceptions=True)
        assert [7] == [place for place, result in enumerate(results) if isinstance(result, ClaimLostError)]
        assert (writes + 1, [jobs[7].id]) == (world.storage.writes, list(await world.jobs()))


class Spoil(Operation, frozen=True):
    """An operation of a user's own, which brings a value that is not JSON."""

    def change(self, draft: Draft, now: datetime) -> None:
        draft.note(draft.header.finished, "spoiled", object())


async def test_rule_8_a_call_whose_values_cannot_be_encoded_fails_alone(world):
    async with world.process(kind=BrokerQueue) as queue:
        await queue.enqueue("t", b"")
        writes = world.storage.writes
        calls = [queue.enqueue("t", b"", job_id=f"{number}") for number in range(20)]
        calls[7:7] = [queue.apply(Enqueue("t", b"", job_id="undone"), Spoil())]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [7] == [place for place, result in enumerate(results) if isinstance(result, InvalidJobError)]
        assert writes + 1 == world.storage.writes
        assert 21 == len(await world.jobs())


# 9. apply(op, op, …) is all or nothing.


async def test_rule_9_one_refused_operation_undoes_its_apply_and_nothing_else(world):
    async with world.process(kind=BrokerQueue) as queue:
        await queue.enqueue("t", b"", job_id="a")
        [job] = await queue.dequeue("t")
        results = await asyncio.gather(
            queue.enqueue("t", b"", job_id="before"),
            queue.apply(Enqueue("t", b"", job_id="half"), Ack(job), Ack("nobody")),
            queue.enqueue("t", b"", job_id="after"),
            return_exceptions=True,
        )
        assert isinstance(results[1], JobNotFoundError)
        assert {"a", "before", "after"} == (await world.jobs()).keys()
        assert JobStatus.IN_PROGRESS == (await world.jobs())["a"].status


async def test_rule_9_a_lost_claim_among_heartbeats_undoes_its_apply(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a")
        [job] = await queue.dequeue("t")
        await queue.nack(job)
        with pytest.raises(ClaimLostError):
            await queue.apply(Enqueue("t", b"", job_id="half"), Heartbeat((job,)))
        assert ["a"] == list(await world.jobs())


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.LOST_REQUEST])
async def test_rule_9_apply_lands_whole_under_faults(world, kind, fault):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a")
        [job] = await queue.dequeue("t")
        world.storage.on_write(fault)
        results = await queue.apply(Ack(job), Enqueue("t", b"", job_id="b"), Dequeue("t"))
        assert [None, "b", ["b"]] == [results[0], results[1].id, [each.id for each in results[2]]]
        assert ["b"] == list(await world.jobs())
