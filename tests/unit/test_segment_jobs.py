"""Jobs in segments: views show each once, in any version, purges end them without a look, due ones come in order."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from jqueue import InMemoryStorage, JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.operations.lookups import CountQueued, LookAtBacklog
from jqueue.domain.operations.segments import DropRows
from jqueue.domain.selection import Phase, Selection, phase_of, place_of
from jqueue.operations import Enqueue, RecordStep
from jqueue.testing import FakeClock
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import direct_queue, spilled


def deep_queue(storage, **options) -> Any:
    """Return a queue that moves all waiting jobs to segments."""
    return direct_queue(storage, clock=storage.storage.clock, limits=Limits(hot_bytes=1, **options))


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage(clock=FakeClock()))


async def filled(storage, *numbers) -> Any:
    """Return a queue with segments of some numbers of jobs, for entrypoints a, b and so on."""
    queue: Any = deep_queue(storage)
    for entrypoint, number in zip("abcdef", numbers, strict=False):
        await queue.enqueue_many([Enqueue(entrypoint, b"%d" % each) for each in range(number)])
        await spilled(queue)
    return queue


async def ids(jobs):
    return [job.id async for job in jobs]


# Views


async def test_a_job_that_is_tried_again_keeps_its_steps_in_a_segment_and_no_collection_removes_their_objects(storage):
    queue = await filled(storage, 3)
    [job] = await queue.dequeue("a")
    await queue.apply_each(RecordStep(job, "one", 1, "small"), RecordStep(job, "two", 1, "x" * 5000))
    await queue.nack(job)
    await spilled(queue)
    assert job.id not in [each.id for each in (await queue.read_state(hot=True)).jobs]
    storage.storage.clock.advance(timedelta(hours=2))
    assert 0 == await deep_queue(storage).collect()
    jobs = await deep_queue(storage).dequeue("a", batch_size=3)
    first, second = jobs[2].steps
    assert (job.id, "small") == (jobs[2].id, first.result)
    assert "x" * 5000 == await queue.step_result(jobs[2], second)


async def test_queued_jobs_are_counted_in_segments_and_beside_them(storage):
    queue: Any = deep_queue(storage)
    await queue.enqueue_many([Enqueue("a", b"")] * 30)
    await spilled(queue)
    await queue.dequeue(batch_size=4)
    jobs = [await queue.enqueue(name, b"") for name in "aab"]
    [counts, backlog] = await queue.apply(CountQueued(), LookAtBacklog(("a",)))
    assert {"a": 28, "b": 1} == counts
    assert backlog.jobs == 28
    assert backlog.oldest <= jobs[0].created_at


@pytest.mark.parametrize("seed", range(2))
async def test_jobs_of_the_object_and_of_segments_are_chosen_ordered_and_counted_as_one(storage, seed):
    queue: Any = deep_queue(storage)
    random, clock = Random(seed), storage.storage.clock
    start = clock.now()
    for _ in range(5):
        await queue.enqueue_many(
            Enqueue(
                random.choice("abc"),
                b"",
                random.randrange(3),
                delay=random.choice([None, None, 60, 3000]),
                expires_at=random.choice([None, None, start + timedelta(minutes=80)]),
            )
            for _ in range(12)
        )
        if random.randrange(3):
            await spilled(queue)
        for job in await queue.dequeue(random.choice("abc"), batch_size=random.randrange(6)):
            if random.randrange(2):
                await queue.nack(job, dead=True)
        await queue.claim_lease(random.choice("abc"), 3)
        clock.advance(timedelta(seconds=random.randrange(100)))
    await queue.enqueue("a", priority=1)
    view, every = await queue.view(), (await queue.read_state()).jobs
    assert sorted(job.id for job in every) == sorted(await ids(view.jobs(clock.now())))
    assert [job.id for job in every] == [(await view.find(job.id)).id for job in every]
    claims = [job.claimed_at for job in every if job.status is JobStatus.IN_PROGRESS]
    assert [(len(claims), min(claims))] == list(view.holders().values())
    phases = ((), (Phase.READY,), (Phase.SCHEDULED,), (Phase.EXPIRED,), (Phase.IN_PROGRESS, Phase.DEAD))
    selections = [Selection(frozenset(each), frozenset(names)) for each in phases for names in ("", "ac")]
    for now in (clock.now(), clock.now() + timedelta(minutes=90)):
        expired = [job for job in every if phase_of(job, now) is Phase.EXPIRED]
        for selection in (*selections, Selection(older_than=90), Selection(id_prefix=every[0].id[:1])):
            chosen = sorted((job for job in every if selection.matches(job, now)), key=lambda job: place_of(job, now))
            ordered = [job async for job in view.jobs(now, selection, in_order=True)]
            assert [place_of(job, now) for job in chosen] == [place_of(job, now) for job in ordered]
            assert sorted(await ids(view.jobs(now, selection))) == sorted(job.id for job in ordered)
            first = await view.first_jobs(7, now, selection)
            assert (ordered[:7], len(ordered) > 7) == (first.jobs, first.more)
            if not expired or not {Phase.READY, Phase.SCHEDULED} & (selection.phases or set(Phase)):
                assert len(chosen) == await view.count(now, selection)


# Purges


WAITING = JobStatus.QUEUED


async def test_waiting_jobs_are_purged_without_a_look_at_their_rows(storage):
    await filled(storage, 12)
    queue: Any = deep_queue(storage)
    await queue.configure(history=timedelta(days=1))
    storage.object_calls.clear()
    assert 0 == await queue.purge(status=WAITING, entrypoint="b")
    assert 12 == await queue.purge(status=WAITING, entrypoint="a")
    assert "read_object" not in {name for name, _ in storage.object_calls}
    stats = await queue.stats()
    assert (0, 0, 12) == (stats.depth, stats.segments, stats.totals.removed)
    events = [event async for event in queue.history() if event.verb == "purge"]
    assert [("a", WAITING, None, 12)] == [(each.entrypoint, each.before, each.after, each.jobs) for each in events]


async def test_rows_are_given_up_without_reading_them_and_others_go_on(storage):
    queue = await filled(storage, 12)
    [name] = (await queue.read_state(hot=True)).segments
    await queue.peek(batch_size=2)  # loads rows that are given up
    assert [5] == await queue.apply(DropRows(name, [(1, 4), (10, 12)]))
    assert [0] == await queue.apply(DropRows("gone", [(0, 9)]))
    left = [b"0", *(b"%d" % place for place in range(4, 10))]
    assert left == [job.payload for job in await queue.dequeue(batch_size=12)]


# Scheduled jobs that are due


async def test_only_a_stale_lease_of_the_rows_that_are_given_up_is_ended(storage):
    queue = await filled(storage, 8, 8)
    claims = [await queue.claim_lease(entrypoint, 4, claim_timeout=60) for entrypoint in "ab"]
    name = claims[0].segment
    assert [4] == await queue.apply(DropRows(name, [(0, 8)])), "its worker may have read them"
    storage.storage.clock.advance(61)
    assert [4] == await queue.apply(DropRows(name, [(0, 8)]))
    entries = (await queue.read_state(hot=True)).segments
    assert [claims[1].id] == [name for name, each in entries.items() if each.is_leased]
