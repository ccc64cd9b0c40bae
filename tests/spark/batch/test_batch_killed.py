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


def on(request, store):
    """Return the arguments for a store. Skip the test if there is none."""
    if store == "seaweedfs":
        request.getfixturevalue("seaweedfs")  # the program starts its own
        return ["--seaweedfs"]
    return []


@pytest.mark.timeout(SECONDS)
def test_a_batch_killed_at_some_of_its_steps_does_each_job_and_acks_it_once():
    found = killed("--mode", "all", "--mode", "task", "--every", "16", "--first", "8")
    assert found["all"]["kills"] >= 2
    assert found["all"]["claimed"] >= 2
    assert found["task"]["kills"] == found["task"]["acked"] > 0


@pytest.mark.timeout(SECONDS)
def test_a_killed_batch_with_results_acks_no_job_before_all_rows_are_committed():
    modes = ["--mode", "all", "--mode", "task", "--mode", "last-task"]
    found = killed("--results", *modes, "--every", "16", "--first", "8")
    assert found["all"]["kills"] >= 2
    assert found["task"]["kills"] == found["task"]["acked"] > 0
    assert found["last-task"]["kills"] == found["last-task"]["failed"] > 0


@pytest.mark.timeout(SECONDS)
def test_a_batch_whose_results_cannot_be_committed_hands_its_jobs_back():
    found = killed("--results", "--mode", "refused", "--every", "6")["refused"]
    assert found["kills"] == found["failed"] >= 2
    assert 0 == found["acked"] == found["claimed"]


@pytest.mark.full
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["file", "seaweedfs"])
@pytest.mark.parametrize("mode", ["all", "driver", "task", "last-task"])
def test_a_batch_killed_at_any_step_does_each_job_and_acks_it_once(request, store, mode):
    found = killed("--mode", mode, *on(request, store))[mode]
    assert found["kills"] > 20
    assert found["kills"] > max(found["acked"] if mode != "task" else 0, found["claimed"] if mode == "all" else 0)
    assert (mode in ("all", "driver")) == (found["claimed"] > 0)
    assert (mode == "last-task") == (found["failed"] > 0)
    assert found["repeated"] > 0


@pytest.mark.full
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["file", "seaweedfs"])
@pytest.mark.parametrize("mode", ["all", "driver", "task", "last-task", "refused"])
def test_a_batch_with_results_killed_at_any_step_has_a_committed_row_for_each_ack(request, store, mode):
    found = killed("--results", "--mode", mode, *on(request, store))[mode]
    assert found["kills"] > (5 if mode == "refused" else 20)
    assert (mode in ("all", "driver")) == (found["claimed"] > 0)
    assert (mode in ("last-task", "refused")) == (found["failed"] == found["kills"])
    assert (mode in ("all", "refused")) == (found["committed"] > 0)
    assert (mode in ("all", "task")) == (found["acked"] > 0)
    assert found["repeated"] > 0


@pytest.mark.full
@pytest.mark.timeout(SECONDS)
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("results", [False, True], ids=["no results", "results"])
@pytest.mark.parametrize("store", ["file", "seaweedfs"])
@pytest.mark.parametrize("mode", ["all", "driver", "task", "last-task", "executor"])
def test_a_batch_on_spark_killed_at_some_of_its_steps_does_each_job_and_acks_it_once(request, mode, store, results):
    if (problem := java_problem()) is not None:
        pytest.skip(problem)
    arguments = [*on(request, store), *(["--results"] if results else [])]
    found = killed("--spark", "--mode", mode, "--every", "20", "--first", "4", *arguments)[mode]
    assert found["kills"] >= 1
