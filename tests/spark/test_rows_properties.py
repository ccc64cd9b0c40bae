"""The rows of any blob, even an edited or damaged one, are the jobs that the queue reads from it."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from itertools import chain

import pytest

pytest.importorskip("pyspark")

from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage, JobStatus, QueueState
from jqueue.core.blob import codec
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.slices import exhaust
from jqueue.spark.rows import SNAPSHOT_SCHEMA, arrow_of
from jqueue.spark.snapshot.blob_lines import JobFilter, job_lines
from jqueue.spark.snapshot.line_rows import LineCounts, batches_of
from jqueue.spark.snapshot.reader import BlobLines, cut
from tests.fuzz.choices import Choices
from tests.fuzz.edits import edit
from tests.fuzz.oracles import is_deep
from tests.fuzz.seeds import blobs, corpus
from tests.property.blob_edits import EDITS
from tests.property.test_layout_properties import any_jobs, states

pytestmark = pytest.mark.wide

SOME = settings(max_examples=40, deadline=None)
ALL = JobFilter()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(data, job_filter=ALL, parts=3):
    """The rows that a snapshot makes of a blob, and the number of unreadable lines."""
    lines, counts = job_lines(data, job_filter), LineCounts()
    found = []
    for part in cut([BlobLines("q", lines.text)], parts):
        for text, *_ in chain.from_iterable(piece.lines() for piece in part if isinstance(piece, BlobLines)):
            for batch in batches_of(text, SNAPSHOT_SCHEMA, None, counts):
                found += batch.to_pylist()
    return [undated(row) for row in found], lines.set_aside + counts.set_aside


def undated(row):
    """A row without its date if that is today, which a job without a date gets when it is read."""
    today = abs(datetime.now(UTC) - row["created_at"]) < timedelta(minutes=10)
    return {**row, "created_at": EPOCH} if today else row


def expected(jobs):
    return [undated(row) for row in arrow_of(jobs, SNAPSHOT_SCHEMA).to_pylist()]


def seen_by_the_queue(data):
    async def look():
        async with DirectQueue(InMemoryStorage(data)) as queue:
            return await queue.read_state()

    return asyncio.run(look())


def check(data):
    """Assert that the rows are the jobs of the codec in their order, and the jobs that a queue reads."""
    if is_deep(data):
        return None
    try:
        state = exhaust(codec.reading_state(codec.parse_blob(data)))
    except InvalidBlobError as error:
        with pytest.raises(InvalidBlobError, match=re.escape(str(error))):
            rows_of(data)
        return None
    rows, set_aside = rows_of(data)
    assert expected(state.jobs) == rows
    assert len(state.set_aside) == set_aside
    seen = {row["id"]: row for row in expected(seen_by_the_queue(data).jobs)}
    assert len(seen) == len(rows)
    assert rows == [seen[row["id"]] for row in rows]
    return state


@SOME
@given(states)
def test_rows_match_the_jobs_of_a_blob_written_by_jqueue(state):
    assert check(codec.encode(state)) is not None


@SOME
@given(states, st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 999)), max_size=6))
def test_rows_match_the_jobs_of_a_blob_edited_by_other_writers(state, edits):
    data = codec.encode(state)
    for change, number in edits:
        data = change(data, number)
    check(data)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(blobs()), st.integers(0, 5), st.binary(min_size=8, max_size=64))
def test_rows_match_the_jobs_of_a_damaged_blob(data, edits, decisions):
    choices = Choices(decisions)
    for _ in range(edits):
        data = edit(data, choices)
    check(data)


@pytest.mark.full
@settings(max_examples=20_000, deadline=None)
@given(st.sampled_from(blobs()), st.integers(1, 5), st.binary(min_size=8, max_size=64))
def test_rows_match_the_jobs_of_many_damaged_blobs(data, edits, decisions):
    choices = Choices(decisions)
    for _ in range(edits):
        data = edit(data, choices)
    check(data)


@pytest.mark.parametrize("number", range(len(corpus("decode"))))
def test_rows_match_the_jobs_of_each_blob_found_by_fuzzing(number):
    for part in corpus("decode")[number].split(b"\n\0\0\n"):
        check(part)


@SOME
@given(st.lists(any_jobs, min_size=1, max_size=6, unique_by=lambda job: job.id), st.data())
def test_rows_can_be_limited_to_entrypoints_and_statuses(jobs, data):
    state = QueueState(jobs=tuple(jobs), version=3, queue="q")
    names = data.draw(st.none() | st.lists(st.sampled_from([job.entrypoint for job in jobs] + ["other"]), min_size=1))
    statuses = data.draw(st.none() | st.lists(st.sampled_from([status.value for status in JobStatus]), min_size=1))
    content = codec.encode(state)
    if data.draw(st.booleans()):
        content = content.replace(b",\n", b" ,\n")  # a layout that jqueue does not write
    kept = [
        job
        for job in codec.decode(content).jobs
        if (names is None or job.entrypoint in names) and (statuses is None or job.status in statuses)
    ]
    assert expected(kept) == rows_of(content, JobFilter(names, statuses))[0]


HEADER = b'{"format": 2, "version": 1, "queue": "q", "jobs": {\n'


def job_line(name, more=b"", sequence=b"1"):
    at = b'"created_at": "2026-01-02T03:04:05+00:00"'
    return b'"%b": {"entrypoint": "x", "payload": "", "sequence": %b, %b%b}' % (name, sequence, at, more)


COMPLETED = b', "status": "completed", "keep_result": 9, "finished_at": "2026-01-01", "result": '

HAND_MADE = {
    "one id twice": [job_line(b"a"), job_line(b"a", sequence=b"2")],
    "one id twice, once with an escape": [job_line(b"a"), job_line(b"\\u0061")],
    "one id twice, the first one unreadable": [job_line(b"a").replace(b'"x"', b"7"), job_line(b"a")],
    "no place": [job_line(b"a"), job_line(b"b").replace(b'"sequence": 1, ', b"")],
    "place 0": [job_line(b"a"), job_line(b"b", sequence=b"0")],
    "a place as a text": [job_line(b"a"), job_line(b"b", sequence=b'"7"')],
    "a place as true": [job_line(b"a"), job_line(b"b", sequence=b"true")],
    "a place that is too large": [job_line(b"a"), job_line(b"b", sequence=b"4503599627370497")],
    "a line that ends within an object, and another that ends it": [
        job_line(b"a", b', "headers": {"x": "y"}')[:-1],
        job_line(b"b") + b"}, " + job_line(b"c", sequence=b"2"),
    ],
    "the same, with braces in texts": [
        job_line(b"a", b', "error": "}", "headers": {"x": "y"}')[:-1],
        job_line(b"b", b', "error": "{"') + b"}, " + job_line(b"c", sequence=b"2"),
    ],
    "the same, with as many braces on each line": [
        job_line(b"a", b', "error": "}", "headers": {"x": "y"}')[:-1],
        b'"b": {}}, ' + job_line(b"c", b', "error": "{"', b"2"),
    ],
    "the same, and what is open is a result": [
        job_line(b"a", COMPLETED + b'{"x": {}')[:-1],
        b'"y": {}}}, ' + job_line(b"b", sequence=b"2"),
    ],
    "two on a line": [job_line(b"a") + b", " + job_line(b"b", sequence=b"2")],
    "one on two lines": [job_line(b"a", b', "headers": {}').replace(b', "headers"', b',\n"headers"')],
    "one on two lines, of which each looks like one": [
        job_line(b"a", b', "headers": {"x": "y"}')[:-1],
        b'"error": {}}',
    ],
    "objects in a text": [job_line(b"a", b', "error": "{\\"a\\": {}}"'), job_line(b"b", sequence=b"2")],
    "an object in a text, and one that it ends": [
        job_line(b"a", b', "error": "}", "headers": {"a": "b"')[:-1] + b"}",
        job_line(b"b", b', "error": "{"}', b"2"),
    ],
    "a name twice": [job_line(b"a", b', "error": "e", "error": "f"')],
    "a name twice, and a name in a text": [job_line(b"a", b', "error": "\\": ", "priority": 1, "priority": 2')],
    "a name twice, with a space behind it": [job_line(b"a", b', "error" : "e", "error" : "f"')],
    "a name twice in a result": [
        job_line(b"a", COMPLETED + b'{"a": 1, "a": 2}'),
    ],
    "a job in progress that nobody has claimed": [job_line(b"a", b', "status": "in_progress"')],
    "a result that is not kept": [job_line(b"a", b', "status": "completed", "result": 7')],
    "an attempt that is out of range": [job_line(b"a", b', "attempt": 9007199254740993')],
    "a field that nobody knows": [job_line(b"a", b', "colour": {"red": 7}'), job_line(b"b", sequence=b"2")],
    "an id in the fields": [job_line(b"a", b', "id": "b"')],
    "no date": [job_line(b"a").replace(b', "created_at": "2026-01-02T03:04:05+00:00"', b"")],
    "null where nothing is meant": [job_line(b"a", b', "run_at": null, "error": null')],
    "null where something must be": [job_line(b"a", b', "priority": null')],
    "a number as a text": [job_line(b"a", b', "priority": "7", "max_attempts": 5.0')],
    "a payload that is no base64": [job_line(b"a").replace(b'"payload": ""', b'"payload": "eA="')],
    "a payload in other letters": [job_line(b"a").replace(b'"payload": ""', b'"payload": "_-8="')],
    "a payload with a line break": [job_line(b"a").replace(b'"payload": ""', b'"payload": "eA==\\n"')],
    "a time without a zone": [job_line(b"a", b', "run_at": "2026-01-02"')],
    "a time before all times": [job_line(b"a", b', "run_at": "0001-01-01T00:00:00+14:00"')],
    "a time as a number": [job_line(b"a", b', "run_at": 1767225600')],
    "a number that is no JSON": [job_line(b"a", b', "priority": NaN')],
    "a number without an end": [job_line(b"a", b', "claim_timeout": 1e999')],
    "a result without an end": [
        job_line(b"a", COMPLETED + b"1e999"),
    ],
    "a value that is no job": [b'"a": 7', job_line(b"b")],
    "an id that is empty": [job_line(b""), job_line(b"b")],
    "headers that are none": [job_line(b"a", b', "headers": {"a": 7}'), job_line(b"b", b', "headers": []', b"2")],
    "bytes that are no text": [job_line(b"\xed\xa0\x80"), job_line(b"b", sequence=b"2")],
    "a text that is half a character": [job_line(b"a", b', "error": "\\ud800"')],
    "a NUL in a text": [job_line(b"a", b', "error": "\\u0000"')],
    "a status that there is not": [job_line(b"a", b', "status": "scheduled"')],
}


@pytest.mark.parametrize("name", HAND_MADE)
@pytest.mark.parametrize("also", [(), (job_line(b"other", sequence=b"99"),)])
def test_rows_match_the_jobs_of_hand_made_lines(name, also):
    assert check(HEADER + b",\n".join([*also, *HAND_MADE[name]]) + b"\n}}\n") is not None


READ_IN_BULK = ("objects in a text", "a number as a text", "a time without a zone", "null where nothing is meant")


@pytest.mark.parametrize("name", READ_IN_BULK)
def test_rare_but_valid_lines_are_read_in_bulk(name):
    text, counts = job_lines(HEADER + b",\n".join(HAND_MADE[name]) + b"\n}}\n", ALL).text, LineCounts()
    assert len(HAND_MADE[name]) == sum(batch.num_rows for batch in batches_of(text, SNAPSHOT_SCHEMA, None, counts))
    assert 0 == counts.one_by_one


@SOME
@given(states)
def test_lines_written_by_jqueue_are_read_in_bulk_unchanged(state):
    """Reading them one by one would be correct, but ten times slower."""
    data = codec.encode(state)
    parsed = codec.parse_blob(data)
    text, counts = job_lines(data, ALL).text, LineCounts()
    assert data[parsed.first : parsed.end] == text
    assert len(state.jobs) == sum(batch.num_rows for batch in batches_of(text, SNAPSHOT_SCHEMA, None, counts))
    assert 0 == counts.one_by_one


@pytest.mark.parametrize("extra", [b"", b', "colour": "red"'], ids=["in bulk", "one by one"])
def test_the_payload_of_a_job_is_null_if_it_is_in_an_object(extra):
    stored = b', "payload_object": [".payloads/1", 5, "%b"]' % (b"0" * 64)
    lines = [
        b'"%d": {"entrypoint": "t", "payload": "%b", "created_at": "2026-01-01T00:00:00+00:00"%b}' % (number, *fields)
        for number, fields in enumerate([(b"", stored + extra), (b"", extra), (b"AAA=", extra)])
    ]
    batches = list(batches_of(b",\n".join(lines), SNAPSHOT_SCHEMA, None, LineCounts()))
    assert [None, b"", b"\0\0"] == [value for batch in batches for value in batch.column("payload").to_pylist()]
