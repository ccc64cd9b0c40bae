"""The option `onBadRow`: rows that cannot be jobs fail the write, are left out, or become dead letters."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, DoubleType, IntegerType, StringType

from jqueue.core.blob.staged_object import StagedWriter
from jqueue.domain.errors import InvalidJobError, StorageError
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.columns import columns_of
from jqueue.spark.enqueue.encoding import RowEncoder
from jqueue.spark.enqueue.writing import BulkWriter
from tests.spark.enqueue.bulk import batch, jobs_of, schema, staged_at, task, texts_of

PLAIN = schema(entrypoint=StringType(), payload=BinaryType())
FULL = schema(entrypoint=StringType(), payload=BinaryType(), priority=IntegerType(), delay=DoubleType())
SECRET = b"nobody may read this"


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "queue.json")


def writer(url, columns, **options):
    return BulkWriter({"path": url, **options}, columns, False)


def written(url, columns, *rows, **options):
    bulk = writer(url, columns, **options)
    bulk.commit([bulk.stage([batch(columns, *rows)], task())])
    return bulk


def lines_in(folder):
    """The descriptions of bad rows. There are no other files."""
    return [json.loads(line) for path in sorted(Path(folder).glob("*")) for line in path.read_text().splitlines()]


PLAIN_ROWS = [
    ("a", b"1"),
    (None, SECRET),
    ("a", None),
    ("b", b"2"),
    ("bad\nname", SECRET),
    ("a", SECRET * 100),
    ("a", b"3"),
]
PLAIN_REASONS = {1: "entrypoint is null", 2: "payload is null", 4: "entrypoint", 5: "payload is 2000 bytes"}
FULL_ROWS = [
    ("a", b"1", 1, None),
    (None, SECRET, 1, None),
    ("a", SECRET, 2**31 - 1, -1.0),
    ("b", b"2", None, 2.0),
    ("a", SECRET, 1, float("nan")),
    ("a", SECRET * 100, 1, None),
]
FULL_REASONS = {1: "entrypoint is null", 2: "delay", 4: "delay", 5: "payload is 2000 bytes"}
KINDS = pytest.mark.parametrize(
    ("columns", "rows", "reasons", "good"),
    [(PLAIN, PLAIN_ROWS, PLAIN_REASONS, [b"1", b"2", b"3"]), (FULL, FULL_ROWS, FULL_REASONS, [b"1", b"2"])],
    ids=["without options", "with options"],
)
COPYING = pytest.mark.parametrize("copying", [False, True], ids=["named", "copied"])


def staging(tmp_path, copying):
    return {"stagingPath": str(tmp_path / "staged")} if copying else {}


@KINDS
@COPYING
def test_bad_rows_are_left_out_counted_and_logged(tmp_path, file, caplog, columns, rows, reasons, good, copying):
    receipt = tmp_path / "receipt.json"
    options = {"maxPayloadBytes": "1000", "receiptPath": str(receipt), **staging(tmp_path, copying)}
    written(file, columns, *rows, onBadRow="skip", **options)
    told = json.loads(receipt.read_text())
    assert (good, len(good), 4) == (texts_of(file), told["added"], told["bad"])
    expected = "4 rows cannot be jobs, and were left out. The first is row 1 of partition 0: entrypoint is null"
    assert [expected] == [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@KINDS
@COPYING
def test_bad_rows_are_described_in_files(tmp_path, file, caplog, columns, rows, reasons, good, copying):
    folder = tmp_path / "bad"
    options = {"maxPayloadBytes": "1000", "badRowsPath": str(folder), **staging(tmp_path, copying)}
    written(file, columns, *rows, onBadRow="skip", **options)
    found = lines_in(folder)
    assert [*reasons] == [each["row"] for each in found]
    assert all(each["reason"].startswith(reasons[each["row"]]) for each in found)
    assert {"entrypoint": None, "payload": "bm9ib2R5IG1heSByZWFkIHRoaXM="} == dict(
        list(found[0]["columns"].items())[:2]
    )
    assert SECRET.decode() not in caplog.text


@KINDS
@COPYING
def test_bad_rows_become_dead_letters_in_the_same_commit(tmp_path, file, columns, rows, reasons, good, copying):
    options = {"maxPayloadBytes": "1000", "deadLetterEntrypoint": "rejected", **staging(tmp_path, copying)}
    written(file, columns, *rows, onBadRow="deadLetter", **options)
    jobs = jobs_of(file)
    letters = [json.loads(job.payload) for job in jobs if job.entrypoint == "rejected"]
    assert good == [job.payload for job in jobs if job.entrypoint != "rejected"]
    assert [*reasons] == [letter["row"] for letter in letters]
    assert [False, False, False, True] == ["bytes" in letter for letter in letters]  # the last does not fit


def test_dead_letters_wait_like_any_job_without_the_options_of_the_write(tmp_path, file):
    receipt = tmp_path / "receipt.json"
    options = {"priority": "5", "delay": "60", "maxAttempts": "7", "keepResult": "99", "receiptPath": str(receipt)}
    written(file, PLAIN, *PLAIN_ROWS, onBadRow="deadLetter", **options)
    letters = [job for job in jobs_of(file) if job.entrypoint == "dead-letters"]
    assert {(JobStatus.QUEUED, 0, None, None, None)} == {
        (job.status, job.priority, job.run_at, job.max_attempts, job.keep_result) for job in letters
    }
    told = json.loads(receipt.read_text())
    assert (len(letters), len(jobs_of(file))) == (told["bad"], told["added"])


def test_the_default_fails_with_the_row_and_the_reason(file):
    with pytest.raises(InvalidJobError) as caught:
        written(file, PLAIN, *PLAIN_ROWS)
    assert "row 2 of partition 0: payload is null" == str(caught.value)
    assert (False, []) == (Path(file).exists(), staged_at(file))


def test_a_write_of_bad_rows_alone_adds_nothing_and_counts_them(tmp_path, file):
    receipt, folder = tmp_path / "receipt.json", tmp_path / "bad"
    options = {"onBadRow": "skip", "receiptPath": str(receipt), "badRowsPath": str(folder)}
    written(file, PLAIN, (None, b""), ("a", None), **options)
    assert (2, 2, False) == (json.loads(receipt.read_text())["bad"], len(lines_in(folder)), Path(file).exists())


def test_columns_without_a_form_in_json_are_bad_rows(file):
    written(file, schema(size=DoubleType()), (1.5,), (float("nan"),), (2.5,), onBadRow="skip", entrypoint="a")
    assert [b'{"size":1.5}', b'{"size":2.5}'] == texts_of(file)


def test_files_of_attempts_that_do_not_count_are_removed(tmp_path, file):
    options = {"onBadRow": "skip", "badRowsPath": str(tmp_path / "bad"), "txnAppId": "nightly", "txnVersion": "1"}
    rows = batch(PLAIN, ("a", b""), (None, b""))
    writer(file, PLAIN, **options).stage([rows], task(0, 7))  # its driver was killed
    bulk = writer(file, PLAIN, **options)
    bulk.stage([rows], task(0, 0))
    late = writer(file, PLAIN, **options)
    bulk.commit([bulk.stage([rows], task(0, 1))])
    assert 1 == len(lines_in(tmp_path / "bad"))
    late.commit([late.stage([rows], task(0, 2))])
    assert 1 == len(lines_in(tmp_path / "bad"))


@pytest.mark.parametrize("named", [False, True])
def test_an_abort_removes_the_files(tmp_path, file, named):
    options = {"txnAppId": "nightly", "txnVersion": "1"} if named else {}
    bulk = writer(file, PLAIN, onBadRow="skip", badRowsPath=str(tmp_path / "bad"), **options)
    bulk.abort([bulk.stage([batch(PLAIN, ("a", b""), (None, b""))], task())])
    assert [] == lines_in(tmp_path / "bad")


def test_many_bad_rows_are_written_to_several_files(tmp_path, file, monkeypatch):
    monkeypatch.setattr("jqueue.spark.enqueue.bad_rows.FILE_BYTES", 200)
    bulk = writer(file, PLAIN, onBadRow="skip", badRowsPath=str(tmp_path / "bad"))
    bulk.commit([bulk.stage([batch(PLAIN, *[(None, b"")] * 5)] * 3, task())])
    assert ([*range(15)], 3) == (
        sorted(each["row"] for each in lines_in(tmp_path / "bad")),
        len([*tmp_path.glob("bad/*.json")]),
    )


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({"badRowsPath": "bad"}, "badRowsPath has an effect only with onBadRow skip"),
        ({"badRowsPath": "bad", "onBadRow": "deadLetter"}, "badRowsPath has an effect only with onBadRow skip"),
        ({"deadLetterEntrypoint": "a", "onBadRow": "skip"}, "deadLetterEntrypoint has an effect only with onBadRow"),
        ({"onBadRow": "ignore"}, "option onBadRow takes fail or skip or deadLetter, got 'ignore'"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path, file, monkeypatch, options, needed):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidJobError, match=needed):
        writer(file, PLAIN, **options)


@pytest.mark.parametrize("columns", [PLAIN, FULL], ids=["without options", "with options"])
@pytest.mark.parametrize("seed", range(5))
def test_exactly_the_rows_that_are_bad_alone_are_left_out(file, columns, seed):
    dice = random.Random(seed)
    values: dict[str, list[Any]] = {
        "entrypoint": ["a", "b", "a", None, "\0"],
        "payload": [b"1", b"22", b"333", None, b"4" * 9],
        "priority": [0, 1, -5, None],
        "delay": [None, 0.0, 1.5, -1.0, float("inf")],
    }
    rows = [tuple(dice.choice(values[name]) for name in columns.names) for _ in range(60)]
    alone = set()
    for number, row in enumerate(rows):
        try:
            encoder = RowEncoder(columns_of(columns, {}), StagedWriter(Limits(payload_bytes=8)), 0, SystemEntropy())
            encoder.add(batch(columns, row))
        except InvalidJobError:
            alone.add(number)
    written(file, columns, *rows, onBadRow="skip", maxPayloadBytes="8")
    good = [row[1] for number, row in enumerate(rows) if number not in alone]
    assert (sorted(good), True) == (sorted(texts_of(file)), 0 < len(alone) < 60)
    if columns is PLAIN:
        assert good == texts_of(file)


def test_the_store_of_the_files_may_fail_and_the_task_with_it(tmp_path, file):
    bulk = writer(file, PLAIN, onBadRow="skip", badRowsPath=str(tmp_path / "bad"), deadline="0.1")
    (tmp_path / "bad").write_text("no folder")
    with pytest.raises(StorageError):
        bulk.stage([batch(PLAIN, (None, b""))], task())


@pytest.mark.wide
def test_a_write_by_spark_leaves_bad_rows_out(spark, tmp_path, file):
    frame = spark.range(0, 2000, 1, 2).selectExpr(
        "if(id % 100 = 7, null, 'resize') entrypoint", "encode(string(id), 'utf-8') payload", "cast(id as int) priority"
    )
    folder, receipt = str(tmp_path / "bad"), tmp_path / "receipt.json"
    options = {"onBadRow": "skip", "badRowsPath": folder, "receiptPath": str(receipt)}
    frame.write.format("jqueue").mode("append").options(**options).save(file)
    told = spark.read.json(folder)
    assert (1980, 20) == (len(jobs_of(file)), json.loads(receipt.read_text())["bad"])
    assert {*range(7, 2000, 100)} == {row["id"] for row in told.selectExpr("columns.priority id").collect()}
