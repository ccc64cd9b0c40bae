"""Counters: what has happened to the jobs of a queue, kept by the commits themselves."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, QueueSet
from jqueue.core.blob import codec
from jqueue.domain.counters import KINDS, OTHERS, Counters, Durations, Window, bucket_of, merged
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.tallies import ENTRYPOINTS_COUNTED, IDLE, with_moves
from jqueue.domain.totals import Histogram, Rates, totals_of
from jqueue.domain.transitions import Verb
from jqueue.operations import Ack, Enqueue, Nack
from jqueue.testing.fake_clock import FakeClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def enqueued(entrypoint):
    """Return the transition of a new job."""
    return Verb.ENQUEUE, None, Job(entrypoint=entrypoint, payload=b"", created_at=NOW)


def numbers(totals):
    """Return the counters that are not 0."""
    return {kind: getattr(totals, kind) for kind in KINDS if getattr(totals, kind)}


@pytest.fixture
def clock():
    return FakeClock(NOW)


@pytest.fixture
def queue(clock):
    return DirectQueue(InMemoryStorage(clock=clock), clock=clock)


async def test_each_end_of_a_job_is_counted(queue, clock):
    for number in range(9):
        await queue.enqueue("work", b"", job_id=f"{number}", max_attempts=2)
    await queue.enqueue("work", b"", job_id="late", expires_at=NOW + timedelta(seconds=1), delay=0.5)
    await queue.cancel("8")
    clock.advance(4)
    done, retried, dead, back, cancelled, _ = await queue.dequeue("work", batch_size=6)
    clock.advance(2)
    await queue.ack(done)
    await queue.nack(retried, error="no")
    await queue.nack(dead, dead=True)
    await queue.nack(back, charge=False)
    await queue.cancel(cancelled.id, running=True)
    await queue.nack(cancelled)
    clock.advance(400)
    assert 1 == await queue.requeue_stale(300)
    await queue.purge(status=JobStatus.DEAD)
    totals = (await queue.stats()).totals
    assert numbers(totals) == {
        **{"enqueued": 10, "claimed": 6, "done": 1, "failed": 4, "retried": 2, "dead": 1, "cancelled": 2},
        **{"expired": 1, "recovered": 1, "removed": 1},
    }
    assert totals.waits == Histogram({4.096: 6}, 24.0)
    assert totals.runs == Histogram({2.048: 4}, 8.0)


async def test_a_retried_job_waits_from_its_return_or_its_delay(queue, clock):
    await queue.enqueue("work", b"")
    for wait, delay in ((1, 0), (2, 50), (60, 0)):
        clock.advance(wait)
        [job] = await queue.dequeue("work")
        await queue.nack(job, delay=delay)
    waits = (await queue.stats()).totals.waits
    assert (3, 1 + 2 + 10) == (waits.count, waits.seconds)


async def test_a_refused_operation_is_not_counted(queue):
    job = await queue.enqueue("work", b"", unique_key="k")
    with pytest.raises(Exception, match="taken"):
        await queue.apply(Enqueue("work"), Enqueue("work", unique_key="k", on_conflict="raise"))
    assert numbers((await queue.stats()).totals) == {"enqueued": 1}
    assert job.id


async def test_counters_survive_every_reader_and_add_up_over_queues(clock):
    stores = [InMemoryStorage(clock=clock) for _ in range(2)]
    for storage in stores:
        async with BrokerQueue(storage, clock=clock) as queue:
            await asyncio.gather(*(queue.enqueue("work", b"") for _ in range(20)))
            for job in await queue.dequeue("work", batch_size=20):
                await queue.ack(job)
    again = [DirectQueue(storage, clock=clock) for storage in stores]
    assert numbers((await again[0].stats()).totals) == {"enqueued": 20, "claimed": 20, "done": 20}
    assert {"work"} == set((await again[0].stats()).entrypoints or ())
    async with QueueSet(*again) as both:
        assert numbers((await both.stats()).totals) == {"enqueued": 40, "claimed": 40, "done": 40}


async def test_several_operations_of_one_commit_count_each(queue):
    first, second = await queue.enqueue_many([Enqueue("a"), Enqueue("b")])
    claimed = await queue.dequeue(batch_size=2)
    await queue.apply(*[Ack(job) if job.id == first.id else Nack(job) for job in claimed], Enqueue("a"))
    stats = await queue.stats()
    assert numbers(stats.entrypoints["a"].totals) == {"enqueued": 2, "claimed": 1, "done": 1}
    assert numbers(stats.entrypoints["b"].totals) == {"enqueued": 1, "claimed": 1, "failed": 1, "retried": 1}
    assert second.id


def test_rates_are_those_of_the_last_minute_hour_and_day():
    counters: Mapping[str, Counters] = {}
    for second in range(0, 7200, 10):  # one job in ten seconds, for two hours
        counters = with_moves(counters, [enqueued("work")], {}, NOW + timedelta(seconds=second))
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
        counters = with_moves(counters, [enqueued(f"{number}")], {}, NOW + timedelta(seconds=number))
    assert ENTRYPOINTS_COUNTED == len(counters)
    assert 21 == counters[OTHERS].totals[0]
    assert "0" not in counters
    later = with_moves(counters, [enqueued("new")], {}, NOW + timedelta(seconds=IDLE + 1000))
    assert {OTHERS, "new"} == later.keys()
    assert ENTRYPOINTS_COUNTED + 20 == later[OTHERS].totals[0]


def test_the_clock_of_another_writer_may_be_behind():
    ahead = with_moves({}, [enqueued("work")], {}, NOW + timedelta(minutes=50))
    counters = with_moves(ahead, [enqueued("work")], {}, NOW)["work"]
    assert 2 == counters.totals[0]
    assert ahead["work"].windows == counters.windows
    assert counters.at == (NOW + timedelta(minutes=50)).timestamp()


def test_rates_work_again_after_a_clock_that_was_a_year_ahead():
    counters = with_moves({}, [enqueued("work")], {}, NOW + timedelta(days=365))
    for second in range(0, 120, 10):
        counters = with_moves(counters, [enqueued("work")], {}, NOW + timedelta(seconds=second))
    totals = totals_of(counters["work"], NOW + timedelta(seconds=119))
    assert totals.last_minute.enqueued == pytest.approx(0.1, rel=0.1)


@given(st.floats(0, 1e12))
def test_a_bucket_holds_times_up_to_its_bound(seconds):
    bound = 2.0 ** bucket_of(seconds) / 1000
    assert seconds < bound or bucket_of(seconds) == 41
    assert bound == 0.001 or seconds >= bound / 2 or int(seconds * 1000) * 2 >= bound * 1000


def test_quantiles_are_bounds_of_buckets():
    histogram = Histogram({0.001: 90, 0.008: 9, 4.096: 1}, 5.0)
    assert [0.001, 0.008, 4.096] == [histogram.quantile(share) for share in (0.9, 0.99, 1)]
    assert (100, 0.05) == (histogram.count, histogram.mean)
    assert (None, None) == (Histogram().quantile(0.5), Histogram().mean)


def test_counters_of_a_version_that_counts_more_or_less_are_read_and_kept():
    more = (1,) * 12
    window = Window(29453760, (1, 1), (2,))
    for totals in (more, (5,)):
        given_counters = Counters(totals, Durations(1.0, 3, (1,)), Durations(), (window,), NOW.timestamp())
        state = codec.decode(codec.encode(QueueState(queue="q", counters={"work": given_counters})))
        after = with_moves(state.counters, [enqueued("work")], {}, NOW)["work"]
        assert totals[0] + 1 == after.totals[0]
        assert totals[1:] == after.totals[1 : len(totals)]
        assert totals_of(after, NOW).enqueued == totals[0] + 1


def test_sums_do_not_depend_on_the_order():
    times = (0, 90, 4000)
    several = [with_moves({}, [enqueued("a")], {}, NOW + timedelta(seconds=at))["a"] for at in times]
    assert merged(several) == merged(reversed(several))
    assert 3 == merged(several).totals[0]


async def test_the_header_grows_by_a_few_hundred_bytes(queue, clock):
    for _ in range(60):
        clock.advance(1)
        await queue.enqueue_many([Enqueue("a name of usual length")] * 40)
        clock.advance(1)
        await queue.ack_many(await queue.dequeue(batch_size=39))
    state = await queue.read_state()
    text = codec.HeaderTexts().counters.encode(state.counters)
    assert 2400 == state.counters["a name of usual length"].totals[0]
    assert len(text) < 400


class CountedName(str):
    """A name that counts how often a table looks for it."""

    looks = 0

    def __hash__(self):
        CountedName.looks += 1
        return super().__hash__()


def test_entrypoints_without_number_are_folded_in_a_time_that_grows_with_their_number():
    def looks(number):
        CountedName.looks = 0
        found = with_moves({}, [], {CountedName(f"e{each}"): 1 for each in range(number)}, NOW)
        assert len(found) <= ENTRYPOINTS_COUNTED
        return CountedName.looks

    assert looks(2000) < 3 * looks(1000)
