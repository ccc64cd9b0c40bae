"""Bulk enqueue and the streaming sink add each job once although tasks fail, executors die and drivers are killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue.spark.session import java_problem
from tests.servers.fixtures import skip_or_fail
from tests.spark.enqueue.bulk import staged_at, texts_of, url_on, write

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("enqueue_sabotaged.py")
ALL = sorted(b"%d" % number for number in range(4000))  # more than a commit copies
NAMED = {"txnAppId": "nightly", "txnVersion": "1"}

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("spark")]


@pytest.fixture(autouse=True)
def java():
    problem = java_problem()
    if problem is not None:
        skip_or_fail(problem)


@pytest.fixture(params=["file", "seaweedfs"])
def url(request, tmp_path):
    return url_on(request, tmp_path, request.param)


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "queue.json")


def run(tmp_path, url, environment=None, **plan):
    """Run the program with a plan and return its exit status."""
    plan = {"url": url, "marker": str(tmp_path / "struck"), **plan}
    environment = environment or {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(plan)], cwd=ROOT, env=environment, timeout=500, check=False
    )
    return done.returncode


def run_on(cluster, tmp_path, url, settings=None, **plan):
    settings = {"spark_executorEnv_PYTHONPATH": str(ROOT), **(settings or {})}
    return run(tmp_path, url, cluster.environment(), master=cluster.master, settings=settings, **plan)


def struck(tmp_path):
    return (tmp_path / "struck").exists()


def test_a_task_that_fails_after_staging_is_repeated_and_adds_its_jobs_once(tmp_path, url):
    assert 0 == run(tmp_path, url, master="local[2,4]", point="staged", deed="raise")
    assert struck(tmp_path)
    assert (ALL, []) == (sorted(texts_of(url)), staged_at(url))


def test_a_task_whose_executor_is_killed_after_staging_adds_its_jobs_once(tmp_path, file, spark_cluster):
    assert 0 == run_on(spark_cluster, tmp_path, file, point="staged", deed="kill executor")
    assert struck(tmp_path)
    assert (ALL, []) == (sorted(texts_of(file)), staged_at(file))


def test_a_stalled_task_is_overtaken_by_a_speculative_attempt_and_one_of_them_counts(tmp_path, file, spark_cluster):
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    settings = {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_quantile": "0.5",
        "spark_speculation_minTaskRuntime": "100ms",
    }
    plan = {"settings": settings, "attempts": str(attempts), "point": "staged", "deed": "stall"}
    assert 0 == run_on(spark_cluster, tmp_path, file, **plan)
    assert struck(tmp_path)
    assert {"0-0", "0-1"} <= {path.name for path in attempts.iterdir()}
    assert (ALL, []) == (sorted(texts_of(file)), staged_at(file))


@pytest.mark.parametrize("point", ["staged", "before commit", "after commit"])
def test_a_rerun_after_a_killed_driver_adds_each_job_once(tmp_path, file, point):
    write(file, b"before")
    assert -signal.SIGKILL == run(tmp_path, file, options=NAMED, point=point, deed="kill driver")
    assert struck(tmp_path)
    there = sorted(texts_of(file))
    assert there == (sorted([*ALL, b"before"]) if point == "after commit" else [b"before"])
    assert 0 == run(tmp_path, file, options=NAMED)
    assert sorted([*ALL, b"before"]) == sorted(texts_of(file))
    write(file, b"after", stagingRetention="0")
    assert [] == staged_at(file)


@pytest.mark.parametrize("point", ["staged", "before commit", "after commit"])
def test_a_stream_with_a_killed_driver_continues_and_adds_each_line_once(tmp_path, url, point):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"{number}a\n{number}b\n")
    plan = {"folder": str(folder), "options": {"checkpointLocation": str(tmp_path / "checkpoint")}}
    assert -signal.SIGKILL == run(tmp_path, url, point=point, deed="kill driver", **plan)
    assert struck(tmp_path)
    assert (2 if point == "after commit" else 0) == len(texts_of(url))
    assert 0 == run(tmp_path, url, **plan)
    assert [b"0a", b"0b", b"1a", b"1b", b"2a", b"2b"] == sorted(texts_of(url))
    assert [] == staged_at(url)
