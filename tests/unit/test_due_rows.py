"""The next due time of a queue takes account of rows in segments that are not loaded."""

from datetime import UTC, datetime, timedelta

from jqueue.domain.draft import Draft
from jqueue.domain.models import QueueState
from jqueue.domain.segments import RowKey, Segment

DUE = datetime(2026, 1, 1, tzinfo=UTC)
MANIFEST = {
    "s": Segment(
        entrypoint="paused", rows=1, bytes=100, index=50, crc=0, head=RowKey(0, 1, DUE.timestamp()), scheduled=True
    )
}


def next_due(now):
    draft = Draft()
    draft.take_header(QueueState(segments=MANIFEST))
    assert draft.take_ready(("other",), now) is None
    return draft.next_due()


def test_a_scheduled_row_wakes_a_waiting_consumer_when_it_is_due():
    assert DUE <= next_due(DUE - timedelta(seconds=10)) <= DUE + timedelta(milliseconds=1)


def test_a_row_that_is_due_and_that_nothing_asks_for_does_not_wake_a_consumer_again_and_again():
    assert next_due(DUE + timedelta(seconds=10)) is None
