"""Bulk enqueue and the streaming sink on real Spark: a smoke test of each, and the errors that users see."""

import asyncio
import json

import pytest
from pyspark.errors import PySparkException

from jqueue import DirectQueue, connect
from jqueue.core.blob.segment_staging import STAGED_ROWS
from tests.spark.enqueue.bulk import jobs_of, staged_at, texts_of


@pytest.fixture
def copied(tmp_path):
    """A folder for staged rows, which the commit copies."""
    return tmp_path / "staged"


def save(frame, url, mode="append", **options):
    frame.write.format("jqueue").mode(mode).options(**options).save(url)


def refusal(frame, url, **settings):
    """The one-line error of jqueue in the exception of Spark."""
    with pytest.raises(PySparkException) as caught:
        save(frame, url, **settings)
    [line] = [line for line in str(caught.value).splitlines() if "InvalidJobError: " in line or "FullError: " in line]
    return line.partition("Error: ")[2]


def test_a_data_frame_is_written_into_a_queue(spark, url):
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "concat('e', id % 2) entrypoint",
        "named_struct('id', id, 'at', timestamp_seconds(id), 'of', map('a', array(1.5D))) payload",
        "cast(id % 3 as int) priority",
        "if(id = 7, interval '1' hour, null) delay",
        "map('trace', cast(id as string)) headers",
        "concat('key-', id) unique_key",
    )
    save(frame, url)
    save(frame.where("id < 10"), url)
    jobs = {int(job.headers["trace"]): job for job in jobs_of(url)}
    assert (1000, []) == (len(jobs_of(url)), staged_at(url))
    seven = jobs[7]
    assert ("e1", 1, "key-7", 3600.0) == (
        seven.entrypoint,
        seven.priority,
        seven.unique_key,
        (seven.run_at - seven.created_at).total_seconds(),
    )
    assert {"id": 7, "at": "1970-01-01T00:00:07+00:00", "of": {"a": [1.5]}} == json.loads(seven.payload)


@pytest.mark.wide
def test_a_rerun_of_a_named_write_adds_nothing(spark, file):
    frame = spark.range(100).selectExpr("id")
    for _ in range(2):
        save(frame, file, entrypoint="resize", txnAppId="nightly", txnVersion="1")
    assert {b'{"id":%d}' % number for number in range(100)} == set(texts_of(file))
    assert 100 == len(texts_of(file))


@pytest.mark.wide
def test_frames_without_rows_and_without_partitions_add_nothing(spark, tmp_path):
    for frame in (spark.createDataFrame([], "payload string"), spark.range(9).selectExpr("'a' payload").limit(0)):
        save(frame, str(tmp_path / "queue.json"), entrypoint="a")
    assert [] == list(tmp_path.iterdir())


@pytest.mark.wide
def test_a_wrong_write_is_refused_in_one_line_before_a_task_starts(spark, file):
    frame = spark.range(2).selectExpr("string(raise_error('a task has started')) payload", "'high' priority")
    wanted = "column 'priority' is string: it must be a whole number"
    assert wanted == refusal(frame, file, entrypoint="a")
    wanted = "the entrypoint is missing: add a column entrypoint, or the option entrypoint"
    assert wanted == refusal(frame.drop("priority"), file)
    assert refusal(frame, file, mode="overwrite").startswith("a queue cannot be overwritten")


@pytest.mark.wide
def test_a_failed_task_gives_a_one_line_error_and_leaves_no_segment(spark, file):
    frame = spark.range(0, STAGED_ROWS + 50_000, 1, 1)  # one task, as another could outlive the abort
    frame = frame.selectExpr(f"if(id = {STAGED_ROWS + 40_000}, null, 'secret') payload")  # behind a stored segment
    assert f"row {STAGED_ROWS + 40_000} of partition 0: payload is null" == refusal(frame, file, entrypoint="a")
    assert ([], []) == (texts_of(file), staged_at(file))


@pytest.mark.wide
def test_copied_rows_beyond_the_limit_give_a_one_line_error_and_leave_nothing(spark, file, copied):
    options = {"entrypoint": "a", "maxBlobBytes": 10000, "stagingPath": copied}
    frame = spark.range(0, 2, 1, 2).selectExpr("repeat('x', 4000) payload")
    said = refusal(frame, file, **options)
    by_commit, by_task = "2 jobs take", "the jobs of the first 2 partitions take"  # by the commit if no task saw both
    assert said.startswith((by_commit, by_task))
    assert "queue takes 9000" in refusal(frame.selectExpr("repeat('x', 9000) payload"), file, **options)
    assert ([], []) == (texts_of(file), list(copied.iterdir()))


@pytest.mark.wide
class TestStream:
    """Files become jobs, batch by batch."""

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "in"
        folder.mkdir()
        return folder

    def run(self, spark, folder, url, **options):
        """Run a query on all files in the folder, in batches of one file."""
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
        stream = lines.selectExpr("value payload").writeStream.format("jqueue").trigger(availableNow=True)
        given = {"checkpointLocation": str(folder.parent / "checkpoint"), "entrypoint": "line", **options}
        query = stream.options(**given).start(url)
        query.awaitTermination(120)
        return query

    def test_each_batch_is_written_once_across_restarts_from_an_old_checkpoint(self, spark, folder, url):
        for number in range(3):
            (folder / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
            self.run(spark, folder, url)
        last = folder.parent / "checkpoint" / "commits" / "2"
        for path in (last, last.with_name(".2.crc")):  # as if the driver had died before writing it
            path.unlink()
        self.run(spark, folder, url)
        (folder / "3.txt").write_text("3a\n")
        self.run(spark, folder, url)
        assert [b"0a", b"0b", b"1a", b"1b", b"2a", b"2b", b"3a"] == sorted(texts_of(url))
        assert [] == staged_at(url)

    def test_a_full_queue_stops_the_query_and_a_restart_continues(self, spark, folder, file, copied):
        options = {"maxBlobBytes": "10000", "stagingPath": copied}
        for number in range(2):
            (folder / f"{number}.txt").write_text("x" * 4000 + f"{number}")
        with pytest.raises(PySparkException, match="no room for 1 job "):
            self.run(spark, folder, file, **options)
        assert (1, []) == (len(texts_of(file)), list(copied.iterdir()))

        async def work():
            queue = connect(file, DirectQueue)
            [job] = await queue.dequeue("line")
            await queue.ack(job)
            return job.payload

        first = asyncio.run(work())
        self.run(spark, folder, file, **options)
        assert [b"x" * 4000 + b"0", b"x" * 4000 + b"1"] == sorted([first, *texts_of(file)])
