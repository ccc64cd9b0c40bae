"""The snapshot through real Spark."""

import asyncio
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from jqueue import DirectQueue, connect
from jqueue.operations import Enqueue
from jqueue.spark.rows import FLEET_SCHEMA, SNAPSHOT_SCHEMA, arrow_of

pytestmark = pytest.mark.wide

AT = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def fill(path, jobs=20):
    """Create a queue with jobs of all kinds, and return its jobs."""

    async def run():
        async with connect(path, DirectQueue) as queue:
            await queue.apply(
                *(Enqueue("resize", b"%d" % number, job_id=f"r{number}") for number in range(jobs)),
                Enqueue("mail", bytes(range(256)), job_id="m", keep_result=1e9),
                Enqueue(
                    "late", b"", -7, job_id="l", headers={"trace": "af31"}, unique_key="k", max_attempts=3, delay=60
                ),
            )
            [mail] = await queue.dequeue("mail")
            await queue.ack(mail, result={"n": [1, None]})
            [first, _] = await queue.dequeue("resize", batch_size=2)
            await queue.nack(first, dead=True, error="not an image")
            return (await queue.read_state()).jobs

    return asyncio.run(run())


def rows(table):
    return sorted(table.to_pylist(), key=lambda row: (row.get("queue", ""), row["id"]))


@pytest.fixture
def read(spark):
    return spark.read.format("jqueue")


def test_every_column_of_every_job_comes_through_spark(read, tmp_path):
    jobs = fill(tmp_path / "queue.json")
    frame = read.option("numPartitions", 3).load(str(tmp_path / "queue.json"))
    assert SNAPSHOT_SCHEMA == frame.schema
    assert 3 == frame.rdd.getNumPartitions()
    assert rows(arrow_of(jobs, SNAPSHOT_SCHEMA)) == rows(frame.toArrow())
    assert 1 == frame.where("status = 'dead' and dead_at <= now() and error like '%image'").count()
    assert [("l", "af31")] == frame.where("run_at > created_at").selectExpr("id", "headers['trace']").collect()
    assert [("[1,null]",)] == frame.where("id = 'm'").selectExpr("get_json_object(result, '$.n')").collect()


def test_a_frame_is_one_version_and_a_new_load_gives_the_latest(read, tmp_path):
    """Spark plans a Python source once for each load, and keeps its partitions."""
    fill(tmp_path / "queue.json")
    read.options(entrypoint="late", status="queued,dead")
    frame = read.load(str(tmp_path / "queue.json"))
    assert 1 == frame.count()

    async def cancel():
        async with connect(tmp_path / "queue.json", DirectQueue) as queue:
            await queue.cancel("l")

    asyncio.run(cancel())
    assert 1 == frame.count() == len(frame.collect())
    assert 0 == read.load(str(tmp_path / "queue.json")).count()


def test_a_list_and_wildcards_read_a_fleet(read, tmp_path):
    for name in ("a.json", "b.json", "other"):
        fill(tmp_path / name, 3)
    names = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    for path in (names, ",".join(names), f"{tmp_path}/*.json"):
        frame = read.load(path)
        assert FLEET_SCHEMA == frame.schema
        assert [(name, 5) for name in names] == sorted(map(tuple, frame.groupBy("queue").count().collect()))


def test_columns_can_be_selected_by_a_schema(spark, tmp_path):
    fill(tmp_path / "queue.json", 3)
    frame = spark.read.schema("claim_timeout double, id string").format("jqueue").load(str(tmp_path / "queue.json"))
    assert [("r1", 300.0)] == [(row.id, row.claim_timeout) for row in frame.collect() if row.claim_timeout]


@pytest.mark.parametrize(
    ("options", "path", "words"),
    [
        ({}, "none.json", "there is no queue at {}/none.json: check the URL; the first enqueue creates a queue"),
        ({}, "none/*.json", "no queue matches the wildcards of the URL"),
        (
            {"statsu": "dead"},
            "none.json",
            "there is no option 'statsu': did you mean status? The options are entrypoint, numPartitions, status",
        ),
        ({}, "s3:/bucket/queue.json", "the s3:// URL has no // after its scheme: it should look like s3://bucket"),
    ],
)
def test_a_mistake_of_the_user_is_named_in_the_last_line_of_the_error(read, tmp_path, options, path, words):
    with pytest.raises(PySparkException) as caught:
        read.options(**options).load(path if ":" in path else f"{tmp_path}/{path}").count()
    assert words.format(tmp_path) in str(caught.value).replace("SQLSTATE: 38000", "").strip().splitlines()[-1]
