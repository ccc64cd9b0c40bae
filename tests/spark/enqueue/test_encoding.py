"""Rows become jobs: every kind of payload, every optional column, and a one-line error for an invalid row."""

import asyncio
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import InvalidJobError, QueueFullError
from jqueue.domain.limits import Limits
from jqueue.domain.operations import EnqueueStaged
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.columns import columns_of
from jqueue.spark.enqueue.encoding import RowEncoder
from tests.spark.enqueue.bulk import batch, schema

TEXT, HEADERS = StringType(), MapType(StringType(), StringType())
NOON = datetime(2126, 1, 2, 12, tzinfo=UTC)


def encoded(columns, *batches, limits=None, **constants):
    encoder = RowEncoder(columns_of(columns, constants), StagedWriter(limits), 3, SystemEntropy())
    for rows in batches:
        encoder.add(batch(columns, *rows))
    return encoder.staged


def jobs(columns, *rows, **constants):
    """The jobs made from rows."""
    staged = read_staged(encoded(columns, rows, **constants).finish())

    async def enqueue():
        queue = DirectQueue(InMemoryStorage())
        await queue.apply(EnqueueStaged([staged]))
        return (await queue.read_state()).jobs

    return sorted(asyncio.run(enqueue()), key=lambda job: job.sequence)


def payloads(columns, *rows):
    return [job.payload for job in jobs(columns, *rows, entrypoint="a")]


