"""Drivers, executors and tasks of real Spark that are killed: each row, job and event is there once in the end."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from jqueue.operations import Enqueue
from jqueue.spark.session import java_problem
from tests.servers.fixtures import skip_or_fail
from tests.spark.spark_calls import call, enqueue, fill_segments, jobs_of, texts_of
from tests.spark.test_batch import works

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("spark programs"), pytest.mark.timeout(900)]

KILLS = [1, pytest.param(3, marks=pytest.mark.full)]
"""Numbers of kills. The first is of all processes at once, the second of the driver's Python alone."""


@pytest.fixture(autouse=True)
def java():
    if (problem := java_problem()) is not None:
        skip_or_fail(problem)


def life(plan, moment=None, count=1, *, hard=True, wait=0.0):
    """Run the program, and kill it some time after a moment. Return its last line."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.spark_life", json.dumps(plan)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    last = ""
    for line in child.stdout:
        last = line.strip()
        count -= last == moment
        if moment is not None and count == 0:
            time.sleep(wait)
            os.killpg(child.pid, signal.SIGKILL) if hard else child.kill()
            break
    child.stdout.close()
    code = child.wait(300)
    assert moment is not None or code == 0
    return last


@pytest.mark.parametrize("kills", KILLS)
def test_a_named_write_killed_at_random_moments_and_run_again_adds_each_row_once(url, kills):
    plan, chance = {"part": "enqueue", "url": url, "rows": 100_000}, random.Random(7)
    for number in range(kills):
        life(plan, "write", hard=number % 2 == 0, wait=chance.uniform(0, 3))
        assert len(texts_of(url)) in (0, 100_000)
    life(plan)
    assert Counter({b"%d" % number: 1 for number in range(100_000)}) == Counter(texts_of(url))


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize(
    ("deep", "size"),
    [pytest.param(False, 100, marks=pytest.mark.full), (True, 500)],
    ids=["single jobs", "leases"],
)
def test_a_query_killed_between_claim_sink_and_commit_delivers_each_job_in_one_batch(url, tmp_path, deep, size, kills):
    chance = random.Random(11)
    ids = fill_segments(url, range(4000)) if deep else enqueue(url, works(*range(800)))
    plan = {"part": "stream", "url": url, "size": size, "folder": str(tmp_path)}
    for number, (moment, count) in enumerate([("written", 2), ("begun", 2), ("begun", 1)][:kills]):
        life(plan, moment, count, hard=number % 2 == 0, wait=chance.uniform(0, 0.3))
    life(plan)
    assert [] == jobs_of(url)
    rows = [job_id for path in sorted(tmp_path.glob("batch-*.json")) for job_id in json.loads(path.read_text())]
    assert sorted(ids) == sorted(rows)


@pytest.mark.parametrize("kills", KILLS)
def test_an_archive_of_the_history_killed_at_random_moments_has_each_event_once(url, tmp_path, kills):
    async def work(queue):
        for _ in range(3):
            await queue.configure(history=1e9)
            await queue.enqueue_many([Enqueue("a", b"")] * 100)
            await queue.configure(history=None)  # moves the rest of the events into the folder
            await asyncio.sleep(0.2)

    plan, chance = {"part": "archive", "url": url, "folder": str(tmp_path / "archive")}, random.Random(3)
    for number in range(kills):
        call(url, work)
        life(plan, "archive", hard=number % 2 == 0, wait=chance.uniform(0, 4))
    call(url, work)
    assert [*range(1, (kills + 1) * 303 + 1)] == json.loads(life(plan))


def test_ranges_of_a_lost_executor_and_of_a_killed_task_are_done_by_others(url, tmp_path):
    fill_segments(url, range(900))
    plan = {"part": "batch", "url": url, "folder": str(tmp_path), "master": "local-cluster[2,1,1024]"}
    assert [900, 900] == json.loads(life(plan))
    assert [] == jobs_of(url)
    assert (tmp_path / "executor").exists()
    assert (tmp_path / "task").exists()
    times = Counter(map(int, (tmp_path / "diary").read_text().split()))
    assert set(range(900)) == set(times)
    assert max(times.values()) >= 2
