"""An enqueue of a large payload that is killed at any of its file calls leaves a readable queue, and only litter."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_enqueue_killed_between_its_object_and_its_commit_leaves_only_litter():
    command = [sys.executable, "-m", "tests.kill.payload_kills"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert 0 == result.returncode, result.stdout + result.stderr
    assert "between the object and the commit" in result.stdout
