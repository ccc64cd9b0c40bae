"""Jobs as rows: every field in its column, with the type of the schema."""

import json
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from jqueue import Job, JobStatus
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.spark.rows import FLEET_SCHEMA, SNAPSHOT_SCHEMA, STREAM_SCHEMA, arrow_of, check_schema, schema_of

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
FULL = Job(
    id="näme",
    entrypoint="resize",
    payload=bytes(range(256)),
    status=JobStatus.COMPLETED,
    priority=-(2**63) + 1,
    attempt=2**53,
    failures=3,
    max_attempts=2**63 - 1,
    created_at=AT,
    run_at=datetime(1, 1, 1, tzinfo=UTC),
    expires_at=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    heartbeat_at=AT,
    finished_at=AT,
    dead_at=AT,
    error="not an image",
    headers={"trace": "af31", "": "é"},
    unique_key="mail:eve",
    concurrency_key="tenant",
    keep_result=60,
    result={"n": [1, 2.5, None], "é": "ü"},
    holder="query 7",
    sequence=2**52,
    claim_timeout=2.5,
)


def test_every_field_is_in_its_column_unchanged():
    [row] = arrow_of([FULL], SNAPSHOT_SCHEMA).to_pylist()
    result, headers = row.pop("result"), row.pop("headers")
    assert FULL.result == json.loads(result)
    assert dict(FULL.headers) == dict(headers)
    assert {name: getattr(FULL, name) for name in row} == row
    assert str is type(row["status"])


def test_missing_fields_of_a_job_are_null_and_its_headers_are_empty():
    [row] = arrow_of([Job(id="a", entrypoint="x", payload=b"", created_at=AT)], SNAPSHOT_SCHEMA).to_pylist()
    said = {name: value for name, value in row.items() if value is not None}
    assert {
        "id": "a",
        "entrypoint": "x",
        "payload": b"",
        "status": "queued",
        "priority": 0,
        "attempt": 0,
        "failures": 0,
        "sequence": 0,
        "created_at": AT,
        "headers": [],
    } == said


@pytest.mark.parametrize("schema", [SNAPSHOT_SCHEMA, FLEET_SCHEMA, STREAM_SCHEMA])
@pytest.mark.parametrize("jobs", [[], [FULL], [FULL, Job.new("x", b"")]])
def test_a_batch_has_the_schema_that_spark_expects(schema, jobs):
    batch = arrow_of(jobs, schema, "the queue")
    assert to_arrow_schema(schema, timezone="UTC") == batch.schema
    assert len(jobs) == batch.num_rows
    batch.validate(full=True)


def test_times_are_in_utc_and_in_microseconds():
    assert pa.timestamp("us", tz="UTC") == arrow_of([FULL], SNAPSHOT_SCHEMA).schema.field("created_at").type


def test_the_name_of_the_queue_is_the_last_column_of_a_fleet():
    assert "queue" == FLEET_SCHEMA.names[-1]
    assert [{"queue": "a.json"}] == arrow_of([FULL], StructType(FLEET_SCHEMA.fields[-1:]), "a.json").to_pylist()


@pytest.mark.parametrize(
    ("options", "schema"),
    [
        ({"path": "queue.json"}, SNAPSHOT_SCHEMA),
        ({"PATH": "s3://b/queue.json?endpoint_url=http://127.0.0.1"}, SNAPSHOT_SCHEMA),
        ({"path": "a.json,b.json"}, FLEET_SCHEMA),
        ({"path": "queues/*.json"}, FLEET_SCHEMA),
        ({"path": "s3://b/queues/[ab].json"}, FLEET_SCHEMA),
        ({"paths": '["a.json", "b.json"]'}, FLEET_SCHEMA),
    ],
)
def test_the_schema_of_several_queues_has_a_column_for_the_queue(options, schema):
    assert schema == schema_of(options)


def test_a_schema_requires_a_url():
    with pytest.raises(InvalidURLError, match="URL of the queue is missing"):
        schema_of({})


def test_any_columns_can_be_selected_in_any_order():
    asked = StructType([SNAPSHOT_SCHEMA["status"], STREAM_SCHEMA["claim_timeout"], SNAPSHOT_SCHEMA["id"]])
    check_schema(asked, fleet=False)
    assert [{"status": "completed", "claim_timeout": 2.5, "id": "näme"}] == arrow_of([FULL], asked).to_pylist()
    check_schema(StructType([FLEET_SCHEMA["queue"]]), fleet=True)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("size", LongType()), "no column 'size' here: there are id, entrypoint, "),
        (StructField("queue", StringType()), "no column 'queue' here"),
        (StructField("priority", IntegerType()), "column priority is of type bigint, and not int"),
    ],
)
def test_an_unknown_column_is_refused_in_one_line(field, words):
    with pytest.raises(InvalidJobError, match=words) as caught:
        check_schema(StructType([field]), fleet=False)
    assert "\n" not in str(caught.value)
