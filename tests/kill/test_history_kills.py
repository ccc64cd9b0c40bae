"""The move of a history, killed at each of its system calls, in a process of its own, since the tool forks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300
UNAVAILABLE = 2


def _run(*arguments):
    command = [sys.executable, "-m", "tests.kill.history_kills", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    return result


@pytest.mark.parametrize(
    "every", [pytest.param("3", marks=pytest.mark.wide), pytest.param("1", marks=pytest.mark.full)]
)
def test_a_mover_killed_at_any_system_call_loses_no_event_and_doubles_none(every):
    result = _run("--every", every)
    assert 0 == result.returncode, result.stderr
    [(kills, moved)] = re.findall(r"(\d+) kills, and the object was there after (\d+)", result.stdout)
    assert 0 < int(moved) < int(kills)


@pytest.mark.wide
def test_a_mover_that_drops_events_before_their_object_is_there_is_found():
    result = _run("--hasty")
    assert 1 == result.returncode, result.stdout
    assert re.search(r"VIOLATION: the move, killed at the (entry|exit) of .* events", result.stderr)
