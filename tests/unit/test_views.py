"""A view of a queue: its jobs in the queue's object, and then the jobs of its other source."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from jqueue.core.engine.lazy_state import LazyState
from jqueue.core.engine.view import QueueView
from jqueue.domain.job_table import packed
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.slices import JOBS_PER_SLICE
from jqueue.domain.stats import Census
from jqueue.domain.stored_object import StoredObject
from tests.other_jobs import Rows

pytestmark = pytest.mark.asyncio

NOW = datetime(2026, 11, 23, tzinfo=UTC)


def job(job_id, sequence=1, **fields):
    return Job(id=job_id, entrypoint="hot", payload=b"", created_at=NOW).evolve(sequence=sequence, **fields)


def view_of(*hot, rows=None, pack=False):
    entries = {each.id: packed(each, {}) if pack else each for each in hot}
    return QueueView(LazyState(QueueState(), (), entries, rows), Limits(), 0, 0)


async def ids(jobs):
    return [each.id async for each in jobs]


@pytest.mark.parametrize("pack", [False, True])
async def test_the_filters_choose_jobs_of_the_object_and_reach_the_other_source(pack):
    rows = Rows(job("row"))
    hot = [job("a1", 3), job("a2", 1, entrypoint="other"), job("b", 2, status=JobStatus.DEAD)]
    view = view_of(*hot, rows=rows, pack=pack)
    assert ["a1", "a2", "b", "row"] == await ids(view.jobs())
    assert ["b", "row"] == await ids(view.jobs(JobStatus.DEAD))
    assert ["a1", "row"] == await ids(view.jobs(entrypoints=["hot"], prefix="a"))
    assert ["a1", "a2", "row"] == [each async for each in view.ids("a")]
    nothing = frozenset[object]()
    assert rows.asked == [
        (nothing, nothing, ""),
        ({JobStatus.DEAD}, nothing, ""),
        (nothing, {"hot"}, "a"),
        (nothing, nothing, "a"),
    ]
    assert len(rows.asked) == rows.ended


async def test_an_abandoned_iteration_ends_that_of_the_other_source():
    rows = Rows(job("row-1"), job("row-2"))
    async with aclosing(view_of(job("hot"), rows=rows).jobs()) as jobs:
        assert ["hot", "row-1"] == [(await anext(jobs)).id for _ in range(2)]
    assert 1 == rows.ended


async def test_other_tasks_get_turns_while_no_job_is_found():
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    view = view_of(*(job(f"{number}") for number in range(4 * JOBS_PER_SLICE)))
    assert [] == await ids(view.jobs(JobStatus.DEAD))
    other.cancel()
    assert 3 <= turns <= 4


async def test_statistics_count_the_jobs_of_both_sources():
    later = NOW + timedelta(hours=1)
    figures = await view_of(job("hot"), rows=Rows(job("row"), job("later", run_at=later))).stats(NOW)
    assert (2, 1) == (figures.depth, figures.scheduled)


async def test_objects_named_by_jobs_of_the_queues_object_are_known():
    stored = StoredObject(suffix=".payloads/a", size=1, sha256="0" * 64)
    view = view_of(job("hot", payload_object=stored), job("plain"))
    assert [stored] == [each async for each in view.objects()]


async def test_waiting_jobs_can_be_counted_without_being_looked_at():
    one_by_one, at_once = Census(NOW), Census(NOW)
    for number in range(3):
        one_by_one.count(job(f"{number}", created_at=NOW - timedelta(seconds=number)))
    one_by_one.count(job("later", run_at=NOW + timedelta(hours=1)))
    at_once.count_waiting("hot", 3, 1, NOW - timedelta(seconds=2))
    expected, seen = (each.figures(QueueState(), (), 0, 0, Limits()) for each in (one_by_one, at_once))
    assert expected == seen
    assert timedelta(seconds=2) == seen.oldest_ready_age
