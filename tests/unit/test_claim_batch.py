"""A batch of claims in one operation: ranges where many jobs wait in a segment, and jobs one by one elsewhere."""

import random
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from jqueue import DirectQueue, InMemoryStorage, Limits
from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Enqueue
from jqueue.domain.operations.claim_batch import ClaimBatch
from jqueue.domain.operations.holders import HeldBy, JobsInRanges, LastSequence, RangesHeldBy
from jqueue.domain.operations.ranges import ClaimRange, EndRange
from jqueue.domain.range_jobs import RangeClaim
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments, segments_of, spilled
from tests.unit.test_staged_segments import FIRST, queue_on, stage, store
from tests.virtual_world import in_virtual_time


@asynccontextmanager
async def deep_queue(**sizes):
    clock = VirtualClock()
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock, limits=Limits(batch_size=2000))
    async with in_segments(queue, **sizes):
        yield queue


def batch(jobs=1000, entrypoints=None, *, singles=1000, ranges=100, least=8, **options):
    return ClaimBatch(entrypoints, jobs, singles=singles, ranges=ranges, least=least, holder="me/1", **options)


async def filled(queue, *groups):
    """Enqueue groups of jobs, each a number and the options of its jobs, and move them to segments."""
    ids = []
    for number, options in groups:
        jobs = [
            Enqueue(options.get("entrypoint", "t"), b"x", **{k: v for k, v in options.items() if k != "entrypoint"})
        ]
        ids += [job.id for job in await queue.enqueue_many(jobs * number)]
    await spilled(queue)
    return ids


async def ids_of(queue, claimed):
    """The ids of claimed jobs, in order of the claims."""
    found = []
    for each in claimed:
        found += [each.id] if isinstance(each, Job) else [job.id async for job in queue.read_range(each)]
    return found


def ranges_in(claimed):
    return [each for each in claimed if isinstance(each, RangeClaim)]


async def given_back(queue, claimed):
    if isinstance(claimed, Job):
        await queue.nack(claimed, charge=False)
    else:
        await queue.end_range(claimed, nothing_done=True)


async def done(queue, claimed):
    results = await queue.apply_each(*(Ack(each) if isinstance(each, Job) else EndRange(each) for each in claimed))
    assert not [each for each in results if isinstance(each, JQueueError)]


@in_virtual_time
async def test_a_batch_has_ranges_and_the_jobs_that_cannot_be_in_one():
    async with deep_queue() as queue:
        ids = await filled(queue, (20, {}), (3, {"keep_result": 60}), (20, {}), (2, {"concurrency_key": "a"}), (9, {}))
        [claimed] = await queue.apply(batch())
        assert sorted(ids[:44] + ids[45:]) == sorted(await ids_of(queue, claimed)), "one job waits for its key"
        assert {"me/1"} == {each.holder if isinstance(each, Job) else each.held.holder for each in claimed}
        assert 30 < sum(each.rows for each in ranges_in(claimed))
        await done(queue, claimed)
        [last] = await queue.apply(batch())
        assert [ids[44]] == [each.id for each in last]


@in_virtual_time
async def test_one_commit_ends_a_batch_and_claims_the_next():
    async with deep_queue() as queue:
        ids = await filled(queue, (40, {}))
        [claimed] = await queue.apply(batch(jobs=20))
        version = (await queue.read_state()).version
        *_, following = await queue.apply_each(*map(EndRange, claimed), batch(jobs=20))
        assert version + 1 == (await queue.read_state()).version
        assert ids == await ids_of(queue, [*claimed, *following])
        assert 20 == (await queue.stats()).in_progress


@in_virtual_time
async def test_several_ranges_of_one_segment_are_claimed_at_once():
    """The first range hides rows that were loaded; the others begin where it ends."""
    async with deep_queue() as queue:
        groups = [group for _ in range(5) for group in ((9, {}), (1, {"keep_result": 60}))]
        ids = await filled(queue, *groups)
        [tries] = await queue.apply(batch(jobs=12))
        for claim in ranges_in(tries):
            await queue.end_range(claim, nothing_done=True)  # these rows were tried more often than the others
        [claimed] = await queue.apply(batch(ranges=100))
        assert len(ranges_in(claimed)) > 1
        assert sorted(set(ids) - {each.id for each in tries if isinstance(each, Job)}) == sorted(
            await ids_of(queue, claimed)
        )


