"""SQL tables whose rows are jobs. The schema carries the URL, because Spark passes a Python source nothing else."""

import pytest
from pyspark.errors import PySparkException

from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.spark.errors import cause
from jqueue.spark.rows import FLEET_SCHEMA, SNAPSHOT_SCHEMA, schema_of
from jqueue.spark.tables import is_new_table, options_of_table, url_in, with_url
from tests.spark.enqueue.bulk import jobs_of, write

pytestmark = pytest.mark.wide

NEW = {"provider": "jqueue", "owner": "root"}


def refused(error, **options):
    with pytest.raises(error) as caught:
        with_url(SNAPSHOT_SCHEMA, {**NEW, **options})
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "url", "schema"),
    [
        ({"url": "s3://b/q.json", "option.url": "s3://b/q.json"}, "s3://b/q.json", SNAPSHOT_SCHEMA),
        ({"path": "file:/a/q.json", "location": "file:/a/q.json"}, "file:///a/q.json", SNAPSHOT_SCHEMA),
        ({"url": "s3://b/*.json"}, "s3://b/*.json", FLEET_SCHEMA),
    ],
)
def test_the_schema_of_a_new_table_carries_its_url(given, url, schema):
    assert is_new_table({**NEW, **given})
    marked = with_url(schema_of(given), {**NEW, **given})
    assert schema.names == marked.names
    assert {"url": url} == options_of_table({}, type(marked).fromJson(marked.jsonValue()))


def test_a_url_given_at_the_use_of_a_table_takes_precedence():
    marked = with_url(SNAPSHOT_SCHEMA, {**NEW, "url": "s3://b/q.json"})
    for given in ({"path": "s3://b/o.json"}, {"url": "s3://b/o.json"}, {"paths": '["s3://b/o.json"]'}):
        assert given == options_of_table(given, marked)


def test_a_schema_outside_a_table_has_no_url():
    assert not is_new_table({"path": "queue.json"})
    assert url_in(SNAPSHOT_SCHEMA) is None
    assert {"status": "dead"} == options_of_table({"status": "dead"}, SNAPSHOT_SCHEMA)


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@b/q.json",
        "s3://b/a.json,s3://key:hunter2@b/q.json",
        "az://account@b/q.json?account_key=hunter2",
        "az://account@b/q.json?sas_token=hunter2",
    ],
)
def test_a_url_with_a_secret_is_refused_for_a_table(url):
    assert "must hold no secret" in refused(InvalidURLError, url=url)


def test_options_that_a_table_cannot_keep_are_refused():
    said = refused(InvalidJobError, url="q.json", **{"option.url": "q.json", "option.status": "dead"})
    assert said.startswith("a table of a queue takes the option url or path alone, and not 'status'")


def test_a_table_without_a_url_is_refused():
    assert "the URL of the queue is missing" in refused(InvalidURLError)


class TestOnSpark:
    """Tables used through SQL."""

    @pytest.fixture
    def sql(self, spark):
        yield spark.sql
        for name in ("jobs", "with_columns"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")

    @pytest.mark.parametrize("given", ["OPTIONS (path '{0}')", "OPTIONS (url '{0}')", "LOCATION '{0}'"])
    def test_a_table_is_read_and_written(self, sql, tmp_path, given):
        url = str(tmp_path / "a queue.json")
        write(url, b"a")
        sql(f"CREATE TABLE jobs USING jqueue {given.format(url)}")
        assert [("resize", b"a")] == [tuple(row) for row in sql("SELECT entrypoint, payload FROM jobs").collect()]
        sql("INSERT INTO jobs (entrypoint, payload) VALUES ('mail', CAST('b' AS BINARY))")
        sql("INSERT INTO jobs BY NAME SELECT 'mail' entrypoint, CAST('c' AS BINARY) payload, 7L priority")
        assert [(b"a", 0), (b"b", 0), (b"c", 7)] == [(job.payload, job.priority) for job in jobs_of(url)]
        assert 1 == sql("SELECT * FROM jobs WITH (entrypoint 'resize')").count()
        sql("DROP TABLE jobs")
        assert 3 == len(jobs_of(url)), "dropping the table must not remove the queue"

    def test_columns_that_only_the_queue_sets_cannot_be_inserted(self, sql, tmp_path):
        url = str(tmp_path / "queue.json")
        write(url, b"a")
        sql(f"CREATE TABLE jobs USING jqueue OPTIONS (url '{url}')")
        with pytest.raises(PySparkException) as caught:
            sql("INSERT INTO jobs SELECT * FROM jobs")
        assert "row 0 of partition 0: id is not null, and only the queue sets it: leave it out of the INSERT" == str(
            cause(caught.value)
        )
        assert 1 == len(jobs_of(url))

    def test_a_table_with_its_own_columns_gives_an_error_with_the_right_form(self, sql, tmp_path):
        sql(f"CREATE TABLE with_columns (payload STRING) USING jqueue OPTIONS (url '{tmp_path}/queue.json')")
        for used in ("SELECT * FROM with_columns", "INSERT INTO with_columns VALUES ('a')"):
            with pytest.raises(PySparkException) as caught:
                sql(used).collect()
            assert str(cause(caught.value)).endswith("A table has it only if it was created without columns")

    def test_a_temporary_view_is_read_and_written(self, sql, tmp_path):
        url = str(tmp_path / "queue.json")
        write(url, b"a")
        sql(f"CREATE OR REPLACE TEMPORARY VIEW waiting USING jqueue OPTIONS (url '{url}', status 'queued')")
        assert 1 == sql("SELECT * FROM waiting").count()

    def test_the_option_url_works_for_frames_and_streams(self, spark, tmp_path):
        url = str(tmp_path / "queue.json")
        rows = spark.createDataFrame([("a",)], "payload string")
        rows.write.format("jqueue").mode("append").option("url", url).option("entrypoint", "resize").save()
        assert 1 == spark.read.format("jqueue").option("url", url).load().count()
        landing = tmp_path / "landing"
        landing.mkdir()
        (landing / "1.txt").write_text("b\n")
        lines = spark.readStream.format("text").load(str(landing)).selectExpr("value payload")
        query = lines.writeStream.format("jqueue").option("url", url).option("entrypoint", "mail")
        query = query.option("checkpointLocation", str(tmp_path / "in")).trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert [b"a", b"b"] == [job.payload for job in jobs_of(url)]
        seen = []
        jobs = spark.readStream.format("jqueue").option("url", url).load()
        query = jobs.writeStream.foreachBatch(lambda batch, number: seen.append(batch.count()))
        query = query.option("checkpointLocation", str(tmp_path / "out")).trigger(availableNow=True).start()
        query.awaitTermination(120)
        assert 2 == sum(seen)

    def test_two_different_urls_give_one_clear_error(self, spark, tmp_path):
        with pytest.raises(PySparkException) as caught:
            spark.read.format("jqueue").option("url", str(tmp_path / "a.json")).load(str(tmp_path / "b.json")).count()
        found = cause(caught.value)
        assert isinstance(found, InvalidURLError)
        assert "the option url names another queue than the path does: give one of the two" == str(found)
