"""Bugs in limits, results and cron entries that a comparison with the plain model has found."""

from datetime import UTC, datetime, timedelta

from jqueue import ClaimLostError, DirectQueue, InMemoryStorage
from jqueue.domain.draft import Draft
from jqueue.domain.models import Job
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Nack
from jqueue.domain.operations.operator import Cancel
from jqueue.domain.operations.rules import SetSchedule, Unschedule
from jqueue.operations import Enqueue, Heartbeat
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


def a_queue():
    return DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


@in_virtual_time
async def test_a_refused_heartbeat_of_apply_each_is_an_error_in_its_place():
    queue = a_queue()
    await queue.enqueue("x", b"")
    [job] = await queue.dequeue()
    await queue.ack(job)
    lost, added = await queue.apply_each(Heartbeat((job,)), Enqueue("x", b""))
    assert isinstance(lost, ClaimLostError)
    assert isinstance(added, Job)


@in_virtual_time
async def test_a_key_kept_after_the_ack_can_be_replaced_although_a_result_is_kept():
    queue = a_queue()
    await queue.enqueue("x", b"", unique_key="k", unique_for=100, keep_result=100)
    [job] = await queue.dequeue()
    await queue.ack(job)
    again = await queue.enqueue("x", b"", unique_key="k", on_conflict="replace")
    assert "queued" == again.status


def test_an_occurrence_fired_again_starts_above_the_forgotten_attempts():
    """A clock that is behind fires an occurrence again, and its job has the same id."""
    draft, early = Draft(), datetime(2026, 1, 1, 2, 59, tzinfo=UTC)
    due = early + timedelta(minutes=2)
    claims = []
    for _ in range(2):
        SetSchedule("n", "0 3 * * *", "x").change(draft, early)  # the second time by a clock that is behind
        [job] = Dequeue(("x",), claim_timeout=30.0).change(draft, due)
        claims.append(job.claim)
        Cancel(job.id, True).change(draft, due)
        Nack(job.claim).change(draft, due)
        Unschedule("n").change(draft, due)
    assert claims[0].job_id == claims[1].job_id
    assert claims[0].attempt < claims[1].attempt


def a_schedule(draft, now, **values):
    operation = SetSchedule("n", "0 3 * * *", "x", **values)
    return operation.change(draft, now)


def test_an_overdue_cron_entry_set_with_another_payload_still_fires():
    draft, early = Draft(), datetime(2026, 1, 1, 2, 50, tzinfo=UTC)
    a_schedule(draft, early)
    late = early + timedelta(minutes=20)
    a_schedule(draft, late, payload=b"another")
    [job] = Dequeue(("x",), claim_timeout=30.0).change(draft, late)
    assert "cron:n:2026-01-01T03:00:00+00:00" == job.id
    assert b"another" == job.payload


def test_a_cron_entry_fired_by_a_clock_far_ahead_is_due_on_time_when_set_again():
    draft, now = Draft(), datetime(2026, 1, 1, 2, 50, tzinfo=UTC)
    a_schedule(draft, now)
    Dequeue(("other",), claim_timeout=30.0).change(draft, now + timedelta(days=365))
    assert datetime(2026, 1, 1, 3, tzinfo=UTC) == a_schedule(draft, now).next_at
