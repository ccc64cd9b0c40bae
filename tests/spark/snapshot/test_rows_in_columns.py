"""A segment gives the same rows, byte for byte, whether it is read in columns or line by line."""

import asyncio
from collections import Counter
from itertools import chain

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from hypothesis import given, settings
from pyspark.sql.pandas.types import to_arrow_schema

from jqueue import Job, Limits, LocalFileSystemStorage
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.pages import SEPARATOR
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.segment_index import whole_lines
from jqueue.operations import Enqueue
from jqueue.spark.rows import FLEET_SCHEMA, SNAPSHOT_SCHEMA
from jqueue.spark.snapshot.line_rows import LineCounts, batches_of, batches_of_rows
from jqueue.spark.snapshot.reader import SnapshotReader
from jqueue.spark.snapshot.segment_rows import SegmentRows
from tests.spark.alike_lines import NOW, alike, edited_lines, joined, marked, plain
from tests.spark.test_rows_properties import undated
from tests.tiny_segments import spilled, tiny_queue

ARROW = to_arrow_schema(FLEET_SCHEMA, timezone="UTC")


def table_of(batches):
    """All rows as a table, after a check that each batch is what Spark expects."""
    table = pa.Table.from_batches(list(batches), ARROW)
    table.validate(full=True)
    return table


def check(text, texts=()):
    """Assert that a segment gives the same rows in columns and line by line. Return how many were read in columns.

    Args:
        text: the rows as they are stored.
        texts: the shared texts, each of which a mark stands for.
    """
    counts, expected = LineCounts(), LineCounts()
    rows = table_of(batches_of_rows(text, texts, FLEET_SCHEMA, "q", counts))
    lines = whole_lines(text, texts)[:-1].replace(b"\n", SEPARATOR)
    by_line = table_of(batches_of(lines, FLEET_SCHEMA, "q", expected))
    if not by_line.equals(rows):  # jobs without a date may differ in that
        assert list(map(undated, by_line.to_pylist())) == list(map(undated, rows.to_pylist()))
    assert expected.set_aside == counts.set_aside
    return counts.in_columns


@pytest.mark.wide
@settings(max_examples=60, deadline=None)
@given(alike())
def test_rows_of_any_options_are_the_same_in_columns(lines):
    assert check(joined(lines)) in (0, len(lines))
    assert check(*marked(joined(lines))) in (0, len(lines))


@pytest.mark.wide
@settings(max_examples=200, deadline=None)
@given(edited_lines)
def test_rows_of_damaged_or_edited_lines_are_the_same(text):
    check(text)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"keep_result": 60.0},
        {"priority": -7, "max_attempts": 3},
        {"headers": {"a": "é", "b": ""}},
        {"unique_key": "k"},
        {"run_at": NOW, "expires_at": NOW},
        {"concurrency_key": "c", "concurrency_limit": 2},
        {"attempt": 2, "failures": 1, "error": "of an attempt", "attempts_before": 1, "queued_at": NOW},
    ],
)
def test_rows_with_an_option_are_read_in_columns(values):
    job = Job(entrypoint="resize", payload=b"", created_at=NOW, **values)
    lines = [encode_job(job.evolve(id=f"{each}", payload=bytes(each), sequence=each + 1)) for each in range(20)]
    assert len(lines) == check(joined(lines))


def test_a_line_that_is_unlike_the_others_is_read_with_them_line_by_line():
    ids = [b"%d" % each for each in range(20)]
    assert 20 == check(plain(ids, [b""] * 20))
    assert 0 == check(plain([*ids, b"escaped \\\\"], [b""] * 21))


@pytest.fixture
def queue(tmp_path):
    """A queue whose jobs are in segments. Some were claimed, some came back, and the segment has moved."""
    path = tmp_path / "queue.json"

    async def work():
        async with tiny_queue(LocalFileSystemStorage(path), Limits(batch_size=10), chunk_rows=16) as queue:
            await queue.enqueue("mail", b"")
            await queue.enqueue_many(Enqueue("resize", b"%d" % each, headers={"of": "all"}) for each in range(200))
            await spilled(queue)
            back = await queue.claim_range("resize", 20)
            assert back is not None
            await queue.end_range(back, nothing_done=True)
            await queue.dequeue("resize", batch_size=3)
            for _ in range(2):  # the rows that came back, and others
                assert await queue.claim_range("resize", 70, holder="me") is not None

    asyncio.run(work())
    return path


def pieces_of(path):
    parts = SnapshotReader({"path": str(path)}, SNAPSHOT_SCHEMA).partitions()
    return [piece for part in parts for piece in part.value if isinstance(piece, SegmentRows)]


def test_rows_that_wait_or_are_claimed_as_a_range_are_read_in_columns(queue):
    counts: Counter[str] = Counter()
    for lines in chain.from_iterable(piece.lines() for piece in pieces_of(queue)):
        kind = "changed" if lines.texts is None else "waiting" if lines.held is None else "held"
        counts[kind] += 1 if lines.texts is None else check(lines.text, lines.texts)
    assert counts["held"] >= 32
    assert counts["waiting"] >= 64
    assert counts["changed"] > 0


def test_rows_with_a_changed_byte_are_an_error_that_shows_no_payload(queue):
    """The text of the damaged row is still that of a job: its checksum alone tells."""
    [segment] = [path for path in queue.parent.glob("*.segments/*") if b"MTUw" in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"MTUw", b"MTUx"))
    reader = SnapshotReader({"path": str(queue)}, SNAPSHOT_SCHEMA)
    with pytest.raises(StorageFatalError, match=r"segment [^ ]+ is damaged: rows of it were changed") as caught:
        [batch for part in reader.partitions() for batch in reader.read(part)]
    assert "MTUx" not in str(caught.value)
