"""Each step on a folder of dirq, killed at its system calls, in a process of its own, since the tool forks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
SECONDS = 300
UNAVAILABLE = 2


LONG = [pytest.param(["--both", *more], marks=pytest.mark.full) for more in ([], ["--beside"])]


@pytest.mark.parametrize("arguments", [[], *LONG], ids=["entries", "both", "beside"])
@pytest.mark.parametrize("kind", ["simple", "queue"])
def test_a_step_killed_at_any_system_call_leaves_the_job_once_and_whole(kind, arguments):
    command = [sys.executable, "-m", "tests.kill.dirq_kills", "--kind", kind, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    assert 0 == result.returncode, result.stderr
    assert 9 == len(result.stdout.splitlines())
