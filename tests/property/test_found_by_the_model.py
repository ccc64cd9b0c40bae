"""Regressions found by the comparison with the plain model."""

from datetime import timedelta

import pytest

from jqueue import DirectQueue, DuplicateJobError, InMemoryStorage
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import EPOCH, VirtualClock
from tests.virtual_world import in_virtual_time, now


def a_queue():
    return DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


@in_virtual_time
async def test_a_ready_job_is_as_old_as_its_run_at_even_if_that_was_before_it_was_enqueued():
    queue = a_queue()
    await queue.enqueue("x", b"", run_at=EPOCH - timedelta(days=1))
    assert timedelta(days=1) == (await queue.stats()).oldest_ready_age


@pytest.mark.parametrize("dead", [False, True])
@in_virtual_time
async def test_a_job_given_back_or_redriven_is_as_old_as_before(dead):
    queue = a_queue()
    await queue.enqueue("x", b"")
    [job] = await queue.dequeue()
    assert [] == await queue.dequeue("nobody", wait=100)
    await queue.nack(job, dead=dead)
    await queue.redrive()
    assert 100 == round(now())
    assert 100 == round((await queue.stats()).oldest_ready_age.total_seconds())


@in_virtual_time
async def test_requeue_stale_revokes_a_claim_confirmed_in_the_same_moment():
    queue = a_queue()
    await queue.enqueue("x", b"")
    [job] = await queue.dequeue()
    await queue.heartbeat(job)
    assert 1 == await queue.requeue_stale(0)


@in_virtual_time
async def test_a_duplicate_within_one_call_names_a_job_that_is_undone_with_the_call():
    queue = a_queue()
    twin = Enqueue("x", b"", unique_key="k", on_conflict="raise")
    with pytest.raises(DuplicateJobError) as raised:
        await queue.enqueue_many([twin, twin])
    assert "k" == raised.value.unique_key
    assert () == (await queue.read_state()).jobs