def problem(columns, *batches, limits=None, error=InvalidJobError, **constants):
    with pytest.raises(error) as caught:
        encoded(columns, *batches, limits=limits, **({} if "entrypoint" in columns.names else {"entrypoint": "a"}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bytes_become_the_payload_unchanged():
    assert [b"\0\xff", b""] == payloads(schema(payload=BinaryType()), (b"\0\xff",), (b"",))


def test_a_text_becomes_a_payload_in_utf_8():
    assert ["größer 🙂".encode(), b""] == payloads(schema(payload=TEXT), ("größer 🙂",), ("",))


def test_a_struct_becomes_an_object_in_the_order_of_its_fields():
    row = schema(z=LongType(), a=TEXT, n=DoubleType())
    found = payloads(schema(payload=row), ({"z": 2**60, "a": "ü", "n": None},), ({"z": None, "a": None, "n": 0.5},))
    assert ['{"z":1152921504606846976,"a":"ü","n":null}'.encode(), b'{"z":null,"a":null,"n":0.5}'] == found


def test_maps_and_arrays_become_json_with_their_nested_values():
    assert [b'{"b":[1,2],"a":null}'] == payloads(
        schema(payload=MapType(TEXT, ArrayType(LongType()))), ({"b": [1, 2], "a": None},)
    )
    inner = ArrayType(schema(m=MapType(TEXT, schema(x=BooleanType()))))
    rows = [([{"m": {"k": {"x": True}}}, None, {"m": None}],)]
    assert [b'[{"m":{"k":{"x":true}}},null,{"m":null}]'] == payloads(schema(payload=inner), *rows)


def test_unknown_columns_become_a_json_object_if_there_is_no_payload():
    columns = schema(id=LongType(), entrypoint=TEXT, Name=TEXT, priority=IntegerType())
    [job] = jobs(columns, (7, "resize", None, 2))
    assert ("resize", b'{"id":7,"Name":null}', 2) == (job.entrypoint, job.payload, job.priority)


def test_each_type_is_encoded_in_its_json_form():
    columns = schema(
        flag=BooleanType(),
        half=FloatType(),
        exact=DecimalType(20, 2),
        day=DateType(),
        moment=TimestampType(),
        wall=TimestampNTZType(),
        data=BinaryType(),
        wait=DayTimeIntervalType(),
        nothing=NullType(),
    )
    wall = datetime(2026, 1, 2, 3, 4, 5, 6)
    row = (
        True,
        0.5,
        Decimal("100000000000000000.10"),
        date(2026, 1, 2),
        NOON,
        wall,
        b"\xfb\xff",
        timedelta(hours=1),
        None,
    )
    [payload] = payloads(columns, row)
    assert {
        "flag": True,
        "half": 0.5,
        "exact": "100000000000000000.10",
        "day": "2026-01-02",
        "moment": "2126-01-02T12:00:00+00:00",
        "wall": "2026-01-02T03:04:05.000006",
        "data": "+/8=",
        "wait": 3600.0,
        "nothing": None,
    } == json.loads(payload)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_without_a_json_form_is_refused(number):
    wanted = "row 1 of partition 3: payload has a number that JSON cannot hold: NaN or infinity"
    assert wanted == problem(schema(payload=ArrayType(DoubleType())), [([1.0],), ([number],)])
    assert wanted == problem(schema(x=DoubleType()), [(1.0,), (number,)])


def test_every_optional_column_sets_its_field_of_the_job():
    columns = schema(
        payload=TEXT,
        priority=LongType(),
        delay=DoubleType(),
        run_at=TimestampType(),
        unique_key=TEXT,
        headers=HEADERS,
        max_attempts=IntegerType(),
    )
    first, second, third = jobs(
        columns,
        ("a", -5, None, NOON, None, {"trace": "x"}, 3),
        ("b", None, 60.5, None, None, None, None),
        ("c", 0, None, None, "key", {}, None),
        entrypoint="e",
    )
    assert (-5, NOON, {"trace": "x"}, 3) == (first.priority, first.run_at, first.headers, first.max_attempts)
    assert (0, timedelta(seconds=60.5)) == (second.priority, second.run_at - second.created_at)
    assert (None, "key", {}) == (third.run_at, third.unique_key, third.headers)
    assert (None, {}, None) == (second.unique_key, second.headers, second.max_attempts)


def test_a_key_and_its_limits_may_differ_by_row():
    columns = schema(
        payload=TEXT,
        unique_key=TEXT,
        unique_for=LongType(),
        concurrency_key=TEXT,
        concurrency_limit=IntegerType(),
        expires_at=TimestampType(),
    )
    found = jobs(columns, ("a", "u", 60, None, None, None), ("b", None, None, "c", 2, NOON), entrypoint="e")
    one, other = sorted(found, key=lambda job: job.payload)
    assert ("u", 60.0, None, None, None) == _limits_of(one)
    assert (None, None, "c", 2, NOON) == _limits_of(other)


def _limits_of(job):
    return job.unique_key, job.unique_for, job.concurrency_key, job.concurrency_limit, job.expires_at


@pytest.mark.parametrize(
    ("kind", "delay"),
    [(IntegerType(), 90), (DecimalType(9, 1), Decimal("90.0")), (DayTimeIntervalType(), timedelta(minutes=1.5))],
)
def test_a_delay_of_any_type_is_in_seconds(kind, delay):
    [job] = jobs(schema(payload=TEXT, delay=kind), ("a", delay), entrypoint="e")
    assert timedelta(seconds=90) == job.run_at - job.created_at


def test_options_apply_to_every_row():
    found = jobs(
        schema(payload=TEXT), ("a",), ("b",), entrypoint="e", priority=4, delay=10.0, max_attempts=2, keep_result=60.0
    )
    assert [60.0, 60.0] == [job.keep_result for job in found]
    assert [("e", 4, 2, timedelta(seconds=10))] * 2 == [
        (job.entrypoint, job.priority, job.max_attempts, job.run_at - job.created_at) for job in found
    ]


def test_entrypoints_may_differ_by_row_and_the_order_of_rows_is_kept():
    rows = [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")]
    found = jobs(schema(entrypoint=TEXT, payload=TEXT), *rows)
    assert rows == [(job.entrypoint, job.payload.decode()) for job in found]


def test_every_job_has_a_unique_id():
    found = jobs(schema(payload=TEXT), *[("same",)] * 1000, entrypoint="e")
    assert 1000 == len({job.id for job in found})


def test_a_batch_without_rows_gives_no_jobs():
    assert 0 == encoded(schema(payload=TEXT), [], entrypoint="a").jobs
    assert 0 == encoded(schema(payload=schema(), delay=LongType()), [], entrypoint="a").jobs


@pytest.mark.parametrize("name", ["entrypoint", "payload"])
def test_a_null_in_a_required_column_names_the_row(name):
    columns = schema(entrypoint=TEXT, payload=TEXT)
    row = {"entrypoint": "a", "payload": "secret"}
    good, bad = tuple(row.values()), tuple((row | {name: None}).values())
    assert f"row 3 of partition 3: {name} is null" == problem(columns, [good, good], [good, bad, bad])


@pytest.mark.parametrize("kind", [schema(x=TEXT), HEADERS, ArrayType(TEXT)])
def test_a_null_payload_of_any_type_is_refused(kind):
    assert "row 0 of partition 3: payload is null" == problem(schema(payload=kind), [(None,)])


def test_a_row_with_a_delay_and_a_run_at_is_refused():
    columns = schema(payload=TEXT, delay=LongType(), run_at=TimestampType())
    rows = [("a", 5, None), ("b", 5, NOON)]
    assert "row 1 of partition 3: give either delay or run_at, not both" == problem(columns, rows)


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        (schema(payload=TEXT, priority=LongType()), ("secret", 2**40), "priority must be from"),
        (schema(payload=TEXT, delay=DoubleType()), ("secret", float("nan")), "delay must be from 0 seconds"),
        (schema(payload=TEXT, delay=LongType()), ("secret", -1), "delay must be from 0 seconds"),
        (schema(payload=TEXT, unique_key=TEXT), ("secret", ""), "unique_key must be printable and not empty"),
        (schema(payload=TEXT, headers=HEADERS), ("secret", {"a": None}), "header 'a' must be a str, got NoneType"),
        (schema(payload=TEXT, max_attempts=LongType()), ("secret", 0), "max_attempts must be from 1"),
        (schema(payload=TEXT, entrypoint=TEXT), ("secret", "a\nb"), "entrypoint must be printable"),
    ],
)
def test_an_invalid_value_names_the_row_and_shows_no_payload(columns, row, words):
    good = tuple(None if field.name not in ("payload", "entrypoint") else "a" for field in columns.fields)
    said = problem(columns, [good], [good, row])
    assert said.startswith(f"row 2 of partition 3: {words}")
    assert "secret" not in said


def test_an_oversized_payload_names_the_row_and_the_sizes():
    said = problem(schema(payload=TEXT), [("a",), ("b" * 11,)], limits=Limits(payload_bytes=10))
    assert said.startswith("row 1 of partition 3: payload is 11 bytes; the limit is 10")
    assert said.endswith("or set the option maxPayloadBytes")


def test_an_invalid_utf_8_string_is_accepted_only_as_a_payload():
    def not_utf_8(name):
        binary = pa.array([b"good", b"\xff"])
        text = pa.StringArray.from_buffers(2, *binary.buffers()[1:])
        columns = schema(**{name: TEXT})
        encoder = RowEncoder(columns_of(columns, {"entrypoint": "a"}), StagedWriter(), 3, SystemEntropy())
        encoder.add(pa.record_batch({name: text}))
        return encoder.staged

    assert 2 == not_utf_8("payload").jobs
    with pytest.raises(InvalidJobError, match="row 1 of partition 3: name has a string that is not UTF-8: cast it to"):
        not_utf_8("name")


def test_a_time_out_of_the_range_of_python_names_the_row():
    columns = schema(payload=TEXT, run_at=TimestampType())
    encoder = RowEncoder(columns_of(columns, {"entrypoint": "a"}), StagedWriter(), 3, SystemEntropy())
    times = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"payload": pa.array(["a", "b"]), "run_at": times})
    with pytest.raises(InvalidJobError, match="row 1 of partition 3: run_at has a time that is out of range"):
        encoder.add(rows)


def test_a_task_stops_once_its_own_rows_exceed_the_limit():
    columns, limits = schema(payload=TEXT), Limits(blob_bytes=10_000)
    said = problem(columns, *[[("x" * 100,)] * 10] * 5, limits=limits, error=QueueFullError)
    assert (
        "in its first 30 rows, and the queue takes 9000: write fewer at a time, or raise the option maxBlobBytes"
        in said
    )


def test_keep_result_is_set_by_the_column_or_the_option():
    plain = jobs(schema(payload=TEXT), ("a",), ("b",), entrypoint="e", keep_result=3600.0)
    assert [3600.0, 3600.0] == [job.keep_result for job in plain]
    each = jobs(schema(payload=TEXT, keep_result=LongType()), ("a", 5), ("b", None), entrypoint="e")
    assert [5.0, None] == [job.keep_result for job in each]
