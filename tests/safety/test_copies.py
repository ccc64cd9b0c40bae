"""Rules 1 and 2 for a process that was copied with its memory, and for what both copies do from then on."""

import asyncio

import pytest

from jqueue.domain.commits import CommitId, Verdict, recognise
from jqueue.domain.header import CommitRecord, Header
from jqueue.testing.faults import Fault
from tests.copied_memory import begin_as

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.LOST_ANSWER, Fault.RESENT])
async def test_two_copies_of_a_process_lose_none_of_each_others_jobs(world, kind, fault):
    async with world.process(kind=kind) as original, world.process(kind=kind) as copy:
        await original.enqueue("t", b"before")
        content, _ = await world.memory.read()
        await begin_as(copy, original, content)
        world.storage.latency = 0.01
        for _ in range(3):
            world.storage.on_write(fault)
            await asyncio.gather(*(queue.enqueue("t", b"") for queue in (original, copy) for _ in range(20)))
    assert 121 == len(await world.jobs())


async def test_the_copy_that_meets_a_commit_of_the_other_becomes_another_writer(world, kind):
    async with world.process(kind=kind) as original, world.process(kind=kind) as copy:
        await original.enqueue("t", b"before")
        await begin_as(copy, original, (await world.memory.read())[0])
        await original.enqueue("t", b"")
        await copy.enqueue("t", b"")
        await original.enqueue("t", b"")
    assert 2 == len((await world.honest().read_state()).commits)


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        (CommitRecord(4, 11, 0.0, 0.1, "own"), Verdict.LANDED),
        (CommitRecord(4, 11, 0.0, 0.1, "of a copy"), Verdict.NOT_DONE),
        (CommitRecord(3, 10, 0.0, 0.1, "earlier"), Verdict.NOT_DONE),
        (CommitRecord(5, 12, 0.0, 0.1, "of a copy"), Verdict.UNKNOWABLE),
    ],
    ids=["its record", "another one of its version", "an earlier one", "a later one, which has replaced its record"],
)
def test_a_write_is_told_from_that_of_a_copy_by_its_token(record, verdict):
    header = Header(version=12, commits={"writer": record})
    assert verdict is recognise(header, CommitId("writer", 4, "own", 10))
