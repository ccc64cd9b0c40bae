"""The streaming source, called like Spark calls it: offsets, limits, polls, partitions, and wrong options."""

import gc
import json
import re
import threading

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidJobError, JQueueError, StorageFatalError
from jqueue.domain.operations import Enqueue
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.stream.offsets import Offset
from jqueue.spark.stream.shipping import ShippedRows
from jqueue.spark.stream.source import ClaimReader
from jqueue.testing.faults import Fault
from tests.spark.stream.stream_driver import PICKLER
from tests.spark.stream.stream_world import StreamWorld

ALL, TEN = ReadAllAvailable(), ReadMaxRows(10)


@pytest.fixture
def world():
    return StreamWorld()


@pytest.fixture
def reader(world):
    reader = world.reader()
    yield reader
    reader.stop()


def _begun(reader):
    """Let a source pass its first, empty batch, and return its initial offset."""
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, TEN)
    return start


def _ids(reader, start, end):
    tasks = PICKLER.loads(PICKLER.dumps(reader))
    partitions = [PICKLER.loads(PICKLER.dumps(partition)) for partition in reader.partitions(start, end)]
    return [job_id for each in partitions for rows in tasks.read(each) for job_id in rows.column("id").to_pylist()]


# Offsets


def test_the_initial_offset_is_the_same_at_each_call(reader):
    assert reader.initialOffset() == reader.initialOffset()


def test_every_query_has_a_unique_id(world, reader):
    assert reader.initialOffset() != world.reader().initialOffset()


def test_an_offset_is_plain_json(world, reader):
    world.enqueue(1)
    start = _begun(reader)
    end = reader.latestOffset(start, TEN)
    assert end == json.loads(json.dumps(end))
    assert {"source": start["source"], "batch": 1, "claim": end["claim"]} == end


def test_a_new_query_claims_nothing_before_its_id_is_in_the_log(world, reader):
    """Its first batch is empty, because a claim under an id that is not yet logged could never be found again."""
    world.enqueue(1)
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, TEN)
    assert (0, 0) == (world.storage.reads, world.storage.writes)
    assert start != reader.latestOffset(start, TEN)


def test_a_query_with_the_trigger_once_claims_at_once(world, reader):
    world.enqueue(1)
    start = reader.initialOffset()
    assert start != reader.latestOffset(start, ALL)


def test_there_are_no_partitions_between_the_same_offsets(world, reader):
    world.enqueue(1)
    start = _begun(reader)
    assert [] == reader.partitions(start, start)
    end = reader.latestOffset(start, TEN)
    asked = world.storage.reads, world.storage.writes
    assert [] == reader.partitions(end, end)
    assert [] == world.reader().partitions(world.reader().initialOffset(), start)
    assert asked == (world.storage.reads, world.storage.writes)


@pytest.mark.parametrize("wrong", [{}, {"offset": 3}, {"source": "", "batch": 0, "claim": ""}, [1], None, 7,
                                   {"source": "a", "batch": "1", "claim": ""}])  # fmt: skip
def test_the_checkpoint_of_another_source_is_refused_in_one_line(reader, wrong):
    with pytest.raises(InvalidJobError, match=r"^the checkpoint holds an offset that is not of a queue.*$"):
        reader.latestOffset(wrong, TEN)
    with pytest.raises(InvalidJobError, match=r"^the checkpoint"):
        reader.partitions({}, wrong)


# Limits


def test_the_limit_of_a_batch_is_an_option(world):
    assert ReadMaxRows(10_000) == ClaimReader({"path": "q.json"}, SNAPSHOT_SCHEMA).getDefaultReadLimit()
    assert ReadMaxRows(7) == world.reader(maxJobsPerTrigger=7).getDefaultReadLimit()


@pytest.mark.parametrize(("limit", "jobs"), [(TEN, 10), (ReadMaxRows(3), 3), (ALL, 25), (ReadMinRows(1), 10)])
def test_a_limit_of_spark_takes_precedence_over_the_option(world, reader, limit, jobs):
    world.enqueue(25)
    start = _begun(reader)
    assert jobs == len(_ids(reader, start, reader.latestOffset(start, limit)))


