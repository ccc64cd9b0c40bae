"""Rows that Arrow encodes are accepted, and become the same jobs, as if each were enqueued alone."""

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue.core.blob.segment_object import decode_chunk
from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import COUNT_MAX, PRIORITY_MAX
from jqueue.domain.job_options import IN_BULK
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Preparation, claim_of
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.spark.enqueue import encoding, json_columns
from jqueue.spark.enqueue.columns import Columns
from tests.segment_check import SegmentCheck

NOW, DAY, NAN = datetime(2030, 1, 1, tzinfo=UTC), timedelta(days=1), float("nan")
BASE = "00000000-1b7c-4e52-a8f3-90b6d2e7f415"
LIMITS = Limits(name_bytes=8, header_bytes=20, payload_bytes=9)
TEXTS, ODD = st.text(st.sampled_from('aé"\\ '), min_size=1, max_size=4), st.text(st.sampled_from("a€🙂\n\0\u2028"))
VALUES = {
    str: (pa.string(), TEXTS, ODD),
    int: (pa.int64(), st.integers(1, 5), st.sampled_from([-1, 0, PRIORITY_MAX + 1, COUNT_MAX])),
    timedelta: (pa.float64(), st.sampled_from([0.1, 60.0, LONGEST]), st.sampled_from([-1.0, 0.0, NAN, LONGEST + 1])),
    datetime: (
        pa.timestamp("us", "UTC"),
        st.sampled_from([NOW - DAY, NOW + DAY, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)]),
        st.datetimes(timezones=st.just(UTC)),
    ),
}
MAP = pa.map_(pa.string(), pa.string())
HEADERS = MAP, st.dictionaries(TEXTS, TEXTS, max_size=1), st.dictionaries(TEXTS | ODD, ODD | st.none(), max_size=4)
KINDS = {
    "payload": (pa.binary(), st.binary(max_size=9), st.binary(max_size=10)),
    "entrypoint": VALUES[str],
    **{name: VALUES.get(option.kind, HEADERS) for name, option in IN_BULK.items()},
}


def encoded(batch, constants, rows=3):
    """The segments of one task."""
    columns = Columns({name: place for place, name in enumerate(batch.schema.names)}, constants)
    with patch.object(encoding, "STAGED_ROWS", rows):
        encoder = encoding.RowEncoder(columns, LIMITS, NOW, 0, lambda: BASE)
    for first in range(0, len(batch), 3):
        encoder.add(batch.slice(first, 3))
    return [*encoder.full(), *encoder.rest()]


def jobs_in(segment):
    """The jobs of a segment, all of whose facts are checked."""
    content, entry, index, _ = segment
    check, jobs = SegmentCheck(entry, index), []
    for number in range(entry.chunks):
        data = content[slice(*index.bytes_of(number, number))]
        assert "" == check.chunk(number, data)
        jobs += decode_chunk(data, number, entry, index)
    assert entry.scheduled == any(job.run_at is not None and job.run_at > job.created_at for job in jobs)
    assert entry.keys == sum(job.unique_key is not None for job in jobs)
    spare = [job.max_attempts for job in jobs if job.max_attempts is not None]
    assert (min(spare, default=None), {entry.group}) == (entry.spare, {job.group for job in jobs})
    return jobs


@pytest.mark.wide
@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 8), st.sets(st.sampled_from(sorted(IN_BULK)), max_size=4), st.booleans())
def test_rows_become_the_jobs_that_enqueue_makes_of_each_or_are_refused(data, rows, names, is_constant):
    names = ["payload", *([] if is_constant else ["entrypoint"]), *sorted(names)]
    columns, odd = {}, data.draw(st.sampled_from([None, None, *names]))
    for name in names:
        kind, values, wrong = KINDS[name]
        cells = wrong if name == odd else values
        cells = cells if name in ("payload", "entrypoint") else cells | st.none()
        columns[name] = pa.array(data.draw(st.lists(cells, min_size=rows, max_size=rows)), kind)
    batch = pa.RecordBatch.from_pydict(columns)
    preparation = Preparation(LIMITS, 1.0, lambda: "new", claim_of)

    def alone(number: int, row: Any) -> Any:
        own: dict[str, Any] = {
            name: dict(value) if name == "headers" else value for name, value in row.items() if value is not None
        }
        return Enqueue(**({"entrypoint": "e"} | own)).prepared(preparation).job(number, NOW)

    constants = {"entrypoint": "e"} if is_constant else {}
    try:
        expected = [alone(number, row) for number, row in enumerate(batch.to_pylist(), 1)]
    except InvalidJobError:
        with pytest.raises(InvalidJobError, match=r"row \d of partition 0"):
            encoded(batch, constants)
        return
    with patch.object(json_columns, "FEW", data.draw(st.sampled_from([1, 2, 8]))):
        segments = encoded(batch, constants)
    found = sorted((job for each in segments for job in jobs_in(each)), key=lambda job: job.sequence)
    assert expected == [job.evolve(id="new") for job in found]
