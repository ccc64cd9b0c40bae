"""Safety rules 8 and 9 of docs/reference/protocol.md: tests named after the ways to break them.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio
from typing import Any

import pytest

from jqueue import BrokerQueue, ClaimLostError, InvalidJobError, JobNotFoundError, JobStatus, Limits, QueueFullError
from jqueue.operations import Ack, Dequeue, Enqueue, Heartbeat
from jqueue.testing.faults import Fault
from jqueue.testing.virtual_time import run
from tests.safety.world import World

# 8. One bad operation, job or payload never fails another's.


def test_rule_8_a_refused_operation_does_not_affect_others_of_its_commit():
    async def main():
        world = World()
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

    run(main())


def test_rule_8_partial_changes_of_a_refused_operation_are_undone():
    """A replacement that finds no space must leave the job that it was to replace."""

    async def main():
        world = World()
        async with world.process(kind=BrokerQueue, limits=Limits(blob_bytes=20_000)) as queue:
            await queue.enqueue("t", b"", job_id="old", unique_key="key")
            results = await asyncio.gather(
                queue.enqueue("t", b"x" * 15_000, unique_key="key", on_conflict="replace"),
                queue.enqueue("t", b"", job_id="new"),
                return_exceptions=True,
            )
            assert isinstance(results[0], QueueFullError)
            assert {"old", "new"} == (await world.jobs()).keys()

    run(main())


def test_rule_8_a_job_that_could_not_be_read_back_is_refused_before_the_commit(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"fine")
            before = await world.memory.read()
            for bad in (
                {"payload": "abcd"},
                {"priority": 10**5000},
                {"entrypoint": "a\ud800"},
                {"headers": {"name": "\ud800"}},
                {"job_id": ""},
                {"unique_key": "\n"},
            ):
                with pytest.raises(InvalidJobError):
                    await queue.enqueue(**{"entrypoint": "t", "payload": b"", **bad})
            assert before == await world.memory.read()

    run(main())


def test_rule_8_a_job_that_cannot_be_read_is_set_aside_and_kept(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="bad")
            await queue.enqueue("t", b"", job_id="good")
            data, etag = await world.memory.read()
            broken = data.replace(b'"bad": {"entrypoint": "t"', b'"bad": {"entrypoint": 7')
            await world.memory.write(broken, etag)
            [job] = await queue.dequeue(batch_size=10)
            await queue.ack(job)
            assert "good" == job.id
            assert 1 == (await queue.stats()).unreadable
            data, etag = await world.memory.read()
            await world.memory.write(data.replace(b'"entrypoint": 7', b'"entrypoint": "t"'), etag)
            assert ["bad"] == [each.id for each in await queue.dequeue(batch_size=10)]

    run(main())


# 9. apply(op, op, …) is all or nothing.


def test_rule_9_one_refused_operation_undoes_its_apply_and_nothing_else():
    async def main():
        world = World()
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

    run(main())


def test_rule_9_a_lost_claim_among_heartbeats_undoes_its_apply(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            [job] = await queue.dequeue("t")
            await queue.nack(job)
            with pytest.raises(ClaimLostError):
                await queue.apply(Enqueue("t", b"", job_id="half"), Heartbeat((job,)))
            assert ["a"] == list(await world.jobs())

    run(main())


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RESENT, Fault.LANDS_LATER, Fault.LOST_REQUEST])
def test_rule_9_apply_lands_whole_under_faults(kind, fault):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            [job] = await queue.dequeue("t")
            world.storage.on_write(fault)
            results = await queue.apply(Ack(job), Enqueue("t", b"", job_id="b"), Dequeue("t"))
            assert [None, "b", ["b"]] == [results[0], results[1].id, [each.id for each in results[2]]]
            assert ["b"] == list(await world.jobs())

    run(main())
