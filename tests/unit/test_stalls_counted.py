"""No O(n) work runs in one go between two turns of the event loop: counted on ten thousand waiting jobs."""

from datetime import timedelta
from typing import Any

import pytest

from jqueue.core.blob.pages import LINES_IN_PAGE, PAGES_PER_SLICE
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain import job_table, models
from jqueue.domain.lazy_heap import LazyHeap
from jqueue.domain.models import JobStatus
from jqueue.domain.slices import JOBS_PER_SLICE, LINES_PER_SLICE
from jqueue.testing.virtual_time import VirtualClock
from tests.deep_queue import DEEP, LineWork, Turns, deep_queue, deep_storage
from tests.virtual_world import in_virtual_time

pytestmark = pytest.mark.wide

both = pytest.mark.parametrize("make", [DirectQueue, BrokerQueue])


@both
@in_virtual_time
async def test_admin_calls_that_match_no_job_unpack_no_waiting_job(monkeypatch, make):
    queue, _ = await deep_queue(make)
    unpacked = []

    def counted(*given):
        unpacked.append(given)
        return models.trusted_job(*given)

    monkeypatch.setattr(job_table, "trusted_job", counted)
    assert 0 == await queue.purge()
    assert 0 == await queue.purge(status=JobStatus.COMPLETED)
    assert 0 == await queue.purge(entrypoint="another", older_than=timedelta(days=1))
    assert 0 == await queue.purge(status=JobStatus.QUEUED, entrypoint="another")
    assert 0 == await queue.purge(status=JobStatus.QUEUED, older_than=timedelta(days=1))
    assert 0 == await queue.redrive()
    assert 0 == await queue.redrive(entrypoint="another")
    assert 0 == await queue.requeue_stale(60)
    assert 60.0 == (await queue.configure(dead_retention=60)).dead_retention
    assert [] == unpacked


@in_virtual_time
async def test_purge_and_redrive_find_every_job_that_ended_and_no_other():
    queue, _ = await deep_queue()
    jobs = await queue.dequeue("work", batch_size=6)
    await queue.nack_many(jobs[:4], dead=True)
    assert 1 == await queue.redrive(jobs[0].id)
    assert 3 == await queue.redrive(entrypoint="work")
    assert 0 == await queue.purge()
    again = await queue.dequeue("work", batch_size=2)
    await queue.nack_many(again, dead=True)
    assert 0 == await queue.purge(entrypoint="first")
    assert 2 == await queue.purge(entrypoint="work")
    assert 2 == await queue.purge(status=JobStatus.QUEUED, entrypoint="first")
    assert 0 == (await queue.stats()).dead


@both
@pytest.mark.parametrize("verb", ["schedules", "stats", "read_state"])
@in_virtual_time
async def test_reading_known_jobs_yields_to_other_tasks(make, verb):
    queue, _ = await deep_queue(make)
    async with Turns(lambda: 0) as turns:
        await getattr(queue, verb)()
    assert DEEP // JOBS_PER_SLICE <= turns.count


@both
@in_virtual_time
async def test_opening_a_queue_loads_a_limited_number_of_lines_per_turn(monkeypatch, make):
    work = LineWork(monkeypatch)
    queue = make(await deep_storage(), clock=VirtualClock())
    async with queue, Turns(lambda: work.cut) as cutting, Turns(lambda: len(queue._engine.blob.pages)) as pages:
        await queue.enqueue("work", b"")
    assert LINES_PER_SLICE >= cutting.most
    assert PAGES_PER_SLICE * LINES_IN_PAGE >= pages.most > 0


def test_a_heap_whose_entries_are_all_up_to_date_is_not_cleaned_up_while_it_grows():
    looked = []

    def is_valid(entry):
        looked.append(entry)
        return True

    heap = LazyHeap(is_valid, live=lambda: len(heap.entries))
    for number in range(DEEP):
        heap.push((number, str(number)))
    assert [] == looked


def test_a_heap_is_cleaned_up_when_most_of_its_entries_are_out_of_date():
    heap = LazyHeap(lambda entry: entry[0] == 0, live=lambda: 1)
    for number in range(DEEP):
        heap.push((number, str(number)))
    assert len(heap.entries) <= 65


def test_the_first_entry_of_a_heap_that_fits_is_found_without_a_look_at_all_others():
    heap = LazyHeap(lambda entry: True)
    heap.push_all((number * 7919 % DEEP, str(number)) for number in range(DEEP))
    looked: list[int] = []
    for first in (0, 1, 300):

        def fits(entry: Any, first: int = first) -> bool:
            looked.append(entry[0])
            return bool(entry[0] >= first)

        looked.clear()
        found = heap.first(fits)
        assert found is not None
        assert first == found[0]
        assert len(looked) <= 3 * first + 50
    assert DEEP == len(heap.entries)
    assert heap.first(lambda entry: False) is None