# Polls


def test_the_store_is_read_once_per_poll_interval_despite_frequent_polls_of_spark(world):
    reader = world.reader(pollInterval=10)
    start = _begun(reader)
    for second in range(60):
        for _ in range(80):
            assert start == reader.latestOffset(start, TEN)
        assert second // 10 + 1 == world.storage.reads
        world.clock.advance(1)
    assert 0 == world.storage.writes
    reader.stop()


def test_later_jobs_are_found_at_the_next_poll(world, reader):
    start = _begun(reader)
    assert start == reader.latestOffset(start, TEN)
    ids = world.enqueue(3)
    assert start == reader.latestOffset(start, TEN)
    world.clock.advance(1)
    assert ids == _ids(reader, start, reader.latestOffset(start, TEN))


def test_the_last_batch_is_acked_without_a_following_batch(world, reader):
    world.enqueue(3)
    start = _begun(reader)
    end = reader.latestOffset(start, TEN)
    assert end == reader.latestOffset(end, TEN)
    assert 3 == len(world.jobs), "not before the next poll"
    world.clock.advance(1)
    assert end == reader.latestOffset(end, TEN)
    assert [] == world.jobs


def test_a_commit_call_of_spark_changes_nothing(world, reader):
    world.enqueue(3)
    start = _begun(reader)
    end = reader.latestOffset(start, TEN)
    reader.commit(end)
    assert 3 == len(world.jobs)


def test_the_progress_of_a_query_has_the_backlog_and_its_claims(world, reader):
    assert reader.reportLatestOffset() is None
    world.enqueue(12)
    world.enqueue(2, delay=600)
    world.clock.advance(5)
    start = _begun(reader)
    end = reader.latestOffset(start, TEN)
    asked = world.storage.reads, world.storage.writes
    told = {"backlog": 4, "oldestAgeSeconds": 5.0, "claimedJobs": 10, "claimedRanges": 0}
    assert told == reader.reportLatestOffset()
    world.clock.advance(7)
    assert told | {"oldestAgeSeconds": 12.0} == reader.reportLatestOffset()
    assert asked == (world.storage.reads, world.storage.writes)
    reader.latestOffset(end, TEN)
    assert {"backlog": 2, "oldestAgeSeconds": None, "claimedJobs": 2, "claimedRanges": 0} == reader.reportLatestOffset()


def test_the_backlog_is_that_of_the_entrypoints_of_the_query(world):
    reader = world.reader(entrypoint="a,b")
    for number, entrypoint in enumerate("abc", 1):
        world.enqueue(10 * number, entrypoint)
    reader.latestOffset(_begun(reader), TEN)
    progress = reader.reportLatestOffset()
    assert progress is not None
    assert 20 == progress["backlog"]
    reader.stop()


# Rows


def test_rows_hold_the_fields_of_jobs_and_match_the_schema(world, reader):
    world.enqueue(1, "resize", priority=3, headers={"trace": "af31"}, unique_key="key", max_attempts=5)
    start = _begun(reader)
    [partition] = reader.partitions(start, reader.latestOffset(start, TEN))
    [rows] = reader.read(partition)
    assert to_arrow_schema(SNAPSHOT_SCHEMA, timezone="UTC").equals(rows.schema)
    [row] = rows.to_pylist()
    [job] = world.jobs
    same = (
        "id",
        "entrypoint",
        "payload",
        "priority",
        "attempt",
        "failures",
        "max_attempts",
        "created_at",
        "unique_key",
    )
    assert {name: getattr(job, name) for name in same} == {name: row[name] for name in same}
    assert [("trace", "af31")] == row["headers"]
    assert ("in_progress", job.holder) == (row["status"], row["holder"])


