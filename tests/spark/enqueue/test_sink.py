"""The streaming sink, driven as Spark drives it but without Spark: a fresh one for every commit, batches repeated."""

import pickle

import pytest
from pyspark.sql.types import BinaryType, LongType

from jqueue.domain.errors import InvalidJobError
from jqueue.spark.enqueue.committing import BATCH_ID, QUERY_ID
from jqueue.spark.enqueue.sink import StreamSink
from tests.spark.enqueue.bulk import (
    PAYLOAD,
    last_of,
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
    """The report of a task of a batch, by the sink that was made for its tasks."""
    running = task(partition, attempt, **{QUERY_ID: query, BATCH_ID: str(number)})
    return pickle.loads(pickle.dumps(sink(url, **options))).stage([payloads(*texts)], running)


def commit(url, number, *reports, **options):
    """By another sink, as Spark does it."""
    sink(url, **options).commit(pickle.loads(pickle.dumps(list(reports))), number)


def test_each_batch_is_added_once_whatever_is_repeated(url):
    for number, text in enumerate([b"a", b"b", b"c"]):
        report = stage(url, number, text)
        commit(url, number, report)
        commit(url, number, report)
        commit(url, number, stage(url, number, text))
    assert ([b"a", b"b", b"c"], []) == (texts_of(url), staged_at(url))
    assert 2 == last_of(url, f"spark-stream:{QUERY}")


def test_two_queries_have_batches_of_their_own(file):
    for query in ("one", "other"):
        commit(file, 0, stage(file, 0, query.encode(), query=query))
    assert [b"one", b"other"] == texts_of(file)


def test_a_name_that_is_given_lives_on_when_the_query_gets_another_id(file, caplog):
    caplog.set_level("WARNING", "jqueue")
    options = {"txnAppId": "ingest"}
    for query in ("one", "other"):
        commit(file, 0, stage(file, 0, query.encode(), query=query, **options), **options)
    assert [b"one"] == texts_of(file)
    assert 0 == last_of(file, "ingest")
    assert [] == caplog.messages


def test_a_batch_that_is_far_behind_is_left_out_and_told(file, caplog):
    caplog.set_level("WARNING", "jqueue")
    for number in (5, 3):
        commit(file, number, stage(file, number, b"%d" % number))
    assert [b"5"] == texts_of(file)
    assert [
        f"Batch 3 of spark-stream:{QUERY} was left out, and its 1 rows were not written: the queue has its batch 5. If "
        "this is another stream, or its checkpoint is new, give it a txnAppId of its own"
    ] == caplog.messages


def test_what_an_interrupted_try_of_a_batch_has_left_takes_no_room_from_the_next(file):
    """The next try may have other partitions, so that theirs and its own cannot be told apart."""
    for partition in range(3):
        stage(file, 0, *[b"x" * 100] * 12, attempt=partition, partition=partition, maxBlobBytes="10000")
    commit(file, 0, stage(file, 0, *[b"x" * 100] * 20, maxBlobBytes="10000"), maxBlobBytes="10000")
    assert 20 == len(texts_of(file))


def test_a_batch_without_rows_touches_nothing(tmp_path):
    url = str(tmp_path / "queue.json")
    commit(url, 0, stage(url, 0))
    commit(url, 1)
    assert [] == list(tmp_path.iterdir())


def test_attempts_of_a_batch_that_was_interrupted_go_with_it(file):
    stage(file, 0, b"a")  # the driver was killed
    stage(file, 0, b"a", attempt=1)
    commit(file, 0, stage(file, 0, b"a", attempt=2))
    assert ([b"a"], []) == (texts_of(file), staged_at(file))


def test_a_batch_that_was_interrupted_leaves_the_next_one_alone(file):
    report = stage(file, 11, b"later")
    commit(file, 1, stage(file, 1, b"a"))
    commit(file, 11, report)
    assert [b"a", b"later"] == texts_of(file)


def test_an_abort_removes_what_the_batch_has_staged_and_nothing_else(url):
    kept = stage(url, 1, b"b")
    report = stage(url, 0, b"a")
    stage(url, 0, b"a", attempt=1)
    sink(url).abort([report, None], 0)
    assert [kept.name] == staged_at(url)


def test_an_abort_after_a_commit_that_succeeded_takes_nothing_back(file):
    report = stage(file, 0, b"a")
    commit(file, 0, report)
    sink(file).abort([report], 0)
    assert [b"a"] == texts_of(file)


def test_an_abort_that_knows_no_task_finds_the_batch_by_its_name_or_leaves_it_to_age(file):
    report = stage(file, 0, b"a")
    sink(file).abort([None], 0)
    assert [report.name] == staged_at(file)
    named = stage(file, 0, b"a", txnAppId="ingest")
    assert named.name in staged_at(file)
    sink(file, txnAppId="ingest").abort([None], 0)
    assert [report.name] == staged_at(file)


def test_a_task_that_is_not_told_its_query_asks_for_a_name(file):
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


def test_the_version_of_a_batch_is_its_number_so_that_none_can_be_given(file):
    with pytest.raises(InvalidJobError, match="there is no option 'txnVersion'"):
        sink(file, schema(payload=BinaryType()), txnAppId="a", txnVersion="1")


def test_a_stream_has_many_commits_and_leaves_no_receipt(file):
    with pytest.raises(InvalidJobError, match="there is no option 'receiptPath'"):
        sink(file, receiptPath="receipt.json")
