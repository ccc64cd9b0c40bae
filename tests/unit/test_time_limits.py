"""A test that hangs is ended, the stacks of its threads and tasks are printed, and the run goes on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import time_limits

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]

HANGING = """
import asyncio, threading, pytest

@pytest.mark.timeout(1)
async def test_hangs():
    async def waits_in_a_task():
        await asyncio.Event().wait()

    def waits_in_a_thread():
        threading.Event().wait(30)

    threading.Thread(target=waits_in_a_thread, daemon=True).start()
    await asyncio.create_task(waits_in_a_task())

def test_that_comes_next():
    pass
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_stacks_of_threads_and_tasks_are_printed_and_the_run_goes_on(tmp_path, workers):
    pytest.importorskip("pytest_timeout")
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    options = ["-p", "tests.time_limits", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n", workers]
    command = [sys.executable, "-m", "pytest", *map(str, options), str(file)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240).stdout
    assert "1 failed, 1 passed" in output
    assert "from pytest-timeout" in output
    assert re.search(r"Stack of .*\n(.*\n)+.* in waits_in_a_thread\n", output)
    assert re.search(r"Task that was waiting .*\n(.*\n)+.* in waits_in_a_task\n", output)
    assert re.search(r"Task that was waiting .*\n(.*\n)+.* in test_hangs\n", output)


def test_every_test_has_a_limit(request):
    limits = {marker.args for item in request.session.items for marker in item.iter_markers("timeout")}
    assert all(item.get_closest_marker("timeout") for item in request.session.items)
    assert limits >= {(time_limits.SECONDS,)}


@pytest.mark.timeout(77)
def test_a_test_keeps_its_own_limit(request):
    assert 77 == request.node.get_closest_marker("timeout").args[0]
