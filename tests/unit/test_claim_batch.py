"""A batch of claims in one operation: leases where many jobs wait in a segment, and jobs one by one elsewhere."""

import random
from contextlib import asynccontextmanager

import pytest

from jqueue import DirectQueue, InMemoryStorage, Limits
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.leases import ClaimBatch, EndLease
from jqueue.domain.operations.lookups import HeldBy, LastSequence, LeasesHeldBy
from jqueue.domain.segments import Lease
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments, spilled
from tests.virtual_world import in_virtual_time


@asynccontextmanager
async def deep_queue(**sizes):
    clock = VirtualClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock, limits=Limits(batch_size=2000))
    async with in_segments(queue, **sizes):
        yield queue


def batch(jobs=1000, entrypoints=None, *, singles=1000, leases=100, least=8, **options):
    bounds = {"singles": singles, "leases": leases, "least": least}
    return ClaimBatch(entrypoints=entrypoints, jobs=jobs, **bounds, holder="me/1", **options)


async def filled(queue, *groups):
    """Enqueue groups of jobs, each a number and the options of its jobs, and move them to segments."""
    ids = []
    for number, options in groups:
        ids += [job.id for job in await queue.enqueue_many([Enqueue(**{"entrypoint": "t", **options})] * number)]
    await spilled(queue)
    return ids


async def jobs_of(queue, claimed):
    """The claimed jobs, in order of the claims."""
    jobs = []
    for each in claimed:
        jobs += [each] if isinstance(each, Job) else [job async for job in queue.read_lease(each)]
    return jobs


async def ids_of(queue, claimed):
    return [job.id for job in await jobs_of(queue, claimed)]


def ends_of(claimed):
    return [Ack(each) if isinstance(each, Job) else EndLease(each) for each in claimed]


@in_virtual_time
async def test_a_batch_has_leases_and_the_jobs_that_cannot_be_in_one_and_its_holder_finds_them():
    async with deep_queue() as queue:
        ids = await filled(queue, (20, {}), (3, {"keep_result": 60}), (20, {}), (2, {"concurrency_key": "a"}), (9, {}))
        [claimed] = await queue.apply(batch())
        assert sorted(ids[:44] + ids[45:]) == sorted(await ids_of(queue, claimed)), "one job waits for its key"
        assert 30 < sum(each.rows for each in claimed if isinstance(each, Lease))
        assert {"me/1": len(ids) - 1} == (await queue.stats()).holders
        jobs, ranges = await queue.apply(HeldBy("me/"), LeasesHeldBy("me/"))
        assert {each.claim for each in claimed} == {each.claim for each in [*jobs, *ranges]}
        version = (await queue.read_state(hot=True)).version
        *_, last = await queue.apply_each(*ends_of(claimed), batch())
        assert (version + 1, [ids[44]]) == ((await queue.read_state(hot=True)).version, [each.id for each in last])


@pytest.mark.parametrize(
    ("limits", "jobs"),
    [({"jobs": 30}, 30), ({"leases": 2, "singles": 4}, 76), ({"singles": 0}, 0), ({"leases": 0, "singles": 30}, 30)],
)
@in_virtual_time
async def test_a_batch_ends_at_the_largest_number_of_jobs_or_of_leases_and_single_jobs(limits, jobs):
    async with deep_queue() as queue:
        await filled(queue, (200, {}))
        [claimed] = await queue.apply(batch(**limits))
        assert jobs == len(await ids_of(queue, claimed))


@in_virtual_time
async def test_a_batch_through_a_number_has_only_jobs_that_were_there():
    async with deep_queue(merged=2) as queue:
        before = await filled(queue, (30, {}))
        [through] = await queue.apply(LastSequence())
        await filled(queue, (30, {}), (30, {"priority": -1}))
        await filled(queue, (1, {}))  # segments have been merged
        found = []
        while claimed := (await queue.apply(batch(jobs=16, through=through)))[0]:
            found += await ids_of(queue, claimed)
            await queue.apply_each(*ends_of(claimed))
        assert sorted(before) == sorted(found)
        assert 61 == (await queue.stats()).depth


@pytest.mark.parametrize("seed", range(4))
@in_virtual_time
async def test_batches_claim_each_job_once_and_none_before_a_more_urgent_one(seed):
    chance = random.Random(seed)
    async with deep_queue(merged=chance.choice([2, 100])) as queue:
        left: dict[str, int] = {}
        for step in range(12):
            options: dict[str, object] = {"entrypoint": chance.choice("ab"), "priority": chance.randrange(3)}
            if chance.random() < 0.3:
                options |= chance.choice([{"keep_result": 60}, {"unique_key": f"key {step}"}])
            number = 1 if "unique_key" in options else chance.randrange(1, 40)
            left |= dict.fromkeys(await filled(queue, (number, options)), options["priority"])
            [claimed] = await queue.apply(batch(jobs=chance.randrange(1, 60), least=chance.choice([1, 8])))
            if chance.random() < 0.2:
                for each in claimed:
                    await (
                        queue.nack(each, charge=False) if isinstance(each, Job) else queue.end_lease(each, worked_on=0)
                    )
                continue
            taken = [left.pop(job_id) for job_id in await ids_of(queue, claimed)]
            assert not taken or max(taken) <= min(left.values(), default=99)
            assert not [each for each in await queue.apply_each(*ends_of(claimed)) if isinstance(each, JQueueError)]
        while claimed := (await queue.apply(batch()))[0]:
            for job_id in await ids_of(queue, claimed):
                del left[job_id]
            await queue.apply_each(*ends_of(claimed))
        assert ({}, 0) == (left, (await queue.stats()).depth)


@in_virtual_time
async def test_the_leases_of_a_dead_holder_are_taken_again_as_they_were():
    async with deep_queue() as queue:
        ids = await filled(queue, (900, {}))
        [claimed] = await queue.apply(batch(rows=100))
        leased = [each for each in claimed if isinstance(each, Lease)]
        assert len(leased) > 9
        await queue.requeue_stale(0)
        [again] = await queue.apply(batch(rows=8))
        parts = [each for each in again if isinstance(each, Lease)]
        assert {(each.segment, *each.entry.spans) for each in leased} == {
            (each.segment, *each.entry.spans) for each in parts
        }
        assert {2} == {each.attempt for each in parts}
        assert sorted(ids) == sorted(await ids_of(queue, again))


@in_virtual_time
async def test_a_full_manifest_leaves_only_whole_entries_to_be_leased(monkeypatch):
    monkeypatch.setattr("jqueue.domain.operations.leases.SEGMENTS_KEPT", 1)
    async with deep_queue(most_rows=1000) as queue:
        ids = await filled(queue, (40, {}))
        assert 1 == (await queue.stats()).segments
        assert await queue.claim_lease("t", 8) is None
        [[lease]] = await queue.apply(batch(rows=8))
        assert ids == await ids_of(queue, [lease])
