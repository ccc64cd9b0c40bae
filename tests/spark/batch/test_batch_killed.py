"""Batches on ranges that are killed between any two of their steps, in processes of their own."""

import re
import subprocess
import sys

import pytest

from jqueue.spark.session import java_problem
from tests.spark.batch.child_scenes import needs_fork
from tests.spark.batch.killed_life import ROOT

pytestmark = [pytest.mark.wide, needs_fork]

SECONDS = 1700


def killed(*arguments):
    """Kill batches, and return the tally of each mode."""
    command = [sys.executable, "-m", "tests.spark.batch.batch_kills", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert 0 == result.returncode, result.stderr
    return {
        line.partition(":")[0]: {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", line)}
        for line in result.stdout.splitlines()
    }


@pytest.mark.timeout(SECONDS)
def test_a_batch_killed_at_some_of_its_steps_does_each_job_and_acks_it_once():
    found = killed("--mode", "all", "--mode", "task", "--every", "16", "--first", "8")
    assert found["all"]["kills"] >= 2
    assert found["all"]["claimed"] >= 2
    assert found["task"]["kills"] == found["task"]["acked"] > 0


@pytest.mark.full
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["file", "seaweedfs"])
@pytest.mark.parametrize("mode", ["all", "driver", "task", "last-task"])
def test_a_batch_killed_at_any_step_does_each_job_and_acks_it_once(request, store, mode):
    if store == "seaweedfs":
        request.getfixturevalue("seaweedfs")  # skips if there is none; the program starts its own
    found = killed("--mode", mode, *(["--seaweedfs"] if store == "seaweedfs" else []))[mode]
    assert found["kills"] > 20
    assert found["kills"] > max(found["acked"] if mode != "task" else 0, found["claimed"] if mode == "all" else 0)
    assert (mode in ("all", "driver")) == (found["claimed"] > 0)
    assert (mode == "last-task") == (found["failed"] > 0)
    assert found["repeated"] > 0


@pytest.mark.full
@pytest.mark.timeout(SECONDS)
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("mode", ["all", "driver", "task", "last-task", "executor"])
def test_a_batch_on_spark_killed_at_some_of_its_steps_does_each_job_and_acks_it_once(mode):
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    found = killed("--spark", "--mode", mode, "--every", "10", "--first", "4")[mode]
    assert found["kills"] >= 2
