"""A worker and clients work without the functions that Windows lacks, and a queue in a file is refused in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms import windows

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.wide


@pytest.mark.parametrize("check", windows.CHECKS)
def test_it_works_without_what_windows_lacks(check, tmp_path):
    command = [sys.executable, "-m", "tests.platforms.windows", "--imitate", check]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert f"passed: {check.replace('_', ' ')}" == done.stdout.splitlines()[-1]
