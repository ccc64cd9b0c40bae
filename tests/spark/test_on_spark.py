"""Every part of the pipeline once on real Spark, in one session: what Spark itself must do with our data source."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC

import msgspec
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions

from jqueue.domain.errors import ClaimLostError, InvalidJobError, InvalidURLError, JQueueError
from jqueue.domain.events import HistoryEvent
from jqueue.operations import Cancel, Enqueue
from jqueue.spark import HISTORY_SCHEMA, BatchFailedError, EndedBatch, end_batch, run_batch, split_bad_rows
from jqueue.spark.errors import cause, one_line, plain_errors
from jqueue.worker import Context, Worker
from tests.spark.spark_calls import call, enqueue, fill_segments, jobs_of, left_in, litter_of, texts_of

pytestmark = pytest.mark.wide


def save(frame, url, **options):
    frame.write.format("jqueue").mode("append").options(**options).save(url)


def run_stream(stream, folder, sink=None, **options):
    """Run a streaming query until it has done what is there now: into a queue, or into a function for each batch."""
    writer = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint")).options(**options)
    writer = writer.format("jqueue") if sink is None else writer.foreachBatch(sink)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


# Tables


def test_a_data_frame_becomes_jobs_once_and_they_become_a_data_frame(spark, url):
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "concat('e', id % 2) entrypoint",
        "named_struct('id', id, 'at', timestamp_seconds(id), 'of', map('a', array(1.5D))) payload",
        "cast(id % 3 as int) priority",
        "if(id = 7, interval '1' hour, null) delay",
        "map('trace', cast(id as string)) headers",
        "concat('key-', id) unique_key",
    )
    for _ in range(2):
        save(frame, url, txn_app_id="nightly", txn_version=1)
    save(frame.where("id < 10"), url)
    jobs = {int(job.headers["trace"]): job for job in jobs_of(url)}
    assert (1000, 1000) == (len(jobs), len(jobs_of(url)))
    seven = jobs[7]
    assert ("e1", 1, "key-7") == (seven.entrypoint, seven.priority, seven.unique_key)
    assert 3600 == (seven.run_at - seven.created_at).total_seconds()
    assert {"id": 7, "at": "1970-01-01T00:00:07+00:00", "of": {"a": [1.5]}} == json.loads(seven.payload)
    read = spark.read.format("jqueue").option("num_partitions", 3).load(url)
    assert 1 == read.where("run_at > created_at and headers['trace'] = '7' and status = 'queued'").count()
    assert {job.id for job in jobs.values()} == {row.id for row in read.select("id").collect()}
    counts = spark.read.schema("entrypoint string, status string").format("jqueue").load(url)
    assert {("e0", 500), ("e1", 500)} == {tuple(row) for row in counts.groupBy("entrypoint").count().collect()}
    enqueue(url, [Enqueue("late", b"")])
    assert 1000 == read.count(), "a DataFrame is the version of its first action"
    assert 1001 == spark.read.format("jqueue").load(url).count()


def test_bad_rows_are_set_apart_with_their_reasons_and_the_others_are_written_in_the_order_of_spark(spark, url):
    texts = ["if(id = 2, null, 'a') payload", "5 - id priority", "if(id = 4, 0, 3) max_attempts", "id number"]
    good, bad = split_bad_rows(spark.range(0, 6, 1, 1).selectExpr(*texts))
    null, attempts = bad.select("number", "reason").collect()
    assert ((2, "payload is null"), 4) == (tuple(null), attempts.number)
    assert attempts.reason.startswith("max_attempts must be from 1 to ")
    save(good.drop("number").repartitionByRange("priority").sortWithinPartitions("priority"), url, entrypoint="a")
    assert [0, 2, 4, 5] == [job.priority for job in jobs_of(url)]


def test_a_failed_task_adds_nothing_and_wrong_calls_are_one_line(spark, url, tmp_path):
    frame = spark.range(0, 2000, 1, 1).selectExpr("if(id = 1999, null, 'secret') payload", "id priority")
    wrongs = [
        (lambda: save(frame, url, entrypoint="a"), InvalidJobError, "row 1999 of partition 0: payload is null"),
        (lambda: save(frame.drop("priority"), url), InvalidJobError, "the entrypoint is missing: add a column entryp"),
        (lambda: spark.read.format("jqueue").load(f"{tmp_path}/no").count(), JQueueError, "there is no queue at "),
        (lambda: spark.read.parquet("/nowhere.parquet"), PySparkException, "[PATH_NOT_FOUND]"),
    ]
    for wrong, kind, words in wrongs:
        with pytest.raises(kind) as caught, plain_errors():
            wrong()
        assert str(caught.value).startswith(words)
        assert caught.value.__cause__ is None or 2 >= len(str(caught.value.__cause__).strip().split("\n"))
    assert "[PATH_NOT_FOUND] Path does not exist: file:/nowhere.parquet." == one_line(caught.value)
    assert ([], []) == (texts_of(url), litter_of(url))


def test_a_table_of_sql_is_read_and_written(spark, tmp_path):
    """This table has a location, and the snippet in the guide has options instead."""
    url = str(tmp_path / "a queue.json")
    enqueue(url, [Enqueue("resize", b"a")])
    try:
        spark.sql(f"CREATE TABLE jobs USING jqueue LOCATION '{url}'")
        spark.sql("INSERT INTO jobs (entrypoint, payload) VALUES ('mail', CAST('b' AS BINARY))")
        spark.sql("INSERT INTO jobs BY NAME SELECT 'mail' entrypoint, CAST('c' AS BINARY) payload, 7L priority")
        assert [(b"a", 0), (b"b", 0), (b"c", 7)] == [(job.payload, job.priority) for job in jobs_of(url)]
        assert 1 == spark.sql("SELECT * FROM jobs WITH (entrypoint 'resize')").count()
        with pytest.raises(InvalidJobError, match="id is not null, and the queue or an option sets it"), plain_errors():
            spark.sql("INSERT INTO jobs SELECT * FROM jobs")
    finally:
        spark.sql("DROP TABLE IF EXISTS jobs")
    assert 3 == len(jobs_of(url)), "dropping the table must not remove the queue"
    with pytest.raises(PySparkException) as caught:
        spark.sql("CREATE TABLE jobs USING jqueue OPTIONS (url 's3://key:hunter2@b/q.json')")
    assert isinstance(cause(caught.value), InvalidURLError)
    assert "must hold no secret" in str(cause(caught.value))


@pytest.mark.full
def test_data_frames_and_streams_write_tables_or_are_refused_in_one_line(spark, tmp_path):
    """A table has the URL of its queue if it was made without columns. Any other write must be given it."""
    url = str(tmp_path / "queue.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    frame = spark.createDataFrame([("mail", "a")], "entrypoint string, payload string").selectExpr(
        "entrypoint", "CAST(payload AS BINARY) payload"
    )
    lines = spark.readStream.format("text").load(str(tmp_path / "in"))
    stream = lines.selectExpr("'mail' entrypoint", "CAST(value AS BINARY) payload")

    def to_table(name, **options):
        checkpoint = str(tmp_path / f"checkpoint-{name}")
        writer = stream.writeStream.format("jqueue").options(checkpointLocation=checkpoint, **options)
        writer.trigger(availableNow=True).toTable(name).awaitTermination()

    def save_as(name, **options):
        frame.write.format("jqueue").mode("append").options(**options).saveAsTable(name)

    refused = [
        ("the URL of the queue is missing", lambda: save_as("new")),
        ("the URL of the queue is missing", lambda: spark.sql("INSERT INTO cols VALUES ('mail', CAST('a' AS BINARY))")),
        ("the URL of the queue is missing", lambda: spark.sql("SELECT * FROM cols").count()),
        ("the URL of the queue is missing", lambda: to_table("jobs")),
        ("a queue cannot be overwritten", lambda: frame.writeTo("jobs").overwrite(functions.lit(True))),
    ]
    try:
        spark.sql(f"CREATE TABLE jobs USING jqueue OPTIONS (url '{url}')")
        spark.sql(f"CREATE TABLE cols (entrypoint STRING, payload BINARY) USING jqueue OPTIONS (url '{url}')")
        frame.writeTo("jobs").append()
        save_as("jobs")
        save_as("made", url=url)
        to_table("streamed", url=url)
        assert 4 == len(jobs_of(url))
        for words, call_of_spark in refused:
            with pytest.raises(PySparkException) as caught:
                call_of_spark()
            assert one_line(caught.value).startswith(words)
    finally:
        for name in ("jobs", "cols", "made", "streamed"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
    assert 4 == len(jobs_of(url))


def test_a_thread_of_the_program_writes_data_frames_that_it_has_made(spark, url):
    def work():
        save(spark.createDataFrame([("mail", b"a")], "entrypoint string, payload binary"), url)
        return spark.read.format("jqueue").load(url).count()

    with ThreadPoolExecutor(1) as threads:
        assert 1 == threads.submit(work).result()


# Streams


def test_files_become_jobs_batch_by_batch_and_each_once_from_an_old_checkpoint(spark, tmp_path, url):
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}a\n{number}b\n")

    def run():
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "in"))
        run_stream(lines.selectExpr("value payload"), tmp_path, path=url, entrypoint="line")

    run()
    last = tmp_path / "checkpoint" / "commits" / "1"
    for path in (last, last.with_name(".1.crc")):  # as if the driver had died before writing it
        path.unlink()
    run()
    assert [b"0a", b"0b", b"1a", b"1b"] == sorted(texts_of(url))
    assert [] == litter_of(url)


def test_a_stream_of_jobs_has_each_once_and_continues_from_its_checkpoint(spark, tmp_path, url):
    batches: dict[int, list[str]] = {}

    def run(**options):
        stream = spark.readStream.format("jqueue").options(**options).load(url)
        return run_stream(
            stream, tmp_path, lambda f, n: batches.setdefault(n, [r.id for r in f.select("id").collect()])
        )

    ids = enqueue(url, [Enqueue("work", b"payload")] * 150) + fill_segments(url, range(400), entrypoint="deep")
    query = run(maxJobsPerTrigger=300)
    figures = [json.loads(each["sources"][0]["latestOffset"] or "null") or {} for each in query.recentProgress]
    assert [250, 0] == [each["backlog"] for each in figures if each.get("claimedJobs")]
    assert [] == jobs_of(url)
    ids += enqueue(url, [Enqueue("work", b"payload")] * 5)
    run()
    assert sorted(ids) == sorted(job_id for several in batches.values() for job_id in several)
    with pytest.raises(StreamingQueryException) as caught:
        run(pollIntervall=1)
    assert "there is no option 'pollintervall'" in str(cause(caught.value))


def test_rows_of_a_batch_fail_or_keep_results_as_end_batch_says(spark, tmp_path, url):
    fill_segments(url, range(400))
    fill_segments(url, [7000], keep_result=60)
    ended = []

    def work(batch, number):
        rows = batch.withColumn("number", batch["payload"].cast("string").cast("int"))
        bad = rows.where("number IN (3, 300)").selectExpr(
            "id", "concat('bad ', number) ERROR", "number = 3 dead", "INTERVAL '600' SECOND delay", "payload"
        )
        results = rows.where("number IN (5, 7000)").selectExpr("id", "struct(number) result")
        ended.append(end_batch(batch, url, failed=bad, results=results, keep_result=60))

    run_stream(spark.readStream.format("jqueue").load(url), tmp_path, work)
    assert [EndedBatch(0, 0), EndedBatch(2, 2)] == ended
    left = sorted((job.status, job.payload, job.error) for job in jobs_of(url) if job.status != "completed")
    assert [("dead", b"3", "bad 3"), ("queued", b"300", "bad 300")] == left
    assert [5, 7000] == sorted(job.result["number"] for job in jobs_of(url) if job.status == "completed")
    assert [] == [name for name in litter_of(url) if ".segments/" not in name]


@pytest.mark.full
def test_of_a_batch_that_failed_and_is_repeated_the_last_outcomes_count(spark, tmp_path, url):
    bad, good = enqueue(url, [Enqueue("work", b"1"), Enqueue("work", b"2")])
    runs = []

    def work(batch, number):
        if batch.isEmpty():
            return
        runs.append(number)
        failed = {bad: ValueError("first"), good: ValueError("first")} if len(runs) == 1 else {bad: ValueError("last")}
        end_batch(batch, url, failed=failed)
        if len(runs) == 1:
            raise RuntimeError("the query ends after its batch was given outcomes")

    stream = spark.readStream.format("jqueue").load(url)
    with pytest.raises(StreamingQueryException):
        run_stream(stream, tmp_path, work)
    run_stream(stream, tmp_path, work)
    assert runs[0] == runs[1], "the batch was repeated"
    assert [(bad, "ValueError: last")] == [(job.id, job.error) for job in jobs_of(url)]


@pytest.mark.full
def test_wrong_calls_of_end_batch_are_one_line_and_the_batch_is_not_acked(spark, tmp_path, url):
    [job_id] = enqueue(url, [Enqueue("work", b"1")])
    enqueue(f"{tmp_path}/other.json", [Enqueue("work", b"1")])
    refused = []

    def refuse(*arguments, **options):
        with pytest.raises((InvalidJobError, ClaimLostError)) as caught:
            end_batch(*arguments, **options)
        refused.append(str(caught.value))

    def work(batch, number):
        if batch.isEmpty():
            return
        refuse(batch.drop("holder"), url)
        refuse(batch, url, failed=batch.select("payload"))
        refuse(batch, url, failed={"no-such-id": ValueError("bad")})
        refuse(batch, url, failed={job_id: ValueError("bad")}, results={job_id: 3})
        end_batch(batch, f"{tmp_path}/other.json", failed=batch)

    with pytest.raises(StreamingQueryException, match="is the URL that of the stream"):
        run_stream(spark.readStream.format("jqueue").load(url), tmp_path, work)
    assert ["end_batch takes", "failed needs a ", "the batch has n", "a row of a batc"] == [
        each[:15] for each in refused
    ]
    assert [job_id] == [job.id for job in jobs_of(url)]


# Batches


def make_worker():
    factor, worker = 2, Worker(concurrency=5)

    @worker.handler("double")
    async def double(number: int, ctx: Context) -> int:
        if number == 13:
            os._exit(3)
        if number == 31:
            raise ValueError("on purpose")
        ctx.on_ack(Enqueue("seen", b"%d" % os.getpid()))
        return factor * number

    return worker


def test_jobs_are_done_on_executors(spark, url):
    fill_segments(url, range(300), "double")
    enqueue(url, [Enqueue("double", b"300", keep_result=3600)])
    report = run_batch(spark, url, make_worker(), partitions=2)
    assert (301, 299, 2, 1) == (report.claimed, report.succeeded, report.failed, report.killed)
    jobs = jobs_of(url)
    assert [600] == [job.result for job in jobs if job.status == "completed"]
    assert {b"13", b"31"} == {job.payload for job in jobs if job.entrypoint == "double" and job.status == "queued"}
    assert str(os.getpid()).encode() not in {job.payload for job in jobs if job.entrypoint == "seen"}


def test_a_task_that_is_killed_fails_the_batch_in_one_line_and_charges_no_job(spark, url):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(number: int) -> int:
        if number == 3:
            os.kill(os.getppid(), signal.SIGKILL)
        return number

    enqueue(url, [Enqueue("work", b"%d" % number) for number in range(4)])
    with pytest.raises(BatchFailedError) as caught:
        run_batch(spark, url, worker, partitions=4)
    assert "\n" not in str(caught.value)
    report = caught.value.report
    assert (4, 4) == (report.claimed, report.succeeded + report.handed_back)
    assert report.handed_back == len(left_in(url)) > 0
    assert {("queued", 0)} == {(job.status, job.failures) for job in left_in(url).values()}


# The history


def archive(spark, url, folder):
    events = spark.readStream.schema(HISTORY_SCHEMA).json(f"{url}.history")
    writer = events.writeStream.option("checkpointLocation", f"{folder}.checkpoint").trigger(availableNow=True)
    writer.start(str(folder), "parquet").awaitTermination()


def test_sparks_own_source_archives_each_event_of_the_history_once(spark, url, tmp_path):
    async def work(queue):
        await queue.configure(history=1e9, history_payloads=True)
        await queue.enqueue("mail", b"\0payload", job_id="日本")
        await queue.nack((await queue.dequeue("mail"))[0], error=ValueError("no"))
        await queue.apply(Cancel("日本", asked_by="eve"))

    async def end(queue):
        await queue.configure(history=None)  # moves the rest of the events into the folder
        return [event async for event in queue.history()][::-1]

    many = spark.range(0, 2000, 1, 1).selectExpr("cast(id as string) payload")
    for _ in range(2):
        call(url, work)
        save(many, url, entrypoint="bulk")
        events = call(url, end)
        archive(spark, url, tmp_path / "archive")
    archive(spark, url, tmp_path / "archive")
    rows = spark.read.parquet(str(tmp_path / "archive")).orderBy("number").collect()
    assert [*HistoryEvent.__struct_fields__] == rows[0].__fields__
    kept = [row.asDict(recursive=True) for row in rows]
    for row in kept:
        row |= {name: time and time.astimezone(UTC) for name, time in row.items() if name in ("at", "created_at")}
        row["rows"] = row["rows"] or []
    assert events == msgspec.convert(kept, list[HistoryEvent])
    assert [2000, 2000] == [event.jobs for event in events if event.rows]
