"""Queues as tables, read as Spark reads them: one version of each, in any number of tasks, with the columns of jobs."""

import asyncio
import json
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

import jqueue.spark.lines
from jqueue import BrokerQueue, Limits, connect
from jqueue.core.blob.lines import encode_record
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, QueueMissingError, StorageFatalError
from jqueue.domain.models import Job, record_of
from jqueue.operations import Enqueue
from jqueue.spark.lines import rows_of
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from tests.spark.spark_calls import call, enqueue, fill_segments, jobs_of, schema, snapshot, source, write
from tests.spark.step_stores import Fault, told

FIELDS = [name for name in SNAPSHOT_SCHEMA.names if name not in ("headers", "result", "encoding")]
"""Columns whose values are those of the jobs. Headers come as pairs, and results as JSON."""


def columns(*names):
    everything = source("queue.json").schema()
    return StructType([everything[name] for name in names])


def shown(jobs):
    """Jobs as rows, in the order of their ids."""
    rows = [{name: getattr(job, name) for name in FIELDS} for job in jobs]
    return sorted(rows, key=lambda row: row["id"])


def seen(rows):
    return sorted(({name: row[name] for name in FIELDS} for row in rows), key=lambda row: row["id"])


def jobs_of_all_kinds(url):
    """Fill a queue with jobs in every state, hot and in segments, and return its jobs."""

    async def work():
        async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
            await queue.enqueue_many(Enqueue("resize", b"%d" % number, max_attempts=9) for number in range(1000))
            await queue.enqueue_many(Enqueue("mail", b"", headers={"n": f"{each}"}, priority=each) for each in range(9))
            back = await queue.claim_lease("resize", 20)
            assert back is not None
            await queue.end_lease(back, worked_on=0)
            await queue.dequeue("resize", batch_size=6)
            assert await queue.claim_lease("resize", 300, holder="me") is not None
            [first, second, *_] = await queue.dequeue("mail", batch_size=4)
            await queue.nack(first, dead=True, error="not an image")
            await queue.nack(second, error=ValueError("no"), delay=600)
            await queue.enqueue("add", bytes(range(256)), keep_result=3600, unique_key="k")
            [add] = await queue.dequeue("add")
            await queue.ack(add, result={"n": [1, None], "é": "ü"})

    asyncio.run(work())
    return jobs_of(url)


@pytest.fixture
def deep(url):
    return jobs_of_all_kinds(url)


def test_every_field_of_every_job_is_in_its_column(url, deep):
    rows = snapshot(url, num_partitions=8)
    assert shown(deep) == seen(rows)
    by_id = {row["id"]: row for row in rows}
    for job in deep:
        assert dict(job.headers) == dict(by_id[job.id]["headers"])
        result = by_id[job.id]["result"]
        assert job.result == (None if result is None else json.loads(result))
    assert {"queued", "in_progress", "dead", "completed"} == {row["status"] for row in rows}


COLUMNS = to_arrow_schema(SNAPSHOT_SCHEMA, timezone="UTC")
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def lines_of(*jobs):
    return b"\n".join(encode_record(record_of(job)) for job in jobs)


def test_each_value_of_a_line_is_exact_in_its_column():
    job = Job.new('é\n"\\', b"")
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    values: list[dict[str, Any]] = [
        {"run_at": first, "payload": b"a", "priority": -(2**63) + 1, "headers": {"n": "1", "": '"'}},
        {"run_at": None, "payload": b"", "keep_result": 0.5, "result": {"é": [None, 1.5]}},
        {"run_at": last, "payload": bytes(range(256)), "sequence": 2**63 - 1, "error": "}\u2028\x00"},
        {"run_at": first.replace(microsecond=1), "payload": b"ab", "group": "g", "extra": {"new": [{}]}},
    ]
    check_rows([job.evolve(**each) for each in values])


def test_lines_that_are_alike_and_others_give_the_same_columns():
    """The former are cut at their quotes. One byte makes the difference."""
    job = Job.new("mail", b"")
    jobs = [job.evolve(payload=b"%d" % n, priority=~n, unique_key="k" * n, timeout=n / 3, run_at=AT) for n in range(40)]
    check_rows(jobs)
    lines = lines_of(*jobs)
    with patch.object(jqueue.spark.lines, "read_json", side_effect=AssertionError):
        expected = rows_of(lines, COLUMNS)
    for right, wrong in ((b'"id":', b'"id" :'), (b"}\n{", b"} \n {"), (b'"priority":-7,', b""), (b"}", b',"new":"a"}')):
        rows = rows_of(lines.replace(right, wrong, 1), COLUMNS)
        assert expected.drop_columns("priority") == rows.drop_columns("priority")
        assert rows == expected or 0 == rows.column("priority")[6].as_py()
    check_rows([*jobs, job.evolve(error="\n", result="text", group="")])


