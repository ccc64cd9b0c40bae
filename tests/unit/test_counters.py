"""Counters, figures and warnings: what has happened to the jobs of a queue, how full it is, and why its jobs wait."""

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob import codec
from jqueue.domain.counters import (
    ENTRYPOINTS_COUNTED,
    IDLE,
    OTHERS,
    Counters,
    Durations,
    Histogram,
    Rates,
    Window,
    merged,
    totals_of,
    with_moves,
)
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.header import WorkerRecord
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState, record_of
from jqueue.domain.stats import UNCLAIMED, why_waiting
from jqueue.domain.transitions import Verb
from jqueue.operations import Enqueue
from jqueue.testing.fake_clock import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def counted(counters, seconds, entrypoint="work"):
    """Return the counters after one more job was enqueued, `seconds` after the beginning."""
    move = (Verb.ENQUEUE, None, record_of(Job(entrypoint=entrypoint, payload=b"", created_at=NOW)), None)
    return with_moves(counters, [move], NOW + timedelta(seconds=seconds))


@pytest.fixture
def clock():
    return FakeClock(NOW)


@pytest.fixture
def queue(clock):
    return DirectQueue(InMemoryStorage(clock=clock), clock=clock)


async def test_a_retried_job_waits_from_its_return_or_its_delay(queue, clock):
    await queue.enqueue("work")
    for wait, delay in ((1, 0), (2, 50), (60, 0)):
        clock.advance(wait)
        [job] = await queue.dequeue("work")
        clock.advance(2)
        await queue.nack(job, delay=delay)
    totals = (await queue.stats()).totals
    assert (totals.waits, totals.runs) == (Histogram({1.024: 1, 2.048: 1, 16.384: 1}, 13.0), Histogram({2.048: 3}, 6.0))


def test_rates_are_those_of_the_last_minute_hour_and_day():
    counters: Mapping[str, Counters] = {}
    for second in range(0, 7200, 10):  # one job in ten seconds, for two hours
        counters = counted(counters, second)
    totals = totals_of(counters["work"], NOW + timedelta(seconds=7195))
    assert totals.last_minute.enqueued == pytest.approx(0.1, rel=0.1)
    assert totals.last_hour.enqueued == pytest.approx(0.1, rel=0.01)
    assert totals.last_day.enqueued == pytest.approx(720 / 86400)
    later = totals_of(counters["work"], NOW + timedelta(seconds=7200 + 30))
    assert later.last_minute.enqueued == pytest.approx(0.05, rel=0.1)
    assert totals_of(counters["work"], NOW + timedelta(days=3)).last_day == Rates()


def test_entrypoints_without_changes_are_added_up():
    counters: Mapping[str, Counters] = {}
    for number in range(ENTRYPOINTS_COUNTED + 20):
        counters = counted(counters, number, f"{number}")
    assert (ENTRYPOINTS_COUNTED, 21) == (len(counters), counters[OTHERS].totals[0])
    assert "0" not in counters
    later = counted(counters, IDLE + 1000, "new")
    assert ({OTHERS, "new"}, ENTRYPOINTS_COUNTED + 20) == (later.keys(), later[OTHERS].totals[0])


def test_the_clock_of_another_writer_may_be_behind_or_have_been_ahead():
    ahead = counted({}, 50 * 60)["work"]
    behind = counted({"work": ahead}, 0)["work"]
    assert (2, ahead.windows, ahead.at) == (behind.totals[0], behind.windows, (NOW + timedelta(minutes=50)).timestamp())
    counters = counted({}, 365 * 86400)
    for second in range(0, 120, 10):
        counters = counted(counters, second)
    totals = totals_of(counters["work"], NOW + timedelta(seconds=119))
    assert totals.last_minute.enqueued == pytest.approx(0.1, rel=0.1)