@pytest.mark.parametrize(
    ("limits", "jobs"),
    [({"jobs": 30}, 30), ({"ranges": 2, "singles": 4}, 76), ({"singles": 0}, 0), ({"ranges": 0, "singles": 30}, 30)],
)
@in_virtual_time
async def test_a_batch_ends_at_the_largest_number_of_jobs_or_of_ranges_and_single_jobs(limits, jobs):
    async with deep_queue() as queue:
        await filled(queue, (200, {}))
        [claimed] = await queue.apply(batch(**limits))
        assert jobs == len(await ids_of(queue, claimed))


@in_virtual_time
async def test_the_rules_of_entrypoints_hold_for_a_batch():
    async with deep_queue() as queue:
        await filled(queue, (50, {"entrypoint": "few"}), (50, {"entrypoint": "none"}), (50, {"entrypoint": "slow"}))
        await queue.limit("few", running=20)
        await queue.limit("slow", rate=9, per=60)
        await queue.pause("none")
        [claimed] = await queue.apply(batch())
        found: Counter[str] = Counter()
        for each in claimed:
            found[each.entrypoint] += each.rows if isinstance(each, RangeClaim) else 1
        assert {"few": 20, "slow": 9} == found
        assert [[]] == await queue.apply(batch())
        await queue.resume("none")
        [claimed] = await queue.apply(batch(entrypoints=["none", "few"]))
        assert 50 == len(await ids_of(queue, claimed))


@in_virtual_time
async def test_a_range_ends_before_jobs_of_a_lower_priority_than_a_job_beside_it():
    async with deep_queue() as queue:
        await filled(queue, *((20, {"priority": priority}) for priority in (1, 2, 3)))
        urgent = await queue.enqueue("other", b"now", priority=2)
        [claimed] = await queue.apply(batch(jobs=25))
        assert {1: 20, 2: 5} == Counter(await priorities_of(queue, claimed))
        [claimed] = await queue.apply(batch(jobs=16))
        assert {2: 16} == Counter(await priorities_of(queue, claimed))
        assert urgent.id in await ids_of(queue, claimed)


@in_virtual_time
async def test_a_range_ends_before_rows_of_its_segment_that_come_after_another_job():
    async with queue_on(store(), few_staged=0) as queue:
        task = await stage(queue, *[b"x"] * 60, priority=[1] * 24 + [3] * 36)
        await queue.enqueue_staged([task], FIRST)
        assert 1 == len((await queue.read_state()).segments)
        between = await queue.enqueue("other", b"x", priority=2)
        [claimed] = await queue.apply(batch(jobs=40))
        assert between.id in await ids_of(queue, claimed)
        assert {1: 24, 2: 1, 3: 15} == Counter(await priorities_of(queue, claimed))


@in_virtual_time
async def test_jobs_of_ranges_are_known_with_their_attempts_after_the_claim():
    """Rows that were loaded as waiting rows belong to a range now, and some were in a range before."""
    async with deep_queue() as queue:
        ids = await filled(queue, (40, {}))
        for attempt in (1, 2):
            [claimed] = await queue.apply(batch())
            for claim in ranges_in(claimed):
                jobs = [job.id async for job in queue.read_range(claim)]
                [found] = await queue.apply(JobsInRanges(tuple(jobs)))
                assert [(claim.id, job_id, attempt) for job_id in jobs] == [
                    (range_id, job_id, job.attempt) for range_id, job_id, job in found if job.id == job_id
                ]
                failed = dict.fromkeys(jobs[:1] if attempt == 2 else (), "bad")
                await queue.end_range(claim, failed=failed, nothing_done=True)
                for job_id in failed:
                    job = await queue.find(job_id)
                    assert job is not None
                    assert (2, 1) == (job.attempt, job.failures)
        [none] = await queue.apply(JobsInRanges(tuple(ids)))
        assert [] == none


@in_virtual_time
async def test_a_batch_of_many_segments_loads_their_rows_together(monkeypatch):
    rounds = []
    claim = ClaimBatch._claim

    def counted_claim(*given):
        rounds.append(given)
        return claim(*given)

    monkeypatch.setattr(ClaimBatch, "_claim", counted_claim)
    async with deep_queue() as queue:
        await filled(queue, (700, {}))
        segments = len((await queue.read_state()).segments)
        [claimed] = await queue.apply(batch())
        assert segments == len(ranges_in(claimed)) > 10
    assert len(rounds) <= 3


async def priorities_of(queue, claimed):
    found = []
    for each in claimed:
        jobs = [each] if isinstance(each, Job) else [job async for job in queue.read_range(each)]
        found += [job.priority for job in jobs]
    return found


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
            await done(queue, claimed)
        assert sorted(before) == sorted(found)
        assert 61 == (await queue.stats()).depth


