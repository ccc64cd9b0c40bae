"""Small runs of the proof by killing (`python -m tests.kill`), each in a process of its own, since the tool forks."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNAVAILABLE = 2


def run(module, *arguments):
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    assert 0 == result.returncode, result.stderr
    return result.stdout


def test_a_commit_killed_at_a_system_call_is_done_or_not_done_and_leaves_nothing():
    output = run("tests.kill", "--case", "enqueue", "--case", "large", "--every", "6")
    for line in output.splitlines()[1:]:
        name, kills, done, *_ = line.split()
        assert 0 < int(done) < int(kills), name


@pytest.mark.wide
def test_every_kind_of_commit_can_be_killed_at_a_system_call():
    run("tests.kill", "--every", "25")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_kind_of_commit_can_be_killed_at_every_system_call():
    run("tests.kill", "--both")


@pytest.mark.parametrize("every", ["29", pytest.param("1", marks=pytest.mark.full)])
@pytest.mark.parametrize("pair", [("file", "vsqs"), ("dirq-simple", "file")], ids="-to-".join)
@pytest.mark.wide
def test_a_move_killed_at_its_file_calls_loses_no_job_and_moves_none_twice(pair, every):
    assert " kills." in run("tests.kill.migrations", *pair, "--every", every, "--seed", "7")


@pytest.mark.wide
def test_calls_on_queues_of_older_formats_can_be_killed_at_a_system_call():
    run("tests.kill.format_kills", "--verb", "enqueue", "--verb", "dequeue", "--verb", "ack", "--every", "30")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_every_call_on_queues_of_older_formats_can_be_killed_at_every_system_call():
    run("tests.kill.format_kills", "--both")
