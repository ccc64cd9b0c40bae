"""Small runs of the proof by killing (`python -m tests.kill`), each in a process of its own, since the tool forks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNAVAILABLE = 2


def run(*arguments):
    """Return the kills, and the kills after which the work was done, by the name of the case."""
    command = [sys.executable, "-m", "tests.kill", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    assert 0 == result.returncode, result.stderr
    rows = [line[26:].split() for line in result.stdout.splitlines()[1:]]
    return [(int(kills), int(done)) for kills, done, *_ in rows]


def test_a_commit_killed_at_a_system_call_is_done_or_not_done_and_leaves_nothing():
    for kills, done in run("--case", "enqueue", "--case", "large", "--every", "6"):
        assert 0 < done < kills


@pytest.mark.wide
def test_every_kind_of_commit_can_be_killed_at_a_system_call():
    run("--every", "60")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_kind_of_commit_can_be_killed_at_every_system_call():
    run("--both")


@pytest.mark.parametrize("every", ["200", pytest.param("5", marks=[pytest.mark.full, pytest.mark.timeout(3600)])])
@pytest.mark.wide
def test_a_move_killed_at_its_system_calls_loses_no_job_and_moves_none_twice(every):
    assert all(kills > 3 for kills, _ in run("moves", "--every", every))


@pytest.mark.wide
def test_calls_on_queues_of_older_formats_can_be_killed_at_a_system_call():
    run("formats", *(f"--case={verb} on *" for verb in ("enqueue", "dequeue", "ack")), "--every", "60")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_call_on_queues_of_older_formats_can_be_killed_at_every_system_call():
    run("formats", "--both")
