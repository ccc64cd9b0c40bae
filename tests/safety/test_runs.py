"""Runs of like operations of one commit, which one pass applies: safety rules 1, 4, 5 and 8 hold as one by one."""

import asyncio
import random
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jqueue import BrokerQueue, ClaimLostError, DirectQueue, InMemoryStorage, Job, Limits, QueueFullError
from jqueue.core.engine import engine
from jqueue.domain.draft import Draft
from jqueue.domain.models import Claim
from jqueue.domain.operations import Ack, Dequeue, Enqueue, Fence, new_job, perform_run
from jqueue.domain.operations.jobs import UNPREPARED
from jqueue.testing.fake_clock import LongestWaits
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock, run
from tests.simulation.workload import SeededEntropy, SimulatedClock
from tests.tiny_segments import in_segments, segments_of, spilled
from tests.virtual_world import in_virtual_time


def _broker(storage, **options):
    """Return a broker on the clock of the test: by the machine's, its pauses would last for ever in virtual time."""
    return BrokerQueue(storage, clock=VirtualClock(), **options)


async def _claimed(queue, number):
    await asyncio.gather(*(queue.enqueue("t", b"%d" % place) for place in range(number)))
    return [job for [job] in await asyncio.gather(*(queue.dequeue("t") for _ in range(number)))]


@pytest.mark.parametrize("bad", [0, 1, 20, 39])
@in_virtual_time
async def test_rule_8_a_lost_claim_in_a_run_of_acks_fails_alone(bad):
    storage = FaultyStorage(InMemoryStorage())
    async with _broker(storage) as queue:
        jobs = await _claimed(queue, 40)
        writes = storage.writes
        claims = [job.claim for job in jobs]
        claims[bad] = Claim(jobs[bad].id, 2)
        results = await asyncio.gather(*(queue.ack(claim) for claim in claims), return_exceptions=True)
        assert [bad] == [place for place, result in enumerate(results) if isinstance(result, ClaimLostError)]
        assert [None] * 39 == [result for result in results if not isinstance(result, ClaimLostError)]
        assert writes + 1 == storage.writes
        assert [jobs[bad].id] == [job.id for job in (await queue.read_state()).jobs]
        await queue.ack(jobs[bad])


@in_virtual_time
async def test_rule_5_the_same_ack_twice_in_one_run_succeeds_twice_and_removes_one_job():
    async with _broker(InMemoryStorage()) as queue:
        jobs = await _claimed(queue, 5)
        assert [None] * 10 == await asyncio.gather(*(queue.ack(job) for job in jobs for _ in range(2)))
        totals = (await queue.stats()).totals
        assert totals is not None
        assert 5 == totals.done


@in_virtual_time
async def test_rule_8_an_enqueue_without_room_in_a_run_fails_alone():
    async with _broker(InMemoryStorage(), limits=Limits(blob_bytes=20_000, hot_bytes=None)) as queue:
        sizes = [10] * 10 + [14_000] + [10] * 10
        calls = [queue.enqueue("t", bytes(size)) for size in sizes]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [10] == [place for place, result in enumerate(results) if isinstance(result, QueueFullError)]
        assert 20 == len((await queue.read_state()).jobs)


class _OneId(LongestWaits):
    """An entropy whose ids of jobs are all the same."""

    def new_id(self):
        return "11111111-2222-4333-8444-555555555555"


@in_virtual_time
async def test_rule_4_an_id_that_comes_twice_in_a_run_is_one_job():
    async with _broker(InMemoryStorage(), entropy=_OneId()) as queue:
        jobs = await asyncio.gather(*(queue.enqueue("t", b"%d" % place) for place in range(10)))
        assert {b"0"} == {job.payload for job in jobs}
        assert 1 == len((await queue.read_state()).jobs)


@in_virtual_time
async def test_rule_4_a_run_of_dequeues_after_lost_races_claims_each_job_once():
    storage = FaultyStorage(InMemoryStorage())
    async with _broker(storage) as queue, _broker(storage) as other:
        await asyncio.gather(*(queue.enqueue("t", b"") for _ in range(60)))
        found = []
        for each in (queue, other, queue, other):  # each finds that the other has written: its claims are undone
            found += await asyncio.gather(*(each.dequeue("t") for _ in range(15)))
        claims = [job.claim for jobs in found for job in jobs]
        assert 60 == len(claims) == len(set(claims))
        assert {1} == {claim.attempt for claim in claims}
        assert [[]] * 3 == await asyncio.gather(*(queue.dequeue("t") for _ in range(3)))