def check_rows(jobs):
    rows = rows_of(lines_of(*jobs), COLUMNS)
    assert rows.schema == COLUMNS
    first = datetime(1, 1, 1, tzinfo=UTC)
    since = [None if each.run_at is None else (each.run_at - first) // timedelta(microseconds=1) for each in jobs]
    start = (first - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    numbers = rows.column("run_at").cast("int64").to_pylist()
    assert since == [None if each is None else each - start for each in numbers]
    for name in {*COLUMNS.names} - {"run_at", "headers", "result"}:
        assert [getattr(each, name) for each in jobs] == rows.column(name).to_pylist(), name
    assert [[*each.headers.items()] for each in jobs] == rows.column("headers").to_pylist()
    results = [None if each is None else json.loads(each) for each in rows.column("result").to_pylist()]
    assert [each.result for each in jobs] == results


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        *((b"YnJva2Vu", text) for text in (b"YQ", b"Y=Q=", b"Y Q=", b"YQ==YQ==", b"=")),
        (b'"payload":', b'"payloads":'),
        (b'"created_at":"', b'"created_at":"hunter2 '),
        (b'"sequence":0', b'"sequence":"hunter2"'),
        (b"}", b""),
    ],
)
def test_a_line_that_is_not_a_job_is_refused_without_its_values(right, wrong):
    lines = lines_of(Job.new("a", b"ok"), Job.new("a", b"broken"))
    with pytest.raises(ValueError, match=r"\w") as caught:
        rows_of(lines.replace(right, wrong), COLUMNS)
    assert "hunter2" not in str(caught.value)


def test_rows_of_a_bulk_have_what_its_index_says_of_all_of_them(url):
    """Their lines have neither an id nor a sequence number."""
    enqueue(url, [Enqueue("hot", b"") for _ in range(3)])
    write(url, [b"%d" % number for number in range(700)], priority=2)
    call(url, lambda queue: queue.dequeue("resize", batch_size=300))
    jobs = jobs_of(url)
    assert 703 == len(jobs)
    assert shown(jobs) == seen(snapshot(url))
    assert [job.id for job in jobs] == [row["id"] for row in snapshot(url, columns("id"))]


@pytest.mark.parametrize(
    "options",
    [
        {"status": "in_progress"},
        {"entrypoint": "mail,other", "status": "queued"},
        {"status": "completed", "entrypoint": "resize"},
    ],
)
def test_a_snapshot_can_be_limited_to_entrypoints_and_statuses(url, deep, options):
    wanted = {name: re.split(", ?", text.lower()) for name, text in options.items()}
    expected = [job for job in deep if all(getattr(job, name) in values for name, values in wanted.items())]
    assert shown(expected) == seen(snapshot(url, **options))


def test_segments_and_chunks_without_a_wanted_job_are_not_read(url, steps, deep):
    def reads(names=None, **options):
        with told(requests := Fault("", "lost", times=0)):
            snapshot(steps, names, **options)
        return sum(name.startswith("read_object") for name in requests.names)

    assert 0 == reads(status="dead,completed") == reads(entrypoint="add")
    assert 0 == reads(columns("entrypoint", "status", "holder", "claimed_at"))
    assert 0 < reads(entrypoint="mail") < reads()


def test_a_snapshot_is_one_version_whatever_happens_between_its_tasks(url, steps):
    fill_segments(url, range(700))
    enqueue(url, [Enqueue("hot", b"%d" % number) for number in range(50)])
    before = shown(jobs_of(url))

    def change(number):
        call(url, lambda queue: queue.enqueue("late", b""))
        for job in call(url, lambda queue: queue.dequeue("hot", batch_size=10)):
            call(url, lambda queue, job=job: queue.ack(job))
        call(url, lambda queue: queue.claim_lease("work", 256))

    with told(requests := Fault(" queue.json$", "lost", times=0)):
        rows = snapshot(steps, num_partitions=4, between=change)
    assert before == seen(rows)
    assert ["read queue.json"] == [name for name in requests.names if name.endswith(" queue.json")]
    assert before != shown(jobs_of(url))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (Path.unlink, "does not exist. Load a table again that is older than an hour"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged: its index was changed or cut off"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b"MmQ", b"MmU", 1)),
            "is damaged: rows of it were",
        ),
    ],
)
def test_a_segment_that_is_gone_or_damaged_when_its_task_reads_it_is_named(url, harm, words):
    fill_segments(url, [b"2d"] * 300)
    [path] = Path(f"{url}.segments").iterdir()
    with pytest.raises(StorageFatalError, match=rf"^{url}: segment .segments/{path.name} {words}"):
        snapshot(url, between=lambda number: harm(path))


