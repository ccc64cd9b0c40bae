"""Jobs in segments: views show each once, in any version, purges end them without a look, due ones come in order."""

from collections import Counter
from contextlib import aclosing
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from jqueue import InMemoryStorage, JobNotFoundError, JobStatus, JQueueError
from jqueue.domain.draft import Draft
from jqueue.domain.limits import Limits
from jqueue.domain.models import record_of
from jqueue.domain.operations.lookups import CountQueued, LookAtBacklog
from jqueue.domain.operations.segments import DropRows
from jqueue.domain.segment_rows import RowsMissingError
from jqueue.domain.selection import Phase, Selection, phase_of, place_of
from jqueue.operations import Cancel, Enqueue, Operation, Purge
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


async def test_an_iteration_yields_each_job_of_its_version_once_while_others_follow_it(storage):
    queue = await filled(storage, 30, 10)
    [claimed] = await queue.dequeue("a")
    async with aclosing(direct_queue(storage).iterate_jobs()) as jobs:
        found = [await anext(jobs)]
        await queue.ack_many(await queue.dequeue(batch_size=40))
        assert 0 == (await queue.stats()).depth
        found += [job async for job in jobs]
    assert [*"a" * 30, *"b" * 10] == sorted(job.entrypoint for job in found)
    assert len(found) == len({job.id for job in found})
    assert claimed == next(job for job in found if job.status is JobStatus.IN_PROGRESS)


class AsksForRows(Operation, frozen=True):
    """A faulty operation: it asks for rows although no segment is there."""

    def change(self, draft, now):
        """Change nothing."""
        raise RowsMissingError([])


async def test_no_job_has_an_id_that_begins_with_half_a_character(storage):
    queue = await filled(storage, 3)
    assert [] == await ids(queue.iterate_jobs(id_prefix="\udcff"))
    assert 3 == len(await ids(queue.iterate_jobs(id_prefix="")))


async def test_an_operation_that_would_ask_for_rows_for_ever_fails_alone(storage):
    queue: Any = deep_queue(storage)
    failed, job = await queue.apply_each(AsksForRows(), Enqueue("a", b""))
    assert isinstance(failed, JQueueError)
    assert job.entrypoint == "a"


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


async def test_a_state_has_every_job_or_those_of_the_object_alone(storage):
    queue: Any = deep_queue(storage)
    added = await queue.enqueue_many([Enqueue("a", b"%d" % number) for number in range(30)])
    await spilled(queue)
    [claimed] = await queue.dequeue("a")
    state, hot = await queue.read_state(), await queue.read_state(hot=True)
    assert {job.id: job.payload for job in added} == {job.id: job.payload for job in state.jobs}
    assert claimed == state.find(claimed.id)
    assert ({}, {}) == (state.segments, state.ranges), "so that no job is counted twice"
    assert 30 == len(hot.jobs) + sum(segment.waiting for segment in hot.segments.values())
    assert len(hot.jobs) < 30


