"""A process killed at any system call of a step on a folder of vsqs leaves every message once, and whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
SECONDS = 300
UNAVAILABLE = 2


@pytest.mark.parametrize("steps", [["claim", "ack"], pytest.param([], marks=pytest.mark.full)])
def test_a_step_killed_at_any_system_call_loses_and_doubles_nothing(steps):
    command = [sys.executable, "-m", "tests.kill.vsqs_steps", *steps]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    assert 0 == result.returncode, result.stdout + result.stderr
    assert re.search(r"^No message was lost or doubled by \d{2,} kills\.$", result.stdout, re.MULTILINE)
