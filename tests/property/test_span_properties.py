"""The arithmetic of spans of rows, beside plain sets of row numbers."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from jqueue.domain.operations.ranges import _spans_from
from jqueue.domain.ranges import HOLES
from jqueue.domain.segment_index import HashTable, SegmentIndex
from jqueue.domain.segments import RowKey, Segment, joined, numbers_in, size_of, without

ROWS = 24

rows = st.sets(st.integers(0, ROWS - 1))
tries = st.dictionaries(st.integers(0, ROWS - 1), st.sampled_from([(1, 0), (1, 1), (2, 1)]))
spans = st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)), max_size=8)


def numbers(several):
    return {row for first, last in several for row in range(first, last)}


def spans_of(several):
    """Return rows as spans in order."""
    return joined((row, row + 1) for row in several)


def segment_with(taken, **facts):
    """Return a segment of which some rows are taken."""
    empty = Segment(entrypoint="t", rows=ROWS, bytes=1, index=1, crc=0, head=RowKey(0, 1, 0.0), chunk_rows=5, **facts)
    first, others = empty.taking(taken)
    return Segment.model_validate(empty.model_dump() | {"next": first, "taken": others})


def taken_in(segment):
    return set(range(segment.next)) | numbers(segment.taken)


@given(spans, spans)
def test_joined_and_without_are_union_and_difference(some, others):
    assert numbers(some) == numbers(joined(some))
    assert numbers(some) - numbers(others) == numbers(without(some, others))
    for found in (joined(some), without(some, others)):
        assert all(first < last for first, last in found)
        assert all(one[1] < other[0] for one, other in zip(joined(found), joined(found)[1:], strict=False))
        assert size_of(found) == len(numbers(found)) == len(list(numbers_in(found)))


@given(rows, rows)
def test_taking_rows_is_a_union(taken, more):
    segment = segment_with(taken)
    assert taken == taken_in(segment)
    assert ROWS - len(taken) == segment.waiting
    first, others = segment.taking(more)
    assert taken | more == set(range(first)) | numbers(others)
    assert (first, others) == segment.taking_spans(spans_of(more))
    assert first == min(set(range(ROWS + 1)) - taken - more)
    for row in range(ROWS):
        assert (row in taken) == segment.is_taken(row)
        assert len(set(range(row)) - taken) == segment.waiting_before(row)
    for chunk in range(segment.chunks):
        inside = {row for row in range(ROWS) if segment.chunk_of(row) == chunk}
        assert (inside <= taken) == segment.is_chunk_taken(chunk)


@given(rows, st.lists(st.tuples(rows, st.integers(0, 3), st.integers(0, 3)), max_size=4))
def test_rows_that_come_back_wait_again_with_their_claims(kept, returns):
    segment = segment_with(set(range(ROWS)))
    waiting: dict[int, tuple[int, int]] = {}
    for back, claims, failures in returns:
        held = back - kept - waiting.keys()
        segment = segment.giving_back(spans_of(held), claims, failures)
        waiting.update(dict.fromkeys(held, (claims, failures) if claims else (0, 0)))
        assert set(waiting) == set(range(ROWS)) - taken_in(segment)
        assert waiting == {row: segment.tries_of(row) for row in waiting}
        assert Segment.model_validate(segment.model_dump()) == segment, "the spans are in order"


@given(rows, rows, rows, tries, st.integers(1, ROWS), st.data())
def test_a_range_has_the_next_rows_that_wait_and_were_tried_as_often(taken, single, doubtful, tried, most, data):
    segment = segment_with(set(range(ROWS)))
    for numbers in {(0, 0), *tried.values()}:
        back = {row for row in range(ROWS) if tried.get(row, (0, 0)) == numbers}
        segment = segment.giving_back(spans_of(back), *numbers)
    first, others = segment.taking(taken)
    segment = segment.model_copy(update={"next": first, "taken": others})
    able = [row for row in range(ROWS) if row not in taken | single | doubtful]
    if not able:
        return
    row = data.draw(st.sampled_from(able))
    table = HashTable([], [])  # type: ignore[arg-type]
    index = SegmentIndex([], 0, table, table, [], spans_of(single))
    numbers = tried.get(row, (0, 0))
    expected = list(takewhile(lambda each: tried.get(each, (0, 0)) == numbers, (each for each in able if each >= row)))
    spans_found = _spans_from(row, most, segment, index, spans_of(doubtful))
    assert len(spans_found) <= HOLES + 1
    assert expected[:most] == list(numbers_in(spans_found))
