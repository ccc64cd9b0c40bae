"""What was found and is to be mended. Each of these fails as long as it is not; then it goes where it belongs."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue import ClaimLostError, DirectQueue, Enqueue, Heartbeat, InMemoryStorage, InvalidJobError
from jqueue.domain.draft import Draft
from jqueue.domain.models import Job
from jqueue.domain.operations import Cancel, Dequeue, Nack, SetSchedule, Unschedule
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

to_be_mended = pytest.mark.xfail(strict=True)


def a_queue():
    return DirectQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


@to_be_mended
@in_virtual_time
async def test_a_heartbeat_that_is_refused_among_others_is_an_error_in_its_place():
    """It is StorageError, after the commit: `ClaimRegistry._note_heartbeat` takes the refusal for a list."""
    queue = a_queue()
    await queue.enqueue("x", b"")
    [job] = await queue.dequeue()
    await queue.ack(job)
    lost, added = await queue.apply_each(Heartbeat((job,)), Enqueue("x", b""))
    assert isinstance(lost, ClaimLostError)
    assert isinstance(added, Job)


@to_be_mended
@pytest.mark.parametrize("headers", [7, "text", [1]])
@in_virtual_time
async def test_headers_of_a_cron_entry_that_are_no_mapping_are_refused(headers):
    """It is TypeError: `SetSchedule.prepared` unpacks them before they are checked."""
    with pytest.raises(InvalidJobError):
        await a_queue().schedule("n", "* * * * *", "x", headers=headers)


@to_be_mended
@in_virtual_time
async def test_a_key_kept_after_the_ack_can_be_replaced_whether_a_result_is_kept_or_not():
    """DuplicateJobError, "it is completed", where a result is kept: `NewJob._replace` finds the completed job."""
    queue = a_queue()
    await queue.enqueue("x", b"", unique_key="k", unique_for=100, keep_result=100)
    [job] = await queue.dequeue()
    await queue.ack(job)
    again = await queue.enqueue("x", b"", unique_key="k", on_conflict="replace")
    assert "queued" == again.status


@to_be_mended
def test_an_occurrence_fired_once_more_goes_on_above_the_attempts_that_were_forgotten():
    """The ids of cron jobs come back when a clock was behind. `fire_due` makes them as if they were drawn."""
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


@to_be_mended
def test_a_job_with_a_result_can_be_hashed_as_any_other():
    """`Job` is hashable, headers and all; with a list or an object as its result it is not."""
    assert {Job(id="a", entrypoint="x", payload=b"", result=[1])}


@to_be_mended
def test_a_key_held_twice_by_hand_is_still_held_when_one_of_the_two_has_left():
    """`Draft.keys` forgets the other; a reader who never saw the first holds it."""
    draft = Draft()
    draft.load(
        Job(id=name, entrypoint="x", payload=b"", sequence=at, unique_key="k") for at, name in enumerate("ab", 1)
    )
    draft.load([], ["b"])
    assert {"k": "a"} == draft.keys
