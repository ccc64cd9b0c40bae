"""A snapshot of a busy queue has the jobs of one version, each once, with any number of tasks."""

from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition

from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.snapshot.reader import SnapshotReader
from tests.spark.snapshot.busy_queue import BusyQueue

pytestmark = pytest.mark.wide

PARTITIONS = 8


class RereadingReader(SnapshotReader):
    """A wrong reader, for comparison: each task reads the blob again and takes its part of it."""

    def partitions(self):
        return [InputPartition(number) for number in range(len(super().partitions()))]

    def read(self, partition):
        part = super().partitions()[partition.value]
        return super().read(part)


def ids_with_commits_between(kind, queue):
    """The job ids that the tasks of a plan return if the queue changes before each of them."""
    reader = kind({"path": queue.url, "numPartitions": str(PARTITIONS)}, SNAPSHOT_SCHEMA)
    ids = []
    for number, part in enumerate(reader.partitions()):
        queue.commit(number % 3)
        ids += [name for batch in reader.read(part) for name in batch.column("id").to_pylist()]
    return ids


@pytest.fixture
def queue(tmp_path):
    queue = BusyQueue(f"{tmp_path}/queue.json", 300)
    queue.fill()
    return queue


def test_tasks_read_one_version_even_if_commits_land_between_them(queue):
    assert queue.is_a_version(ids_with_commits_between(SnapshotReader, queue))


def test_tasks_that_read_the_blob_separately_fail_the_audit(queue):
    assert not queue.is_a_version(ids_with_commits_between(RereadingReader, queue))


def snapshots_are_versions(spark, queue, actions):
    queue.fill()
    with queue.writing():
        for _ in range(actions):
            frame = spark.read.format("jqueue").option("numPartitions", PARTITIONS).load(queue.url)
            ids = frame.select("id").toArrow().column("id").to_pylist()
            assert len(ids) == queue.jobs
            assert queue.is_a_version(ids)
    return len(queue.versions)


def test_a_snapshot_in_eight_partitions_is_one_version_while_writers_are_busy(spark, tmp_path):
    assert snapshots_are_versions(spark, BusyQueue(f"{tmp_path}/queue.json", 10_000), 2) > 3


@pytest.mark.full
def test_a_snapshot_of_an_object_store_is_one_version_while_writers_are_busy(spark, tmp_path, seaweedfs):
    options = f"?endpoint_url={seaweedfs.endpoint_url}&region_name={seaweedfs.region}"
    place = f"s3://{seaweedfs.access_key}:{quote(seaweedfs.secret_key)}@{seaweedfs.bucket}"
    queue = BusyQueue(f"{place}/busy/{quote(tmp_path.name)}.json{options}", 10_000)
    assert snapshots_are_versions(spark, queue, 5) > 5