@pytest.mark.parametrize(
    ("jobs", "payload", "options", "partitions"),
    [
        (1, 0, {}, 1),
        (10, 0, {}, 2),
        (10, 600_000, {}, 3),
        (40, 600_000, {}, 8),
        (10, 0, {"numPartitions": 5}, 5),
        (3, 0, {"numPartitions": 5}, 3),
    ],
)
def test_the_partitions_of_a_batch_follow_from_its_size_or_the_option(world, jobs, payload, options, partitions):
    ids = world.enqueue(jobs, payload=bytes(payload))
    reader = world.reader(**options)
    start = _begun(reader)
    end = reader.latestOffset(start, ALL)
    assert partitions == len(reader.partitions(start, end))
    assert ids == _ids(reader, start, end)
    reader.stop()


def test_all_actions_on_a_batch_see_the_same_rows_even_if_claims_are_lost(world, reader):
    ids = world.enqueue(10)
    start = _begun(reader)
    end = reader.latestOffset(start, TEN)
    assert ids == _ids(reader, start, end)
    world.steal(4)
    reader._call_queue(reader._claims._send_heartbeat)
    assert 0 == len(reader._call_queue(lambda: reader._claims.jobs_of(Offset.read(end))))
    assert ids == _ids(reader, start, end)


def test_the_repr_of_a_partition_shows_no_content():
    assert "ShippedRows(<6 bytes>)" == repr(ShippedRows(b"secret"))


def test_a_pickled_reader_has_no_queue_and_no_thread(world, reader):
    world.enqueue(1)
    start = _begun(reader)
    reader.latestOffset(start, TEN)
    before = threading.active_count()
    copy = PICKLER.loads(PICKLER.dumps(reader))
    assert {"_given", "_schema", "_opened", "_sizes", "_new_source", "_unlogged", "_planned", "_stopped"} == set(
        vars(copy)
    )
    copy.stop()
    assert before == threading.active_count()


def test_a_stream_can_have_some_columns_in_another_order(world):
    schema = StructType([SNAPSHOT_SCHEMA["payload"], SNAPSHOT_SCHEMA["id"]])
    [job_id] = world.enqueue(1)
    reader = ClaimReader(world.options, schema, opened=world.open)
    start = _begun(reader)
    [partition] = reader.partitions(start, reader.latestOffset(start, TEN))
    assert [{"payload": b"payload", "id": job_id}] == pa.Table.from_batches(reader.read(partition)).to_pylist()
    reader.stop()


# Wrong options, and stores that fail


def test_an_unknown_column_of_a_stream_gives_a_one_line_error(world):
    reader = ClaimReader(world.options, StructType([StructField("size", LongType())]), opened=world.open)
    with pytest.raises(InvalidJobError, match=r"^there is no column 'size' here.*$"):
        reader.getDefaultReadLimit()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the URL of the queue is missing"),
        ({"path": "a.json,b.json"}, "a stream reads one queue"),
        ({"path": "*.json"}, "a stream reads one queue"),
        (
            {"path": "q.json", "maxJobs": "3"},
            "there is no option 'maxJobs': the options are claimTimeout, entrypoint, ",
        ),
        (
            {"path": "q.json", "maxJobsPerTrigger": "0"},
            "option maxJobsPerTrigger takes a whole number from 1 to ",
        ),
        ({"path": "q.json", "maxJobsPerTrigger": "many"}, "option maxJobsPerTrigger takes a whole number"),
        ({"path": "q.json", "pollInterval": "-1"}, "option pollInterval takes a number of seconds"),
        (
            {"path": "q.json", "claimTimeout": "0.5"},
            "option claimTimeout takes a number of seconds, 1 or more, got",
        ),
        ({"path": "q.json", "claimTimeout": "nan"}, "option claimTimeout takes a number of seconds, 1 or more"),
        ({"path": "q.json", "numPartitions": "0"}, "option numPartitions takes a whole number from 1 to 1000"),
        ({"path": "q.json", "entrypoint": "a,,b"}, "option entrypoint takes names"),
        ({"path": "s3:/bucket"}, "the s3:// URL has no //"),
        ({"path": "memory://queue"}, "an in-memory queue is visible only to its own process"),
    ],
)
@pytest.mark.parametrize("call", ["prepareForTriggerAvailableNow", "initialOffset"])
def test_wrong_options_give_a_one_line_error_at_the_first_call(options, said, call):
    """The constructor raises no error, because Spark would hide it behind its own."""
    reader = ClaimReader(options, SNAPSHOT_SCHEMA)
    with pytest.raises(ValueError, match=rf"\A{re.escape(said)}.*\Z"):
        getattr(reader, call)()
    reader.stop()


