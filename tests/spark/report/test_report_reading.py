"""`report(spark, urls)` reads each queue once, and names it without secrets."""

from datetime import timedelta

import pytest

from jqueue import DirectQueue, connect
from jqueue.domain.errors import InvalidURLError
from jqueue.spark.report import report
from jqueue.spark.report.figures import READ
from jqueue.spark.report.reading import report_of
from tests.spark.report.plain_report import NOW

pytestmark = pytest.mark.wide


async def fill(url):
    """Fill a queue with jobs in every state, and return its stats."""
    async with connect(url, DirectQueue) as queue:
        for number in range(3):
            await queue.enqueue("mail", b"secret payload", headers={"secret": "header"}, max_attempts=number + 1)
        for job in await queue.dequeue("mail", batch_size=3):
            await queue.nack(job, error=ValueError("secret text"))
        await queue.enqueue("<b>later</b>", b"", delay=3600)
        await queue.enqueue("add", b"", keep_result=3600)
        await queue.enqueue("add", b"")
        [first, _] = await queue.dequeue("add", batch_size=2, claim_timeout=timedelta(seconds=30))
        await queue.ack(first, result={"secret": "result"})
        return await queue.stats()


def counts(standing):
    return standing.ready, standing.scheduled, standing.in_progress, standing.dead, standing.completed


def of_stats(stats):
    return stats.depth, stats.scheduled, stats.in_progress, stats.dead, stats.completed


async def test_a_report_agrees_with_the_stats_of_the_queue(spark, tmp_path):
    place = tmp_path / "queue.json"
    stats = await fill(str(place))

    found = report(spark, str(place))

    assert (str(place),) == found.queues
    assert of_stats(stats) == counts(found.totals[None]) == counts(found.totals[str(place)])
    assert {name: of_stats(each) for name, each in stats.entrypoints.items()} == {
        each.entrypoint: counts(each) for each in found.standings
    }
    assert ("ValueError", 3, 1, 2) == found.failures[0][2:6]
    for frame in (found.frame, found.failure_frame, found.histogram_frame):
        assert "secret" not in str(frame.collect())


async def test_a_report_of_a_fleet_lists_each_queue_even_without_jobs(spark, tmp_path):
    for name in ("one", "two"):
        await fill(str(tmp_path / f"{name}.json"))
    async with connect(str(tmp_path / "none.json"), DirectQueue) as queue:
        await queue.cancel((await queue.enqueue("mail", b"")).id)

    found = report(spark, [str(tmp_path / "t*.json"), f"{tmp_path}/none.json,{tmp_path}/one.json"], now=NOW)

    names = tuple(str(tmp_path / f"{name}.json") for name in ("none", "one", "two"))
    assert names == found.queues
    assert [0, 6, 6] == [found.totals[name].jobs for name in names]
    assert 12 == found.totals[None].jobs
    assert NOW == found.now


async def test_each_queue_of_a_report_is_read_once(spark, gcs_server):
    gcs_server.create_bucket("report")
    urls = [f"gs://report/{name}.json?endpoint_url={gcs_server.url}&project=p" for name in ("one", "two")]
    for url in urls:
        await fill(url)
    before = gcs_server.requests["GET", "download"]

    found = report(spark, urls)

    assert 2 == gcs_server.requests["GET", "download"] - before
    assert 12 == sum(each.jobs for each in found.standings) == found.totals[None].jobs
    assert ("gs://report/one.json", "gs://report/two.json") == found.queues
    assert 12 == sum(each.jobs for each in found.attempts)


def test_all_figures_come_from_one_version_of_a_changing_queue(spark, tmp_path):
    """The source has one more job at each read, and all jobs then have another name."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    log = str(tmp_path / "reads")
    schema = f"{READ}, queue string"

    class Reader(DataSourceReader):
        def partitions(self):
            with open(log, "a+") as file:
                file.write("x")
                file.seek(0)
                version = len(file.read())
            return [InputPartition((version, part)) for part in range(2)]

        def read(self, partition):
            version, _ = partition.value
            for _ in range(version):
                failed = (f"E{version}: …",)
                yield (f"version {version}", "dead", version, 0, NOW, None, None, None, None, None, *failed, "q")

    class Restless(DataSource):
        @classmethod
        def name(cls):
            return "restless"

        def schema(self):
            return schema

        def reader(self, schema):
            return Reader()

    spark.dataSource.register(Restless)
    kept = set(spark.sparkContext._jsc.getPersistentRDDs())  # persisted by other tests
    for version in (1, 2):
        found = report_of(spark.read.format("restless").load(), ("q",), NOW)

        assert version == len((tmp_path / "reads").read_text())
        assert [(f"version {version}", 2 * version)] == [each[1:3] for each in found.standings]
        assert [(f"E{version}", 2 * version)] == [each[2:4] for each in found.failures]
        assert 2 * version == sum(each.jobs for each in found.attempts) == found.totals[None].dead
    assert kept == set(spark.sparkContext._jsc.getPersistentRDDs())


def test_a_wrong_queue_url_of_a_report_gives_a_one_line_error(spark, tmp_path):
    for urls in (str(tmp_path / "*.json"), "nowhere://queue", [""]):
        with pytest.raises(InvalidURLError) as raised:
            report(spark, urls)
        assert "\n" not in str(raised.value)


def test_now_must_have_a_time_zone(spark):
    with pytest.raises(ValueError, match="time zone"):
        report(spark, "queue.json", now=NOW.replace(tzinfo=None))
