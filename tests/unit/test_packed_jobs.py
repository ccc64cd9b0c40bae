"""Waiting jobs are packed: a deep queue holds few models, and packed jobs behave as whole ones do."""

import gc
import random
from datetime import UTC, datetime, timedelta

import pytest

from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain import job_table
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.job_table import KEPT_WHOLE
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, JobStatus
from jqueue.domain.operations import (
    Ack,
    Cancel,
    Configure,
    Dequeue,
    Enqueue,
    HandBack,
    Heartbeat,
    Nack,
    Pause,
    Preparation,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    perform,
)
from jqueue.domain.stats import Census
from tests.deep_queue import DEEP, deep_queue
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide

START = datetime(2026, 1, 1, tzinfo=UTC)
PREPARATION = Preparation(Limits(), 300.0, lambda: "unused", ClaimRegistry().find)
EVERYTHING = 10**9


def counted(state, now):
    census = Census(now)
    for job in state.jobs:
        census.count(job)
    return census.figures(state, state.set_aside, 1, 1, Limits())


def models():
    gc.collect()
    return sum(each.__class__ is Job for each in gc.get_objects())


@pytest.mark.wide
@in_virtual_time
async def test_a_deep_queue_holds_few_models():
    before = models()
    queue, other = await deep_queue()
    del other
    jobs = await queue.dequeue(batch_size=20)
    await queue.enqueue_many([Enqueue("work", b"payload")] * 3000)
    await queue.nack_many(jobs)
    entries = queue._engine.draft.jobs.entries.values()
    assert DEEP + 3000 < len(entries)
    assert sum(entry.__class__ is Job for entry in entries) <= KEPT_WHOLE
    assert models() - before <= 2 * KEPT_WHOLE + len(jobs)  # two queues have read the blob
    tracked = [entry for entry in entries if entry.__class__ is tuple and gc.is_tracked(entry)]
    assert [] == tracked  # or each full collection of the garbage would visit them


@in_virtual_time
async def test_jobs_in_progress_are_kept_whole_and_packed_when_they_wait_again():
    queue, _ = await deep_queue()
    jobs = await queue.dequeue(batch_size=3000)
    await queue.enqueue_many([Enqueue("work", b"payload")] * 3000)
    entries = queue._engine.draft.jobs.entries
    assert all(entries[job.id].__class__ is Job for job in jobs)
    await queue.nack_many(jobs)
    await queue.enqueue_many([Enqueue("work", b"payload")] * 3000)
    assert sum(entry.__class__ is Job for entry in entries.values()) <= KEPT_WHOLE


def operation(chance, number, ids):
    """Return any operation on any of some hundred jobs."""
    job_id = f"job {chance.randrange(300)}" if number % 7 == 0 or not ids else chance.choice(ids)
    claim = Claim(job_id, chance.randint(1, 3))
    names = chance.choice([None, "x", "y", ("x", "z"), ("z", "y", "x")])
    kind = chance.randrange(24)
    if kind < 8:
        return Enqueue(
            chance.choice("xyz"),
            b"%d" % number,
            chance.randint(-2, 2),
            job_id=f"job {chance.randrange(300)}",
            delay=chance.choice([None, None, 0, 5, 50]),
            expires_at=chance.choice([None, None, None, START + timedelta(seconds=chance.randrange(400))]),
            max_attempts=chance.choice([None, None, 1, 2]),
            headers=chance.choice([None, {"trace": str(number)}]),
            unique_key=chance.choice([None, None, "k", "l", "m"]),
            on_conflict=chance.choice(["return", "raise", "replace"]),
            keep_result=chance.choice([None, None, 30]),
            **chance.choice([{}, {}, {"concurrency_key": chance.choice("pq"), "concurrency_limit": 1 + number % 2}]),
        )
    if kind < 13:
        return Dequeue(names, batch_size=chance.randint(0, 4))
    if kind < 19:
        return [
            Ack(claim, [number]),
            Nack(claim),
            Nack(claim, 20, "error"),
            Nack(claim, dead=True),
            HandBack((claim,)),
        ][kind % 5]
    others = (
        Heartbeat((claim,)),
        Cancel(job_id),
        Cancel(job_id, True),
        Reschedule(job_id, delay=5),
        Redrive(),
        Redrive(job_id),
        RequeueStale(chance.randrange(60)),
    )
    if number % 5 == 0:
        return decision(chance)
    if kind == 19:
        return Purge(chance.choice([JobStatus.DEAD, JobStatus.DEAD, JobStatus.QUEUED]), "z")
    return chance.choice(others)


def decision(chance):
    """Return any setting, limit, cron entry or new priority, which may concern many jobs at once."""
    name = chance.choice("xyz")
    running = chance.choice([None, 1, 3])
    return chance.choice(
        [
            SetLimits(name, running=running),
            SetLimits(name, running=running, rate=2, per=20),
            SetLimits(name),
            Pause(name),
            Resume(name),
            Resume(name),
            Configure(aging=chance.choice([None, 5]), dead_retention=chance.choice([None, 100])),
            SetSchedule("m", "*/20 * * * * *", name),
            Reprioritise(f"job {chance.randrange(300)}", chance.randint(-2, 2)),
        ]
    )


def shape(result):
    """Replace errors by their texts, by which they are compared."""
    if isinstance(result, list):
        return [shape(each) for each in result]
    return str(result) if isinstance(result, JQueueError) else result


def served(draft, now):
    orders = []
    for names in (None, ("x",), ("z", "y")):
        mark = draft.savepoint()
        orders.append(perform(Dequeue(names, batch_size=400).prepared(PREPARATION), draft, now))
        draft.rollback(mark)
    return orders


@pytest.mark.parametrize("seed", range(6))
def test_packed_jobs_are_served_and_changed_as_whole_ones_are(seed, monkeypatch):
    chance, now = random.Random(seed), START
    packed, whole = Draft(), Draft()
    kept = {packed: seed % 3, whole: EVERYTHING}
    for number in range(700):
        now += timedelta(seconds=chance.choice([0, 0, 1, 3]))
        asked = operation(chance, number, list(whole.jobs)[:40]).prepared(PREPARATION)
        results = [perform(asked, draft, now) for draft in (packed, whole)]
        assert shape(results[0]) == shape(results[1]), (number, asked)
        ending = chance.choice(["settle", "settle", "rollback", "go on"])
        for draft in (packed, whole):
            monkeypatch.setattr(job_table, "KEPT_WHOLE", kept[draft])
            if ending != "go on":
                getattr(draft, ending)()
        if number % 10 == 0 and ending != "go on":
            states = [draft.freeze() for draft in (packed, whole)]
            assert states[0] == states[1]
            assert served(packed, now) == served(whole, now)
            assert packed.next_due() == whole.next_due()
            assert packed.jobs.keys_held == whole.jobs.keys_held
            figures = [counted(state, now) for state in states]
            assert figures[0] == figures[1]
    kinds = [entry.__class__ for entry in packed.jobs.entries.values()]
    assert tuple in kinds
    assert Job in {entry.__class__ for entry in whole.jobs.entries.values()}
    assert tuple not in {entry.__class__ for entry in whole.jobs.entries.values()}