def test_a_segment_that_may_not_be_read_is_not_called_damaged(url, steps):
    fill_segments(url, range(300))
    with told(Fault("^read_object", "refused", times=9)), pytest.raises(StorageFatalError) as caught:
        snapshot(steps)
    assert "could not be read: " in str(caught.value)
    assert "damaged" not in str(caught.value)
    assert "restore" not in str(caught.value)


def test_a_list_or_wildcards_read_several_queues_and_a_column_names_each(tmp_path):
    for name in ("a.json", "b.json", "other.txt"):
        enqueue(f"{tmp_path}/{name}", [Enqueue("resize", name.encode())] * 2)
    both = [(f"{tmp_path}/{name}.json", f"{name}.json".encode()) for name in "ab"]
    for path in (f"{tmp_path}/*.json", ",".join(queue for queue, _ in both)):
        rows = snapshot(path)
        assert [each for each in both for _ in range(2)] == [(row["queue"], row["payload"]) for row in rows]


def test_lines_that_are_no_jobs_are_left_out_and_told(url, caplog):
    enqueue(url, [Enqueue("resize", b"%d" % number, job_id=f"r{number}") for number in range(4)])
    content = Path(url).read_bytes().replace(b'"r0":{', b'"r0":{"attempt":-1,', 1)
    content = content.replace(b'"r1":{', b'"r1":[{', 1).replace(b'"r2":{', b'"r2"  :   {"mine": [1, 2], ', 1)
    Path(url).write_bytes(content)
    with caplog.at_level(logging.WARNING, "jqueue"):
        rows = snapshot(url)
    assert ["r2", "r3"] == sorted(row["id"] for row in rows)
    assert [f"{url}: 2 lines were left out: not readable as jobs"] == caplog.messages


def test_a_payload_in_an_object_of_its_own_is_null(url):
    call(url, lambda queue: queue.enqueue("resize", bytes(2 << 20)), limits=Limits(payload_bytes=4 << 20))
    assert [None] == [row["payload"] for row in snapshot(url)]


def test_a_queue_without_jobs_gives_no_rows_and_a_missing_one_is_named(url):
    [job_id] = enqueue(url, [Enqueue("resize", b"")])
    assert [] == snapshot(url, entrypoint="other", num_partitions=8)
    call(url, lambda queue: queue.cancel(job_id))
    assert [] == snapshot(url)
    with pytest.raises(QueueMissingError, match=r"there is no queue at .*/none.json: check the URL; the first enqueue"):
        snapshot(f"{url},{url[:-10]}none.json")


def test_an_unreadable_queue_of_several_is_named_in_one_line(tmp_path):
    enqueue(f"{tmp_path}/a.json", [Enqueue("resize", b"")])
    (tmp_path / "b.json").write_bytes(b"")
    with pytest.raises(InvalidBlobError) as caught:
        snapshot(f"{tmp_path}/*.json")
    assert str(caught.value).startswith(f"{tmp_path}/b.json: the queue's object ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batchSize": 7}, "there is no option 'batchsize': the options are entrypoint, num_partitions, status"),
        ({"status": "scheduled"}, "option status takes some of queued, in_progress, dead, completed"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options, words):
    with pytest.raises(InvalidJobError, match=words) as caught:
        snapshot("queue.json", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("size", LongType()), "no column 'size' here: there are id, entrypoint, "),
        (StructField("priority", IntegerType()), "column priority is of type bigint, and not int"),
    ],
)
def test_a_column_that_jobs_do_not_have_is_refused_in_one_line(url, field, words):
    enqueue(url, [Enqueue("resize", b"")])
    with pytest.raises(InvalidJobError, match=words) as caught:
        snapshot(url, StructType([field]))
    assert "\n" not in str(caught.value)


def test_a_partition_shows_no_payload_and_filters_are_left_to_spark(url):
    """Spark would use the partitions of one filter for other queries of the same DataFrame."""
    enqueue(url, [Enqueue("resize", b"hunter2")])
    reader = source(url).reader(source(url).schema())
    assert "hunter2" not in repr(reader.partitions())
    assert "pushFilters" not in vars(type(reader))


def test_rows_of_a_bulk_enqueue_are_the_same_jobs_in_a_snapshot_as_in_the_queue(url):
    columns = schema(payload=BinaryType(), priority=IntegerType(), unique_key=StringType())
    write(url, [(b"%d" % number, number % 3, f"key {number}") for number in range(1001)], columns)
    fields = ("id", "sequence", "priority", "payload", "unique_key")
    jobs = {tuple(getattr(job, name) for name in fields) for job in jobs_of(url)}
    assert (jobs, 1001) == ({tuple(row[name] for name in fields) for row in snapshot(url)}, len(jobs))