@in_virtual_time
async def test_a_segment_without_younger_jobs_may_be_a_range():
    async with deep_queue() as queue:
        await filled(queue, (30, {}))
        [through] = await queue.apply(LastSequence())
        [none] = await queue.apply(ClaimRange("t", 30, through=through - 1))
        [found] = await queue.apply(ClaimRange("t", 30, through=through))
        assert (0, 30) == (len(none), found[0].rows)


@in_virtual_time
async def test_the_claims_of_a_holder_are_found_by_a_prefix_of_its_name():
    async with deep_queue() as queue:
        await filled(queue, (30, {}), (2, {"keep_result": 60}))
        [claimed] = await queue.apply(batch())
        await queue.enqueue("t", b"more")
        await queue.dequeue("t", holder="other")
        jobs, ranges = await queue.apply(HeldBy("me/"), RangesHeldBy("me/"))
        assert {each.claim for each in claimed} == {each.claim for each in [*jobs, *ranges]}
        assert sorted(await ids_of(queue, claimed)) == sorted(await ids_of(queue, [*jobs, *ranges]))
        assert [[], []] == await queue.apply(HeldBy("you/"), RangesHeldBy("you/"))


@in_virtual_time
async def test_a_refused_call_claims_nothing_and_forgets_nothing():
    async with deep_queue() as queue:
        ids = await filled(queue, (40, {}), (3, {"keep_result": 60}))
        with pytest.raises(JQueueError):
            await queue.apply(batch(), Ack("unknown"))
        assert (43, 0) == ((await queue.stats()).depth, (await queue.stats()).in_progress)
        [claimed] = await queue.apply(batch())
        assert sorted(ids) == sorted(await ids_of(queue, claimed))
        found = [await queue.find(job_id) for job_id in ids]
        assert {("in_progress", 1)} == {(job.status, job.attempt) for job in found if job is not None}


@pytest.mark.parametrize("seed", range(12))
@in_virtual_time
async def test_batches_have_every_job_once_and_by_priority(seed):
    chance = random.Random(seed)
    async with deep_queue(merged=chance.choice([2, 100])) as queue:
        left: dict[str, int] = {}
        for _ in range(12):
            if chance.random() < 0.7:
                options = {"entrypoint": chance.choice("ab"), "priority": chance.randrange(3)}
                if chance.random() < 0.3:
                    options[chance.choice(["keep_result", "expires_at", "unique_for"])] = 3600
                if "expires_at" in options:
                    options["expires_at"] = VirtualClock().now().replace(year=2999)
                if "unique_for" in options:
                    options["unique_key"] = f"key {len(left)}"
                number = 1 if "unique_key" in options else chance.randrange(1, 40)
                left |= dict.fromkeys(await filled(queue, (number, options)), options["priority"])
            [claimed] = await queue.apply(batch(jobs=chance.randrange(1, 60), least=chance.choice([1, 8])))
            if chance.random() < 0.2:
                for each in claimed:
                    await (
                        queue.nack(each, charge=False)
                        if isinstance(each, Job)
                        else queue.end_range(each, nothing_done=True)
                    )
                continue
            ids = await ids_of(queue, claimed)
            assert len(ids) == len(set(ids))
            taken = [left.pop(job_id) for job_id in ids]
            assert not taken or max(taken) <= min(left.values(), default=99)
            await done(queue, claimed)
        while claimed := (await queue.apply(batch()))[0]:
            for job_id in await ids_of(queue, claimed):
                del left[job_id]
            await done(queue, claimed)
        assert {} == left
        assert 0 == (await queue.stats()).depth


@in_virtual_time
async def test_a_range_is_claimed_without_a_look_at_all_jobs_beside_it():
    looked = []

    class Places(dict):
        def get(self, *arguments):
            looked.append(arguments)
            return super().get(*arguments)

    async with deep_queue() as queue:
        await filled(queue, (40, {"priority": -1}))
        writer = segments_of(queue).writer
        writer.sizes = replace(writer.sizes, hot_bytes=1 << 30)
        await queue.apply(*(Enqueue("t") for _ in range(1000)))  # they stay in the queue's object
        rows = queue._engine.draft.jobs.rows
        rows.of = Places(rows.of)
        [claimed] = await queue.apply(batch(40))
        assert [40] == [each.rows for each in ranges_in(claimed)]
        assert 0 < len(looked) < 200