@pytest.mark.parametrize("name", ["maxRowsPerTrigger", "maxOffsetsPerTrigger", "MAXROWSPERTRIGGER"])
def test_names_of_kafka_and_delta_for_the_size_of_a_batch_mean_the_same(name):
    assert ReadMaxRows(7) == ClaimReader({"path": "q.json", name: "7"}, SNAPSHOT_SCHEMA).getDefaultReadLimit()
    reader = ClaimReader({"path": "q.json", name: "7", "maxJobsPerTrigger": "7"}, SNAPSHOT_SCHEMA)
    with pytest.raises(InvalidJobError, match=rf"^the option '{name}' means maxJobsPerTrigger: give one of the two$"):
        reader.getDefaultReadLimit()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("maxFilesPerTrigger", "limit a batch by its number of jobs, with maxJobsPerTrigger"),
        ("maxBytesPerTrigger", "limit a batch by its number of jobs, with maxJobsPerTrigger"),
        ("minPartitions", "give numPartitions"),
        ("startingOffsets", "a queue has no positions: a query gets the jobs that wait, and goes on by its checkpoint"),
    ],
)
def test_other_options_of_kafka_and_delta_are_answered_with_ours(name, answer):
    reader = ClaimReader({"path": "q.json", name: "7"}, SNAPSHOT_SCHEMA)
    with pytest.raises(InvalidJobError, match=rf"^there is no option '{name}': {re.escape(answer)}$"):
        reader.getDefaultReadLimit()


def test_names_of_options_may_come_in_any_case(world):
    assert ReadMaxRows(7) == ClaimReader({"PATH": "q", "maxjobspertrigger": "7"}, SNAPSHOT_SCHEMA).getDefaultReadLimit()


def test_garbage_collection_is_enabled_again_after_each_call(world):
    reader = world.reader()
    reader.prepareForTriggerAvailableNow()
    assert gc.isenabled()
    world.storage.error = lambda: StorageFatalError("no such bucket")
    world.storage.on_read(Fault.LOST_REQUEST)
    with pytest.raises(JQueueError):
        reader.prepareForTriggerAvailableNow()
    assert gc.isenabled()
    reader.stop()


def test_a_failing_store_gives_a_one_line_error(world):
    def opened(options):
        return DirectQueue(world.storage, clock=world.clock, deadline=0.2)

    world.storage.error = lambda: OSError("first line\n  second line")
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    reader = ClaimReader(world.options, SNAPSHOT_SCHEMA, opened=opened)
    start = _begun(reader)
    with pytest.raises(JQueueError, match=r"^the queue of the streaming query failed: .* first line second line.$"):
        reader.latestOffset(start, TEN)
    reader.stop()


def test_a_stopped_source_keeps_its_claims_and_makes_no_requests(world):
    world.enqueue(3)
    reader = world.reader()
    start = _begun(reader)
    reader.latestOffset(start, TEN)
    asked = world.storage.reads, world.storage.writes
    reader.stop()
    reader.stop()
    assert asked == (world.storage.reads, world.storage.writes)
    assert 3 == len([job for job in world.jobs if job.holder])


async def test_the_queue_of_a_url_is_opened(tmp_path):
    queue = DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json"))
    job = await queue.enqueue_many([Enqueue("work", b"payload")] * 3)
    reader = ClaimReader({"path": str(tmp_path / "queue.json"), "claimTimeout": "7"}, SNAPSHOT_SCHEMA)
    start = _begun(reader)
    assert [each.id for each in job] == _ids(reader, start, reader.latestOffset(start, TEN))
    assert {7.0} == {each.claim_timeout for each in (await queue.read_state()).jobs}
    reader.stop()