@pytest.mark.parametrize("delay", [None, 60], ids=["ready", "scheduled"])
@in_virtual_time
async def test_rows_that_come_first_are_claimed_before_hot_jobs_by_a_run_that_has_to_load_them(delay):
    storage = InMemoryStorage(clock=VirtualClock())
    first = in_segments(DirectQueue(storage, clock=VirtualClock()))
    await first.enqueue_many([Enqueue("t", b"%d" % place, delay=delay) for place in range(12)])
    await spilled(first)
    await asyncio.sleep(60)
    async with _broker(storage) as queue:
        segments_of(queue).writer.sizes.hot_bytes = None
        await asyncio.gather(*(queue.enqueue("t", b"hot") for _ in range(9)))
        found = []
        for number in (3, 6, 12):  # the first run of each kind: no row loaded, some loaded, hot jobs after the last row
            commits = queue._engine.commits
            found += await asyncio.gather(*(queue.dequeue("t") for _ in range(number)))
            assert commits + 1 == queue._engine.commits
        assert [b"%d" % place for place in range(12)] + [b"hot"] * 9 == [job.payload for [job] in found]
        assert {1} == {job.attempt for [job] in found}


@pytest.mark.parametrize("broken", ["add_plain", "claim_plain", "finish_plain"])
@in_virtual_time
async def test_rule_8_operations_of_a_pass_that_fails_are_applied_one_by_one(monkeypatch, broken):
    whole = getattr(Draft, broken)
    failed = []

    def fails(draft, jobs, *more):
        whole(draft, jobs, *more)
        if len(jobs) > 1:
            failed.append(broken)
            raise RuntimeError("a bug in the pass")

    monkeypatch.setattr(Draft, broken, fails)
    async with _broker(InMemoryStorage()) as queue:
        jobs = await _claimed(queue, 10)
        assert [f"{place}".encode() for place in range(10)] == [job.payload for job in jobs]
        await asyncio.gather(*(queue.ack(job) for job in jobs))
        assert () == (await queue.read_state()).jobs
        totals = (await queue.stats()).totals
        assert totals is not None
        assert (10, 10, 10) == (totals.enqueued, totals.claimed, totals.done)
    assert failed


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _prepared(payload):
    return new_job(replace(UNPREPARED, new_id=lambda: payload.decode()), "t", payload)


def test_a_pass_ends_at_an_enqueue_of_a_writer_with_another_size_limit():
    small = replace(UNPREPARED, limits=Limits(blob_bytes=2000), new_id=lambda: "small")
    draft = Draft()
    run = [_prepared(b"one"), new_job(small, "t", b"two"), _prepared(b"three")]
    assert ["one"] == [job.id for job in perform_run(run, draft, NOW)]
    assert ["small"] == [job.id for job in perform_run(run[1:], draft, NOW)]


def _in_order(draft):
    """Return the state with its jobs in order: an undo puts a job back at the end of the table."""
    state = draft.freeze()
    return state.model_copy(update={"jobs": tuple(sorted(state.jobs, key=lambda job: job.sequence))})


@pytest.mark.parametrize("kind", ["enqueue", "dequeue", "ack"])
def test_a_pass_that_is_undone_leaves_no_trace(kind):
    draft = Draft()
    perform_run([_prepared(b"%d" % place) for place in range(9)], draft, NOW)
    dequeue = Dequeue(("t",), claim_timeout=60.0)
    claimed = perform_run([dequeue] * 5, draft, NOW)
    draft.settle()
    before = _in_order(draft)
    pass_of = {
        "enqueue": [_prepared(b"new %d" % place) for place in range(4)],
        "dequeue": [dequeue] * 4,
        "ack": [Ack.of(job.claim) for [job] in claimed],
    }
    assert len(pass_of[kind]) == len(perform_run(pass_of[kind], draft, NOW))
    assert draft.changed
    assert before != _in_order(draft)
    draft.rollback()
    assert not draft.changed
    assert before == _in_order(draft)
    assert [] == list(draft.moves)
    assert {"t": 4} == draft.jobs.order.queued()
    assert {"t": 5} == draft.jobs.order.running
    assert ["5", "6", "7", "8"] == [job.id for [job] in perform_run([dequeue] * 4, draft, NOW)]


@pytest.mark.parametrize("names", [("t",), None], ids=["one entrypoint", "all"])
@pytest.mark.parametrize("count", [1, 4, 5, 9, 12])
def test_the_jobs_of_a_pass_leave_their_heap_and_the_others_stay(names, count):
    draft = Draft()
    perform_run([_prepared(b"%d" % place) for place in range(10)], draft, NOW)
    heap = draft.jobs.order._all_ready() if names is None else draft.jobs.order._ready["t"]
    ids = [str(place) for place in range(10)]
    claimed = perform_run([Dequeue(names, claim_timeout=60.0)] * count, draft, NOW)
    assert ids[:count] == [job.id for jobs in claimed for job in jobs]
    assert ids[count:] == [job_id for *_, job_id in sorted(heap.entries)]
    smallest = heap.top()
    assert smallest is None or smallest == min(heap.entries)


