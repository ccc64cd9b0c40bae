"""The streaming sink, called like Spark calls it, without Spark: a new sink for every commit, and repeated batches."""

import pickle

import pytest
from pyspark.sql.types import BinaryType, LongType

from jqueue.domain.errors import InvalidJobError
from jqueue.spark.enqueue.committing import BATCH_ID, QUERY_ID
from jqueue.spark.enqueue.sink import StreamSink
from tests.spark.enqueue.bulk import (
    PAYLOAD,
    last_of,
    names_of,
    payloads,
    schema,
    staged_at,
    task,
    texts_of,
    write,
)

QUERY = "57f302e8-df48-4e1e-8c1f-60989b576a03"


def sink(url, columns=PAYLOAD, overwrite=False, **options):
    given = {"path": url, "checkpointLocation": "/checkpoint", "queryName": "q", "entrypoint": "resize", **options}
    return StreamSink(given, columns, overwrite)


def stage(url, number, *texts, query=QUERY, attempt=0, partition=0, **options):
    """Stage rows by a task of a batch, with the sink for its tasks. Returns the report."""
    running = task(partition, attempt, **{QUERY_ID: query, BATCH_ID: str(number)})
    return pickle.loads(pickle.dumps(sink(url, **options))).stage([payloads(*texts)], running)


def commit(url, number, *reports, **options):
    """Commit a batch by another sink, like Spark."""
    sink(url, **options).commit(pickle.loads(pickle.dumps(list(reports))), number)


def test_each_batch_is_added_once_under_any_repetition(url):
    for number, text in enumerate([b"a", b"b", b"c"]):
        report = stage(url, number, text)
        commit(url, number, report)
        commit(url, number, report)
        commit(url, number, stage(url, number, text))
    assert ([b"a", b"b", b"c"], []) == (texts_of(url), staged_at(url))
    assert 2 == last_of(url, f"spark-stream:{QUERY}")


def test_batches_of_two_queries_are_separate(file):
    for query in ("one", "other"):
        commit(file, 0, stage(file, 0, query.encode(), query=query))
    assert [b"one", b"other"] == texts_of(file)


def test_a_given_txn_app_id_outlives_the_id_of_the_query(file, caplog):
    caplog.set_level("WARNING", "jqueue")
    options = {"txnAppId": "ingest"}
    for query in ("one", "other"):
        commit(file, 0, stage(file, 0, query.encode(), query=query, **options), **options)
    assert [b"one"] == texts_of(file)
    assert 0 == last_of(file, "ingest")
    assert [] == caplog.messages


def test_a_batch_behind_the_last_one_is_left_out_with_a_warning(file, caplog):
    caplog.set_level("WARNING", "jqueue")
    for number in (5, 3):
        commit(file, number, stage(file, number, b"%d" % number))
    assert [b"5"] == texts_of(file)
    assert [
        f"Batch 3 of spark-stream:{QUERY} was skipped, and 1 row was not written: the queue has its batch 5. If "
        "this is another stream, or its checkpoint is new, give it a txnAppId of its own"
    ] == caplog.messages


def test_leftovers_of_an_interrupted_batch_do_not_count_against_its_next_attempt(file):
    """The next attempt may have other partitions, so their leftovers cannot be told from its own objects."""
    for partition in range(3):
        stage(file, 0, *[b"x" * 100] * 12, attempt=partition, partition=partition, maxBlobBytes="10000")
    commit(file, 0, stage(file, 0, *[b"x" * 100] * 20, maxBlobBytes="10000"), maxBlobBytes="10000")
    assert 20 == len(texts_of(file))


def test_a_batch_without_rows_writes_nothing(tmp_path):
    url = str(tmp_path / "queue.json")
    commit(url, 0, stage(url, 0))
    commit(url, 1)
    assert [] == list(tmp_path.iterdir())


def test_staged_objects_of_an_interrupted_batch_are_removed_by_its_commit(file):
    stage(file, 0, b"a")  # then the driver was killed
    stage(file, 0, b"a", attempt=1)
    commit(file, 0, stage(file, 0, b"a", attempt=2))
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_commit_leaves_staged_objects_of_other_batches(file):
    report = stage(file, 11, b"later")
    commit(file, 1, stage(file, 1, b"a"))
    commit(file, 11, report)
    assert [b"a", b"later"] == texts_of(file)


def test_an_abort_removes_only_the_staged_objects_of_its_batch(url):
    kept = stage(url, 1, b"b")
    report = stage(url, 0, b"a")
    lost = stage(url, 0, b"a", attempt=1)  # its report did not arrive: another driver may have named its segment
    sink(url).abort([report, None], 0)
    assert sorted([*names_of(kept), *names_of(lost)]) == staged_at(url)


def test_an_abort_after_a_successful_commit_removes_no_jobs(file):
    report = stage(file, 0, b"a")
    commit(file, 0, report)
    sink(file).abort([report], 0)
    assert [b"a"] == texts_of(file)


def test_an_abort_without_reports_finds_copied_objects_only_by_txn_app_id(file, tmp_path):
    elsewhere = {"stagingPath": str(tmp_path / "staged")}

    def left():
        return [path.name for path in (tmp_path / "staged").iterdir() if path.suffix != ".lock"]

    report = stage(file, 0, b"a", **elsewhere)
    sink(file, **elsewhere).abort([None], 0)
    [only] = left()
    assert only.endswith(report.name)
    stage(file, 0, b"a", txnAppId="ingest", **elsewhere)
    assert 2 == len(left())
    sink(file, txnAppId="ingest", **elsewhere).abort([None], 0)
    assert [only] == left()


def test_a_task_without_the_id_of_its_query_requires_a_txn_app_id(file):
    with pytest.raises(
        InvalidJobError, match="does not tell its tasks which query they belong to: give the option txn"
    ):
        sink(file).stage([payloads(b"a")], task())
    report = sink(file, txnAppId="ingest").stage([payloads(b"a")], task())
    commit(file, 0, report, txnAppId="ingest")
    assert [b"a"] == texts_of(file)


def test_a_stream_and_a_write_share_a_queue(file):
    write(file, b"a", txnAppId="nightly", txnVersion="7")
    commit(file, 0, stage(file, 0, b"b"))
    assert [b"a", b"b"] == texts_of(file)


def test_columns_are_checked_before_the_query_starts_a_task(file):
    with pytest.raises(InvalidJobError, match="column 'payload' is bigint"):
        sink(file, schema(payload=LongType()))


def test_complete_output_is_refused(file):
    with pytest.raises(InvalidJobError, match="a queue cannot be overwritten with every batch: use outputMode"):
        sink(file, overwrite=True)


def test_a_stream_does_not_accept_a_txn_version(file):
    with pytest.raises(InvalidJobError, match="there is no option 'txnVersion'"):
        sink(file, schema(payload=BinaryType()), txnAppId="a", txnVersion="1")


def test_a_stream_does_not_accept_a_receipt_path(file):
    with pytest.raises(InvalidJobError, match="there is no option 'receiptPath'"):
        sink(file, receiptPath="receipt.json")
