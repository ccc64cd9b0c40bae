"""Streaming queries whose processes are killed: without Spark at random moments, and on real Spark."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Enqueue
from jqueue.spark.session import java_problem
from jqueue.spark.stream.query_claims import BatchSizes
from tests.spark.stream.streaming_child import Journal

ROOT = Path(__file__).parents[3]
RANGE = BatchSizes().least
"""Number of jobs from which on a batch has ranges."""


def _call_queue(url, work, kind=DirectQueue, **options):
    async def do():
        async with kind(LocalFileSystemStorage(url), **options) as queue:
            return await work(queue)

    return asyncio.run(do())


def _filled(url, count, *, is_deep=False):
    """Enqueue jobs, into segments if the queue is deep, and return their ids."""

    async def work(queue):
        return [job.id for job in await queue.enqueue_many([Enqueue("work", b"payload")] * count)]

    limits = Limits(batch_size=100, hot_bytes=1) if is_deep else Limits(batch_size=count)
    ids = _call_queue(url, work, BrokerQueue if is_deep else DirectQueue, limits=limits)
    in_segments = _call_queue(url, lambda queue: queue.stats()).segment_jobs
    assert (in_segments > count // 2) == is_deep
    return ids


def _left(url):
    async def work(queue):
        return [job async for job in queue.iterate_jobs()]

    return _call_queue(url, work)


def _child(module, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.full
@pytest.mark.parametrize(("count", "size"), [(2000, 20), pytest.param(30_000, 600, id="ranges")])
def test_a_driver_killed_at_random_moments_loses_no_job(tmp_path, count, size):
    chance = random.Random(7)
    url, path = tmp_path / "queue.json", tmp_path / "journal"
    ids = _filled(url, count, is_deep=size > RANGE)
    killed = 0
    while True:
        child = _child("tests.spark.stream.streaming_child", url, path, size)
        assert child.stdout is not None
        assert "begins\n" == child.stdout.readline()
        if killed < 12:
            time.sleep(chance.uniform(0, 0.7))
            killed += child.poll() is None
            child.kill()
        status = child.wait(120)
        child.stdout.close()
        done = {job_id for batch in _done(path) for job_id in batch}
        assert set() == set(ids) - {job.id for job in _left(url)} - done
        if status == 0:
            break
    assert [] == _left(url)
    assert sorted(ids) == sorted(Journal(path).sink().ids)
    assert killed > 5, "the processes ended before they could be killed"


def _done(path):
    """The jobs of each finished batch."""
    journal = Journal(path)
    batches = journal.sink().batches
    return [batches[batch] for batch in journal.checkpoint().commits]


def _kill_all(child, *, hard):
    """Kill Spark's driver: with `hard`, together with all its processes, and otherwise alone."""
    if hard:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    child.wait(60)


@pytest.mark.full
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(("count", "size"), [(800, 100), pytest.param(4000, 500, id="ranges")])
def test_no_job_is_lost_when_spark_is_killed_between_claim_sink_and_commit(tmp_path, count, size):
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    chance = random.Random(11)
    url, out = tmp_path / "queue.json", tmp_path / "out"
    out.mkdir()
    ids = _filled(url, count, is_deep=size > RANGE)
    lives = [("start", 1), ("begun", 2), ("written", 2), ("begun", 1), (None, 0)]
    for life, (moment, wait) in enumerate(lives):
        child = _child("tests.spark.stream.spark_child", url, tmp_path / "checkpoint", out, size)
        assert child.stdout is not None
        for line in child.stdout:
            wait -= line.strip() == moment
            if wait == 0:
                time.sleep(chance.uniform(0, 0.3))
                break
        if moment is not None:
            _kill_all(child, hard=life % 2 == 0)
        assert (moment is None) == (0 == child.wait(120))
        child.stdout.close()
    assert [] == _left(url)
    rows = [job_id for path in sorted(out.glob("batch-*.json")) for job_id in json.loads(path.read_text())]
    assert sorted(ids) == sorted(rows), "a job is in no batch or in several batches"