def _calls(queue, held, dice):
    """Return some calls of one commit, most of them in runs."""
    calls = []
    for _ in range(dice.randrange(1, 5)):
        number = dice.randrange(1, 9)
        match dice.randrange(7):
            case 0 | 1:
                for _ in range(number):
                    options = dice.choice([{}, {}, {}, {"unique_key": f"key {dice.randrange(3)}"}, {"delay": 1}])
                    calls.append(queue.enqueue(dice.choice("aab"), b"x" * dice.randrange(9), **options))
                calls.append(queue.enqueue("a", b"", dice.randrange(3), concurrency_key=dice.choice("kl")))
            case 2 | 3:
                names, size = dice.choice(["a", "b", None, ["a", "b"]]), dice.choice([1, 1, 3])
                calls += [queue.dequeue(names, batch_size=size) for _ in range(number)]
            case 4 | 5:
                some = [held.pop(dice.randrange(len(held))) for _ in range(min(number, len(held)))]
                calls += [queue.ack(job) for job in [*some, *some[:1]]]
            case _:
                some = [held.pop(dice.randrange(len(held))) for _ in range(min(number, len(held)))]
                calls += [queue.nack(job, charge=dice.random() < 0.5) for job in some]
    return calls


def _told(result):
    """Return a result as a text, in which the order of a job's fields does not show."""
    if isinstance(result, list):
        return str([_told(each) for each in result])
    return repr(sorted(result.model_dump().items()) if isinstance(result, Job) else result)


async def _session(seed, *, segments):
    """Run random calls, and return every answer, the jobs at the end, their counters and their history."""
    dice = random.Random(seed)
    clock, limits = SimulatedClock(asyncio.get_running_loop(), 0), Limits(hot_bytes=400 if segments else None)
    storage = InMemoryStorage(clock=clock)
    queues = [
        BrokerQueue(storage, clock=clock, entropy=SeededEntropy(random.Random(seed), name), limits=limits)
        for name in ("one", "two")
    ]
    answers: list[str] = []
    held: list[Job] = []
    if segments:
        for queue in queues:
            in_segments(queue, hot_bytes=400)
    rows = 0
    async with queues[0], queues[1]:
        await queues[0].configure(history=3600, aging=60 if seed % 3 == 0 else None)
        for _ in range(25):
            results = await asyncio.gather(*_calls(dice.choice(queues), held, dice), return_exceptions=True)
            answers += [_told(result) for result in results]
            held += [job for result in results if isinstance(result, list) for job in result]
            rows += sum(len(queue._engine.draft.jobs.rows.of) for queue in queues)
            await asyncio.sleep(1)
        await queues[0].apply(Fence())
        state = await queues[0].read_state()
        stats = await queues[0].stats()
        jobs = [job async for job in queues[0].iterate_jobs()]
        events = [event async for event in queues[0].history()]
    assert segments == (rows > 0)
    jobs.sort(key=lambda job: job.sequence)
    return answers, _told(jobs), list(state.finished.items()), state.counters, stats.entrypoints, events


@pytest.mark.parametrize("segments", [False, True], ids=["hot", "segments"])
@pytest.mark.parametrize("seed", range(12))
def test_calls_in_runs_have_the_same_effect_as_one_by_one(seed, segments, monkeypatch):
    together = _ran(seed, segments)
    monkeypatch.setattr(engine, "perform_run", lambda *_: ())
    for with_runs, without in zip(together, _ran(seed, segments), strict=True):
        assert with_runs == without


@pytest.mark.parametrize("seed", range(12))
def test_calls_in_runs_have_the_same_effect_on_rows_of_segments_as_on_hot_jobs(seed):
    for of_hot_jobs, of_rows in zip(_ran(seed, False), _ran(seed, True), strict=True):
        assert of_hot_jobs == of_rows


ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def _ran(seed, segments):
    """Return the parts of a session as texts, with the ids numbered: the names of segments are drawn among them."""
    parts: list[object] = []

    async def main():
        parts.extend(await _session(seed, segments=segments))

    run(main())
    numbers: dict[str, str] = {}
    return [ID.sub(lambda found: numbers.setdefault(found[0], f"id {len(numbers)}"), repr(part)) for part in parts]