def test_quantiles_are_bounds_of_buckets_and_sums_do_not_depend_on_the_order():
    histogram = Histogram({0.001: 90, 0.008: 9, 4.096: 1}, 5.0)
    assert [0.001, 0.008, 4.096] == [histogram.quantile(share) for share in (0.9, 0.99, 1)]
    assert (100, 0.05) == (histogram.count, histogram.mean)
    assert (None, None) == (Histogram().quantile(0.5), Histogram().mean)
    several = [counted({}, at)["work"] for at in (0, 90, 4000)]
    assert merged(several) == merged(reversed(several))
    assert 3 == merged(several).totals[0]


@pytest.mark.parametrize("totals", [(1,) * 12, (5,)])
def test_counters_of_a_version_that_counts_more_or_less_are_read_and_kept(totals):
    other = Counters(totals, Durations(1.0, 3, (1,)), Durations(), (Window(29453760, (1, 1), (2,)),), NOW.timestamp())
    state = codec.decode(codec.encode(QueueState(queue="q", counters={"work": other})))
    after = counted(state.counters, 0)["work"]
    assert (totals[0] + 1, *totals[1:]) == after.totals[: len(totals)]
    assert totals_of(after, NOW).enqueued == totals[0] + 1


# Figures and warnings


async def test_a_queue_warns_from_half_full_by_the_count_of_enqueue():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=30_000))
    await queue.enqueue_many([Enqueue("t", b"x" * 1000)] * 8)
    assert () == (await queue.stats()).warnings
    await queue.enqueue_many([Enqueue("t", b"x" * 1000)] * 4)
    [warning] = (await queue.stats()).warnings
    assert "% full" in warning


async def test_a_queue_that_jobs_of_many_entrypoints_fill_says_why_they_stay_in_its_object():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=150_000))
    await queue.enqueue_many([Enqueue(f"of {number}", b"x" * 100) for number in range(257)])
    _, warning = (await queue.stats()).warnings
    assert "257 entrypoints have waiting jobs" in warning
    assert "at most 256 segments" in warning


async def test_the_reason_why_jobs_wait_is_a_pause_a_limit_or_a_missing_worker():
    now = datetime.now(UTC)
    early = now - UNCLAIMED - timedelta(seconds=1)
    queue = DirectQueue(InMemoryStorage())
    for entrypoint in ("paused", "full", "fast", "open", "idle"):
        await queue.enqueue_many([Enqueue(entrypoint, run_at=early) for _ in range(4)])
    await queue.enqueue("new")
    await queue.pause("paused")
    await queue.dequeue("full", batch_size=3)
    await queue.limit("full", running=2)
    await queue.limit("fast", rate=1, per=3600)
    await queue.ack((await queue.dequeue("fast"))[0])
    queue.attend("run", lambda at: WorkerRecord(name="w", at=at, entrypoints=("idle", "elsewhere")), print)
    await queue.limit("idle", running=1)
    state, stats = (await queue.view()).header, await queue.stats()
    reasons = {
        "fast": "at its limit: 1 claim within 60 min, the next in 60 min",
        "full": "at its limit: 3 of 2 in progress",
        "open": "no worker that has the handler",
        "paused": "paused",
    }
    assert reasons == why_waiting(state, stats, now)
    workers = tuple(each.evolve(lost=True) for each in stats.workers)
    lost = dataclasses.replace(stats, workers=workers)
    assert reasons | {"idle": "no worker that has the handler"} == why_waiting(state, lost, now)
    await queue.ack((await queue.dequeue("open"))[0])  # by a program without a worker
    assert "open" not in why_waiting((await queue.view()).header, await queue.stats(), datetime.now(UTC))


async def test_a_histogram_that_begins_at_a_far_bucket_is_damage_and_fills_no_memory():
    storage = InMemoryStorage()
    queue = DirectQueue(storage)
    await queue.enqueue("work")
    await queue.dequeue()
    blob, etag = await storage.read()
    content = json.loads(blob)
    content["counters"]["work"][1][1] = 2**40
    await storage.write(json.dumps(content).encode(), etag)
    with pytest.raises(InvalidBlobError, match=r"counters\['work'\]"):
        await DirectQueue(storage).enqueue("other")
