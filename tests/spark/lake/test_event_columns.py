"""A lake takes events in columns: each row has the fields of the event that a history returns."""

import json

from hypothesis import given
from hypothesis import strategies as st

from jqueue.domain.events import columns_in, events_in
from jqueue.spark.lake.events import ROWS, FolderRows, rows_of

kinds = st.tuples(
    st.sampled_from(["resize", "größe", None]),
    st.sampled_from(["enqueue", "dequeue", "ack", "nack", "start"]),
    st.sampled_from([None, "queued", "in_progress"]),
    st.sampled_from([None, "queued", "dead"]),
    st.none() | st.sampled_from(["loader@east-1:4711"]),
)
spans = st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19)), min_size=1, max_size=2)
columns = st.tuples(
    st.none() | st.text(max_size=3),
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 10**6).map(lambda thousandths: thousandths / 1000),
    st.none() | st.integers(0, 10**12).map(lambda micros: micros / 10**6),
    st.none() | st.text(max_size=3),
    st.none() | st.sampled_from(["", "ZG9nLnBuZw=="]),
    st.none() | st.integers(1, 1000),
)


@st.composite
def batches(draw):
    some = draw(st.lists(kinds, min_size=1, max_size=3))
    rows = draw(st.lists(st.tuples(st.integers(0, len(some) - 1), columns, st.integers(0, 7)), max_size=6))
    events = [[kind, *values[:given]] for kind, values, given in rows]
    at = draw(st.integers(0, 4 * 10**12)) / 1000
    places = draw(st.none() | st.dictionaries(st.integers(0, 5), st.lists(st.tuples(st.text(max_size=2), spans))))
    return json.dumps(
        [draw(st.integers(1, 2**40)), len(events), at, [*some, *([{"rows": places}] if places else [])], events]
    )


def fields(events):
    return [
        {"queue": "name", "queue_id": "id"}
        | {name: getattr(event, name) for name in ROWS.names if name not in ("queue", "queue_id", "rows")}
        | {"rows": rows_of(event.rows)}
        for event in events
    ]


@given(st.lists(batches(), min_size=1, max_size=3), st.data())
def test_each_row_has_the_fields_of_its_event(several, data):
    held, expected = FolderRows(), []
    for batch in several:
        events, found = events_in(batch), columns_in(batch)
        places = sorted(data.draw(st.sets(st.sampled_from(range(len(events)))))) if events else []
        held.add("name", "id", found, places)
        expected += [events[place] for place in places]
    table = held.table()
    assert (ROWS, len(expected)) == (table.schema, table.num_rows)
    assert fields(expected) == table.to_pylist()