@pytest.mark.parametrize("seed", range(3))
async def test_the_figures_equal_a_count_of_all_jobs_one_by_one(storage, seed):
    queue: Any = deep_queue(storage)
    random, clock = Random(seed), storage.storage.clock
    for _ in range(6):
        await queue.enqueue_many(
            Enqueue(random.choice("abc"), b"", random.randrange(3), delay=random.choice([None, None, 600, 3000]))
            for _ in range(random.randrange(1, 12))
        )
        claimed = await queue.dequeue(random.choice("abc"), batch_size=random.randrange(1, 9))
        await queue.nack_many(claimed[:2], delay=random.choice([0, 600]))
        waiting = await ids(queue.iterate_jobs(JobStatus.QUEUED))
        for job_id in random.sample(waiting, len(waiting) // 8):
            await queue.cancel(job_id)
        if random.randrange(3):
            await spilled(queue)
        clock.advance(timedelta(seconds=random.randrange(100)))
        view = await queue.view()
        for minutes in (0, random.randrange(60), 90):
            now = clock.now() + timedelta(minutes=minutes)
            jobs = [job async for job in view.jobs(now) if job.status is JobStatus.QUEUED]
            ready = [job for job in jobs if (job.run_at or now) <= now]
            stats = await view.stats(now)
            assert (len(ready), len(jobs) - len(ready)) == (stats.depth, stats.scheduled)
            assert Counter(job.entrypoint for job in ready) == {
                name: each.depth for name, each in stats.entrypoints.items() if each.depth
            }
            oldest = min((job.run_at or job.created_at for job in ready), default=None)
            assert stats.oldest_ready_age == (None if oldest is None else now - oldest)


@pytest.mark.parametrize("seed", range(3))
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
        await queue.claim_range(random.choice("abc"), 3)
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


@pytest.mark.parametrize("way", ["nacked", "range given back", "range stale"])
async def test_ids_and_unique_keys_of_purged_rows_are_free_and_attempts_go_on(storage, way):
    queue: Any = deep_queue(storage)
    options = {"unique_key": "key"} if way == "nacked" else {}
    await queue.enqueue("a", job_id="one", **options)
    await spilled(queue)
    if way == "nacked":
        await queue.nack((await queue.dequeue())[0])
        await spilled(queue)
    else:
        claim = await queue.claim_range("a", 1)
        await (queue.requeue_stale(0) if way == "range stale" else queue.end_range(claim, worked_on=0))
    assert 1 == await queue.purge(status=WAITING)
    again = await queue.enqueue("a", b"again", job_id="one", **options)
    assert (b"again", WAITING) == (again.payload, again.status)
    [claimed] = await queue.dequeue()
    assert ("one", 2) == (claimed.id, claimed.attempt)


async def test_a_purge_counts_each_row_once_and_leaves_jobs_in_progress(storage):
    queue = await filled(storage, 12)
    claim = await queue.claim_range("a", 3)
    jobs = await queue.dequeue(batch_size=2)
    await queue.peek(batch_size=5)  # loads rows
    with pytest.raises(JobNotFoundError):
        await queue.apply(Purge(WAITING), Cancel("unknown"))
    assert 7 == (await queue.stats()).depth, "it was undone"
    assert 7 == await queue.purge(status=WAITING)
    version = (await queue.read_state()).version
    assert 0 == await queue.purge(status=WAITING)
    stats = await queue.stats()
    assert version == stats.version, "nothing changed, and something was written"
    assert (0, 5) == (stats.depth, stats.in_progress)
    await queue.ack_many(jobs)
    await queue.end_range(claim, worked_on=0)
    assert 3 == len(await queue.dequeue(batch_size=12))


async def test_rows_are_given_up_without_reading_them_and_others_go_on(storage):
    queue = await filled(storage, 12)
    [name] = (await queue.read_state(hot=True)).segments
    await queue.peek(batch_size=2)  # loads rows that are given up
    assert [5] == await queue.apply(DropRows(name, [(1, 4), (10, 12)]))
    assert [0] == await queue.apply(DropRows("gone", [(0, 9)]))
    left = [b"0", *(b"%d" % place for place in range(4, 10))]
    assert left == [job.payload for job in await queue.dequeue(batch_size=12)]


# Scheduled jobs that are due


async def scheduled(storage, minutes, batch_size=96):
    """Enqueue jobs that are due after some minutes each, wait until all are due, and return the order of ready jobs."""
    start, random = storage.storage.clock.now(), Random(1)
    queue = deep_queue(storage, batch_size=batch_size)
    await queue.enqueue_many([Enqueue("b", b"") for _ in range(20)])  # the numbers of the others begin behind these
    jobs = [
        Enqueue("a", b"", random.randrange(-2, 3), run_at=start + timedelta(minutes=random.choice(minutes)))
        for _ in range(96)
    ]
    made = [job.id for job in await queue.enqueue_many(jobs)]
    await spilled(queue)
    storage.storage.clock.advance(timedelta(days=1))
    return [job_id for _, _, job_id in sorted(zip([job.priority for job in jobs], range(96), made, strict=True))]


@pytest.mark.parametrize("batch_size", [96, 40], ids=["spilled", "bulk"])
async def test_due_rows_are_served_in_the_order_of_ready_jobs(storage, batch_size):
    expected = await scheduled(storage, range(60), batch_size)
    storage.object_calls.clear()
    queue, found = deep_queue(storage), []
    while jobs := await queue.dequeue("a"):
        found.append(jobs[0].id)
        await queue.ack(jobs[0])
    assert expected == found


async def test_only_a_stale_range_of_the_rows_that_are_given_up_is_ended(storage):
    queue = await filled(storage, 8, 8)
    claims = [await queue.claim_range(entrypoint, 4, claim_timeout=60) for entrypoint in "ab"]
    name = claims[0].segment
    assert [4] == await queue.apply(DropRows(name, [(0, 8)])), "its worker may have read them"
    storage.storage.clock.advance(61)
    assert [4] == await queue.apply(DropRows(name, [(0, 8)]))
    assert [claims[1].id] == list((await queue.read_state(hot=True)).ranges)


async def test_rows_of_ranges_are_dropped_with_all_others_that_are_loaded(storage):
    queue = await filled(storage, 8)
    claim = await queue.claim_range("a", 4)
    rows = Draft(await queue.read_state(hot=True)).jobs.rows
    rows.load(claim.segment, 0, list(enumerate(map(record_of, (await queue.read_state()).jobs))))
    assert 8 == rows.kept
    rows.unload()
    assert 0 == rows.kept
