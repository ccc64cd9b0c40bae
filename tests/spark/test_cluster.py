"""A real cluster with a queue in a real object store: executors do the work, and get their credentials."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.object_stores import BUCKET, store_of
from tests.spark.cluster_story import JOBS, LOGIN

pytestmark = pytest.mark.full

PROGRAM = "from tests.spark import cluster_story; cluster_story.main()"
NUMBERS = list(range(JOBS))


@pytest.fixture
def url(request):
    """The URL of a new queue, which cannot be opened without credentials."""
    store = store_of(request, "seaweedfs")
    options = f"endpoint_url={quote(store.server.endpoint_url, safe='')}&region_name={store.server.region}"
    return f"s3://{BUCKET}/{quote(store.new_key())}?{options}"


def told_by_program(cluster, store, url, folder):
    """Run the program and return its output."""
    login = dict(zip(LOGIN, (store.access_key, store.secret_key), strict=True))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.master, url, str(folder)],
        cwd=folder,
        env={**cluster.environment(), **login},
        stdout=subprocess.PIPE,
        timeout=500,
        check=True,
    )
    return json.loads(done.stdout)


def in_folders(rows):
    return {row["folder"] for row in rows}


def workers_of(folders):
    """The folders of the workers, two levels above those of their executors."""
    return {Path(folder).parents[1] for folder in folders}


def numbers(rows):
    return sorted(row["number"] for row in rows)


def test_every_job_passes_all_parts_on_executors_of_both_hosts(spark_cluster, seaweedfs, url, tmp_path):
    told = told_by_program(spark_cluster, seaweedfs, url, tmp_path)
    read, streamed = ([json.loads(row["payload"]) for row in told[part]] for part in ("read", "streamed"))
    assert (NUMBERS, {"resize"}) == (numbers(read), {row["entrypoint"] for row in told["read"]})
    assert (JOBS, JOBS) == (told["claimed"], told["done"])
    assert (NUMBERS, {"index"}) == (numbers(streamed), {row["entrypoint"] for row in told["streamed"]})
    assert 0 == told["left"]

    folders = {
        "enqueued": in_folders(read),
        "read": in_folders(told["read"]),
        "done": {row["done in"] for row in streamed},
        "streamed": in_folders(told["streamed"]),
    }
    workers = {worker.folder for worker in spark_cluster.workers}
    assert dict.fromkeys(folders, workers) == {part: workers_of(found) for part, found in folders.items()}
