"""The creation of an object, killed at each of its system calls, in a process of its own, since the tool forks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300
UNAVAILABLE = 2


def _run(*arguments):
    command = [sys.executable, "-m", "tests.kill.object_kills", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    return result


@pytest.mark.parametrize(
    "arguments",
    [
        ["--creation", "first"],
        pytest.param(["--creation", "pieces"], marks=pytest.mark.wide),
        pytest.param(["--both"], marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_a_creation_killed_at_any_system_call_leaves_the_whole_object_or_none(arguments):
    result = _run(*arguments)
    assert 0 == result.returncode, result.stderr
    for line in result.stdout.splitlines():
        [(kills, landed)] = re.findall(r"(\d+) kills, and the object was there after (\d+)", line)
        assert 0 < int(landed) < int(kills)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("adapter", "found"),
    [("in-place", "which are not those that were written"), ("hasty", "was acknowledged, and the object is not there")],
)
def test_damage_by_a_kill_during_a_creation_is_found(adapter, found):
    result = _run("--creation", "first", "--adapter", adapter)
    assert 1 == result.returncode, result.stdout
    assert re.search(rf"VIOLATION: first, killed at the (entry|exit) of .*{found}", result.stderr)
