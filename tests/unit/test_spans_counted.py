"""Number of spans that a look at one row of a segment takes, with thousands of spans in its manifest."""

import pytest

from jqueue.domain import segments
from jqueue.domain.segments import RowKey, Segment

SPANS = 1000


class Counted(tuple):
    """Counts how often one of its items is read."""

    reads = 0

    def __getitem__(self, place):
        Counted.reads += 1
        return super().__getitem__(place)

    def __iter__(self):
        for item in super().__iter__():
            Counted.reads += 1
            yield item


@pytest.fixture
def segment():
    """Return a segment of which every other row was returned, and the others are done."""
    rows = 2 * SPANS
    whole = Segment(entrypoint="t", rows=rows, bytes=1, index=1, crc=0, head=RowKey(0, 1, 0.0), next=rows)
    found = whole.giving_back([(row, row + 1) for row in range(0, rows, 2)], 1, 0)
    Counted.reads = 0
    return found.model_copy(update={"taken": Counted(found.taken), "tried": Counted(found.tried)})


def test_a_row_is_looked_up_among_many_spans_with_a_few_steps(segment):
    for row in range(segment.rows):
        assert (row % 2 == 1) == segment.is_taken(row)
        assert ((1, 0) if row % 2 == 0 else (0, 0)) == segment.tries_of(row)
    assert not any(segment.is_chunk_taken(chunk) for chunk in range(segment.chunks))
    assert Counted.reads <= 30 * segment.rows


def test_rows_come_back_among_many_spans_in_a_few_passes_over_them(segment, monkeypatch):
    joined, passed = segments.joined, []

    def counting(spans):
        spans = [*spans]
        passed.append(len(spans))
        return joined(spans)

    monkeypatch.setattr(segments, "joined", counting)
    back = segment.giving_back([(row, row + 1) for row in range(1, segment.rows, 4)], 1, 0)
    assert SPANS * 3 // 2 == back.waiting
    assert sum(passed) <= 10 * SPANS
