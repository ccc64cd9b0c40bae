"""Rows become jobs: payloads of every type, the columns that set options, and one line for what cannot be a job."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.spark.enqueue.encoding import RowJudge
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.tables import schema_of_table
from tests.spark.spark_calls import Write, jobs_of, record_batch, schema, source, texts_of, write

TEXT, HEADERS = StringType(), MapType(StringType(), StringType())
NOON = datetime(2126, 1, 2, 12, tzinfo=UTC)


def refused(call):
    with pytest.raises(InvalidJobError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Payloads


@pytest.mark.parametrize(
    ("kind", "value", "payload"),
    [
        (BinaryType(), b"\0\xff", b"\0\xff"),
        (TEXT, "größer 🙂", "größer 🙂".encode()),
        (schema(z=LongType(), a=TEXT), {"z": 2**60, "a": None}, b'{"z":1152921504606846976,"a":null}'),
        (MapType(TEXT, ArrayType(LongType())), {"b": [1, 2], "a": None}, b'{"b":[1,2],"a":null}'),
        (ArrayType(schema(m=HEADERS)), [{"m": {"k": "ü"}}, None], '[{"m":{"k":"ü"}},null]'.encode()),
    ],
)
def test_a_payload_is_binary_a_text_or_becomes_json(url, kind, value, payload):
    write(url, [(value,)], schema(payload=kind))
    assert [payload] == texts_of(url)


def test_without_a_payload_all_other_columns_become_one_json_object_in_which_each_type_has_a_form(url):
    columns = schema(
        entrypoint=TEXT,
        flag=BooleanType(),
        exact=DecimalType(20, 2),
        day=DateType(),
        priority=IntegerType(),
        moment=TimestampType(),
        wall=TimestampNTZType(),
        data=BinaryType(),
        wait=DayTimeIntervalType(),
        Nothing=NullType(),
    )
    wall = datetime(2026, 1, 2, 3, 4, 5, 6)
    row = ("resize", True, Decimal("1000.10"), date(2026, 1, 2), 2, NOON, wall, b"\xfb\xff", timedelta(hours=1), None)
    write(url, [row], columns, entrypoint=None)
    [job] = jobs_of(url)
    assert ("resize", 2) == (job.entrypoint, job.priority)
    expected = {"flag": True, "exact": "1000.10", "day": "2026-01-02", "moment": "2126-01-02T12:00:00+00:00"}
    expected |= {"wall": "2026-01-02T03:04:05.000006", "data": "+/8=", "wait": 3600.0, "Nothing": None}
    assert expected == json.loads(job.payload)
    assert list(expected) == list(json.loads(job.payload))


# Options of a job


def test_every_column_that_sets_an_option_sets_it_for_its_row_and_null_sets_none(url):
    columns = schema(
        Payload=TEXT,
        priority=LongType(),
        run_at=TimestampType(),
        expires_at=TimestampType(),
        unique_key=TEXT,
        unique_for=LongType(),
        concurrency_key=TEXT,
        concurrency_limit=IntegerType(),
        headers=HEADERS,
        max_attempts=IntegerType(),
        keep_result=LongType(),
    )
    full = (-5, NOON, NOON, "u", 60, "c", 2, {"trace": "x"}, 3, 5)
    write(url, [("a", *full), ("b", *[None] * 10)], columns)
    names = [name for name in columns.names if name != "Payload"]
    first, second = jobs_of(url)
    assert (*full[:4], 60.0, *full[5:9], 5.0) == tuple(getattr(first, name) for name in names)
    assert (0, None, None, None, None, None, None, {}, None, None) == tuple(getattr(second, name) for name in names)


def test_texts_up_to_their_limits_are_accepted_and_empty_headers_are_none(url):
    full, columns = ("é" * 256, {"ü": "é" * 8191}), schema(payload=TEXT, unique_key=TEXT, headers=HEADERS)
    write(url, [("a", *full), ("b", "k", {})], columns)
    assert [full, ("k", {})] == [(job.unique_key, job.headers) for job in jobs_of(url)]
    assert b'"headers":{}' not in b"".join(path.read_bytes() for path in Path(url).parent.iterdir() if path.is_file())


def test_an_option_of_the_write_sets_it_for_all_rows(url):
    options = {"priority": 4, "delay": 10, "max_attempts": 2, "keep_result": 60}
    write(url, ["a", "b"], schema(payload=TEXT), entrypoint="e", **options)
    assert [("e", 4, 2, 60.0, timedelta(seconds=10))] * 2 == [
        (job.entrypoint, job.priority, job.max_attempts, job.keep_result, job.run_at - job.created_at)
        for job in jobs_of(url)
    ]


@pytest.mark.parametrize(
    ("kind", "delay"),
    [(IntegerType(), 90), (DecimalType(9, 1), Decimal("90.0")), (DayTimeIntervalType(), timedelta(minutes=1.5))],
)
def test_a_delay_of_any_type_is_in_seconds(url, kind, delay):
    write(url, [("a", delay)], schema(payload=TEXT, delay=kind))
    [job] = jobs_of(url)
    assert timedelta(seconds=90) == job.run_at - job.created_at


def test_two_times_in_the_hour_that_the_end_of_summer_time_repeats_stay_an_hour_apart(url):
    columns = schema(payload=TEXT, run_at=TimestampType(), expires_at=TimestampType())
    times = [datetime(2125, 10, 28, hour, 30, tzinfo=UTC) for hour in (0, 1)]
    session = to_arrow_schema(columns, timezone="Europe/Berlin")  # Spark passes times in the zone of its session
    batch = pa.RecordBatch.from_arrays(
        [pa.array(cells, field.type) for cells, field in zip((["a", "b"], times, times), session, strict=True)],
        schema=session,
    )
    bulk = Write(url, columns)
    bulk.commit(bulk.stage_batches([batch]))
    assert [(each, each) for each in times] == [(job.run_at, job.expires_at) for job in jobs_of(url)]


# Rows that cannot be jobs


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        (schema(payload=TEXT, entrypoint=TEXT), ("secret", None), "entrypoint is null"),
        (schema(x=DoubleType()), (float("nan"),), "x has a number that JSON cannot hold: NaN or infinity"),
        (schema(payload=TEXT, priority=LongType()), ("secret", 2**40), "priority must be from"),
        (schema(payload=TEXT, headers=HEADERS), ("secret", {"a": None}), "header 'a' must be a str, got NoneType"),
        (
            schema(payload=TEXT, headers=HEADERS),
            ("secret", {"": "x"}),
            "a header's name must be printable",
        ),
        (schema(payload=TEXT, headers=HEADERS), ("secret", {"a": "x" * (16 << 10)}), "headers take 16385 bytes"),
        (schema(payload=TEXT, unique_key=TEXT), ("secret", ""), "unique_key must be printable and not empty"),
        (schema(payload=TEXT, unique_key=TEXT), ("secret", "a\n"), "unique_key must be printable and not empty"),
        (schema(payload=TEXT, unique_key=TEXT), ("secret", "é" * 257), "unique_key is 514 bytes long"),
        (schema(payload=TEXT, delay=LongType(), run_at=TimestampType()), ("secret", 5, NOON), "give either delay or r"),
    ],
)
def test_a_row_that_cannot_be_a_job_is_named_without_its_payload(url, columns, row, words):
    def value(field):
        if field.name in ("payload", "entrypoint", "x"):
            return {"map": {}, "array": [], "double": 0.0}.get(field.dataType.typeName(), "a")
        return None

    good = tuple(value(field) for field in columns.fields)
    bulk = Write(url, columns, entrypoint=None if "entrypoint" in columns.names else "a")
    said = refused(lambda: bulk.stage([good, good, row], partition=3))
    assert said.startswith(f"row 2 of partition 3: {words}")
    assert "secret" not in said
    judge = RowJudge(bulk.writer.enqueue.columns, Limits(), NOON, 0, str)
    assert [None, said.partition(": ")[2], None] == judge.reasons(record_batch(columns, [good, row, good]))


def test_of_many_bad_rows_each_has_its_first_reason_also_if_a_value_of_it_cannot_be_read(url):
    nan, columns = float("nan"), schema(x=DoubleType(), y=DoubleType(), priority=LongType())
    rows = [(0.0, 0.0, 0), (nan, nan, 2**40), (0.0, nan, 0), (0.0, 0.0, 2**40)] * 250
    judge = RowJudge(Write(url, columns, entrypoint="a").writer.enqueue.columns, Limits(), NOON, 0, str)
    reasons = judge.reasons(record_batch(columns, rows))
    assert [None, "x has a", "y has a", "priorit"] * 250 == [each and each[:7] for each in reasons]
    assert [None] * 2 == judge.reasons(record_batch(columns, rows[::4])[:2])


def test_a_string_that_is_not_utf_8_is_accepted_only_as_a_payload_and_a_time_must_fit_into_python(url):
    binary = pa.array([b"good", b"\xff"])
    text = pa.StringArray.from_buffers(2, *binary.buffers()[1:])
    bulk = Write(url, schema(payload=TEXT))
    bulk.commit(bulk.stage_batches([pa.record_batch({"payload": text})]))
    assert [b"good", b"\xff"] == texts_of(url)
    bulk = Write(url, schema(name=TEXT))
    said = refused(lambda: bulk.stage_batches([pa.record_batch({"name": text})]))
    assert said.startswith("row 1 of partition 0: name has a string that is not UTF-8: cast it to")
    times = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    rows = pa.record_batch({"payload": pa.array(["a", "b"]), "run_at": times})
    bulk = Write(url, schema(payload=TEXT, run_at=TimestampType()))
    assert "row 1 of partition 0: run_at has a time that is out of range" in refused(lambda: bulk.stage_batches([rows]))


# Columns that are wrong


def test_an_insert_of_sql_gives_options_for_columns_that_it_leaves_out(url):
    """Spark passes all columns of the table, and those are null."""
    table = schema_of_table(SNAPSHOT_SCHEMA, {"provider": "jqueue", "path": url})
    row = {**dict.fromkeys(table.names), "payload": b"1"}
    write(url, [tuple(row.values())], table, entrypoint="mail", delay=60)
    [job] = jobs_of(url)
    assert ("mail", 60) == (job.entrypoint, (job.run_at - job.created_at).total_seconds())
    with_time = tuple({**row, "run_at": NOON}.values())
    why = refused(lambda: Write(url, table, entrypoint="mail", delay=60).stage([with_time]))
    assert "run_at is not null, and the queue or an option sets it: leave it out of the INSERT" in why


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"payload": LongType()}, {}, "column 'payload' is bigint: it must be binary, string, or a struct, map or arr"),
        ({"payload": TEXT, "priority": DoubleType()}, {}, "column 'priority' is double: it must be a whole number"),
        ({"payload": TEXT, "delay": TEXT}, {}, "column 'delay' is string: it must be a number of seconds, or an inte"),
        ({"payload": TEXT, "unique_kye": TEXT}, {}, "unknown columns beside the payload: 'unique_kye'. The known one"),
        ({"payload": TEXT, "Payload": TEXT}, {}, "two columns are called 'Payload': rename or drop one of them"),
        ({"payload": TEXT, "priority": LongType()}, {"priority": 3}, "priority is given twice, as a column and as an"),
        ({"v": VariantType()}, {}, "column 'v' is variant, which JSON cannot hold: cast it or drop it"),
    ],
)
def test_a_wrong_column_is_named_with_what_is_right_before_a_task_starts(url, columns, options, words):
    assert refused(lambda: Write(url, schema(**columns), **options)).startswith(words)
    given = {"entrypoint": "a", **options}
    assert refused(lambda: source(url, **given).streamWriter(schema(**columns), False)).startswith(words)
