"""The comparison of a queue with segments and one without finds planted faults, each within its number of examples."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.job_table import packed, unpacked
from jqueue.domain.segment_rows import SegmentRows
from jqueue.domain.segments import Segment, joined
from tests.property.call_machine import search
from tests.property.segment_machine import MACHINES

pytestmark = pytest.mark.wide

SEARCH = search(examples=300)


def rows_come_after_all_hot_jobs(patch):
    patch(SegmentRows, "check_before", lambda self, names, best, through, now: None)


def due_rows_wait_on(patch):
    patch(SegmentRows, "_due", lambda self, names, at: [])


def a_row_loses_its_delay(patch):
    load = SegmentRows.load

    def hasty(self, name, chunk, rows, **whole):
        load(self, name, chunk, [(row, job_id, _without_delay(job_id, entry)) for row, job_id, entry in rows], **whole)

    patch(SegmentRows, "load", hasty)


def _without_delay(job_id, entry):
    return packed(unpacked(job_id, entry).evolve(run_at=None), {})


def a_row_loses_its_priority(patch):
    load = SegmentRows.load

    def levelling(self, name, chunk, rows, **whole):
        load(self, name, chunk, [(row, job_id, (*entry[:3], 0, *entry[4:])) for row, job_id, entry in rows], **whole)

    patch(SegmentRows, "load", levelling)


def a_unique_key_is_overlooked_in_a_segment(patch):
    patch(IndexedJobs, "find_key", lambda self, key: self.keys_held.get(key))


def an_id_is_overlooked_in_a_segment(patch):
    patch(IndexedJobs, "find", lambda self, job_id: self.get(job_id))


def a_taken_row_waits_on(patch):
    patch(SegmentRows, "manifest", lambda self: self.segments)


def a_taken_row_comes_back(patch):
    def forgetful(self, rows):
        spans, first = joined((row, row + 1) for row in rows), self.next
        if spans and spans[0][0] <= first:
            first = max(first, spans.pop(0)[1])
        return first, tuple(spans)

    patch(Segment, "taking", forgetful)


@pytest.mark.parametrize(
    "fault",
    [
        rows_come_after_all_hot_jobs,
        due_rows_wait_on,
        a_row_loses_its_delay,
        a_row_loses_its_priority,
        a_unique_key_is_overlooked_in_a_segment,
        an_id_is_overlooked_in_a_segment,
        a_taken_row_waits_on,
        pytest.param(a_taken_row_comes_back, marks=pytest.mark.full),
    ],
)
def test_a_planted_fault_is_found(monkeypatch, fault):
    fault(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(MACHINES[0], settings=SEARCH)
