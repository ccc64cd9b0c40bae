"""A short list of a deep queue: the same jobs and numbers as from a look at every job, and few reads."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from typer.testing import CliRunner

from jqueue import InMemoryStorage, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.ls import _by_phase, find_jobs, jobs_by_phase
from jqueue.domain.selection import Phase, Selection
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import spilled, tiny_queue

CHOICES = (
    Selection(),
    Selection(frozenset({Phase.READY})),
    Selection(frozenset({Phase.SCHEDULED, Phase.DEAD})),
    Selection(frozenset(), frozenset({"b"})),
    Selection(frozenset({Phase.IN_PROGRESS}), frozenset({"a"})),
)


async def filled(storage):
    random, queue = Random(7), tiny_queue(storage, most_rows=16)
    for _ in range(8):
        await queue.enqueue_many(
            [
                Enqueue(random.choice("ab"), b"", priority=random.randrange(3), delay=random.choice([0, 60, 3600]))
                for _ in range(20)
            ]
        )
        await queue.dequeue(random.choice("ab"), batch_size=3)
        await spilled(queue)
    return queue


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("minutes", [0, 10])
async def test_a_limited_list_has_the_first_jobs_of_the_whole_list_and_the_number_of_the_others(minutes, ranges):
    queue = await filled(InMemoryStorage())
    if ranges:
        claim = await queue.claim_range("a", 10)
        assert claim is not None
    view = await queue.view()
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    for selection in CHOICES:
        every, place = await find_jobs(view, now, selection, None, None, reverse=False), _by_phase(now)
        for limit in (1, 5, 40, 1000):
            found = await find_jobs(view, now, selection, None, limit, reverse=False)
            assert [*map(place, every.jobs[:limit])] == [*map(place, found.jobs)]
            assert len(every.jobs) == len(found.jobs) + found.more


@pytest.mark.parametrize("ranges", [False, True])
@pytest.mark.parametrize("minutes", [0, 10])
async def test_a_list_that_is_read_as_it_is_written_equals_the_sorted_list(minutes, ranges):
    queue = await filled(InMemoryStorage())
    soon = datetime.now(UTC) + timedelta(minutes=5)
    await queue.enqueue_many([Enqueue("a", b"", 9, expires_at=soon) for _ in range(3)])
    await spilled(queue)
    [dead, _] = await queue.dequeue("b", batch_size=2)
    await queue.nack(dead, dead=True)
    if ranges:
        assert await queue.claim_range("a", 10) is not None
    view = await queue.view()
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    for selection in (*CHOICES, Selection(frozenset({Phase.EXPIRED})), Selection(id_prefix="a")):
        every, place = await find_jobs(view, now, selection, None, None, reverse=False), _by_phase(now)
        found = [job async for job in jobs_by_phase(view, selection, now)]
        assert sorted(job.id for job in every.jobs) == sorted(job.id for job in found)
        assert [*map(place, every.jobs)] == [*map(place, found)]


def test_a_long_list_is_written_before_a_damaged_segment_is_named(tmp_path):
    path = tmp_path / "queue.json"

    async def fill():
        async with tiny_queue(LocalFileSystemStorage(path), most_rows=1500) as queue:
            await queue.enqueue_many([Enqueue("a", b"") for _ in range(1500)])
            await spilled(queue)
            await queue.enqueue_many([Enqueue("b", b"") for _ in range(4)])
            await spilled(queue)

    asyncio.run(fill())
    folder = tmp_path / "queue.json.segments"
    [lost] = [each for each in folder.iterdir() if b'"entrypoint": "b"' in each.read_bytes()]
    lost.unlink()
    result = CliRunner().invoke(app, ["ls", str(path)], catch_exceptions=False)
    assert (2, 1501) == (result.exit_code, len(result.stdout.splitlines()))
    assert lost.name in result.stderr
    assert 1500 == len(CliRunner().invoke(app, ["ls", str(path), "--json"]).stdout.splitlines()[:-1])


async def test_a_limited_list_reads_only_the_rows_that_come_first():
    storage = FaultyObjects(InMemoryStorage())
    queue = tiny_queue(storage)
    for _ in range(6):
        await queue.enqueue_many([Enqueue("a", b"") for _ in range(40)])
        await spilled(queue)
    view, now = await queue.view(), datetime.now(UTC)
    storage.object_calls.clear()
    found = await find_jobs(view, now, Selection(), None, 3, reverse=False)
    assert (3, 237) == (len(found.jobs), found.more)
    assert 2 == len(storage.object_calls)  # the index and the first chunk of one segment
