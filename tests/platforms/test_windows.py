"""A worker and clients work without the functions that Windows lacks, and a queue in a file is refused in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.platforms import windows

ROOT = Path(__file__).parents[2]
SLOW = {"every_module_is_imported", "a_worker_and_clients_on_a_bucket_work"}


@pytest.mark.parametrize(
    "check", [pytest.param(name, marks=[pytest.mark.wide] if name in SLOW else []) for name in windows.CHECKS]
)
def test_it_works_without_what_windows_lacks(check, tmp_path):
    command = [sys.executable, "-m", "tests.platforms.windows", "--imitate", check]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    assert f"passed: {check.replace('_', ' ')}" == done.stdout.splitlines()[-1]
