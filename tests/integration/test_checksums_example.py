"""The example of `make run`, run in a process of its own as users do."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage

EXAMPLE = Path(__file__).parents[2] / "examples" / "checksums.py"
FILES = 60
LONGEST_SECONDS = 120
CHANGING = Path("/proc/sys/kernel/random")
"""A folder on Linux in which the content of `uuid` differs at each read."""


@pytest.fixture
def folder(tmp_path):
    """Return nested folders with files, one of them empty, and with entries that must not be counted."""
    for number in range(FILES):
        path = tmp_path / "files" / f"{number % 3}" / f"file [{number}] é"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * number)
    (tmp_path / "files" / "link").symlink_to(path)
    (tmp_path / "files" / "__pycache__").mkdir()
    (tmp_path / "files" / "__pycache__" / "cache").write_bytes(b"left out")
    return tmp_path / "files"


def _command(*arguments):
    return [sys.executable, str(EXAMPLE), *map(str, arguments)]


def _run(*arguments):
    return subprocess.run(_command(*arguments), capture_output=True, text=True, timeout=LONGEST_SECONDS)


def _figures(output):
    """Return the rows of the table, with their figures as numbers."""
    rows = re.findall(r"^\W ([\w/ ]+?) +\W +([\d,.]+)(?: s)? \W$", output, re.MULTILINE)
    return {name: float(figure.replace(",", "")) for name, figure in rows}


def test_the_example_recovers_the_jobs_of_a_killed_worker_with_correct_checksums(folder, tmp_path):
    queue_path = tmp_path / "queue.json"
    result = _run(folder, "--workers", 2, "--concurrency", 4, "--queue", queue_path)
    print(result.stdout)
    assert (0, "") == (result.returncode, result.stderr)

    kill = re.search(r"^Half-way: killed worker (\d+) with SIGKILL, with (\d+) jobs in progress$", result.stdout, re.M)
    assert kill is not None
    killed, held = map(int, kill.groups())
    assert 1 <= held <= 4
    assert f"Other workers have done its {held} jobs" in result.stdout
    assert result.stdout.endswith(f"A plain loop gives the same {FILES} checksums: no job was lost.\n")

    figures = _figures(result.stdout)
    assert FILES == figures["files"]
    assert sum(path.stat().st_size for path in folder.glob("[0-9]/*")) == figures["bytes"]
    assert killed == figures["killed worker"]
    assert held == figures["jobs it held"]
    assert held <= figures["recovered jobs"] <= FILES
    assert FILES + figures["recovered jobs"] <= figures["attempts"]

    state = asyncio.run(DirectQueue(LocalFileSystemStorage(queue_path)).read_state())
    assert () == state.jobs
    assert state.version == figures["commits"]


@pytest.mark.wide
@pytest.mark.skipif(not CHANGING.is_dir(), reason="there is no such folder here")
def test_the_example_fails_when_a_checksum_differs_from_that_of_a_plain_loop():
    result = _run(CHANGING, "--workers", 2)
    assert 1 == result.returncode
    assert "files are missing or differ" in result.stdout


@pytest.mark.wide
def test_an_interrupted_example_leaves_no_worker_and_no_folder_behind(folder, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        _command(folder), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        before = next(line for line in process.stdout if line.startswith("Half-way"))
        left = os.listdir(temporary)
        process.send_signal(signal.SIGINT)
        # It ends only when the last worker, which has the same stderr, is gone.
        after, _ = process.communicate(timeout=LONGEST_SECONDS)
    assert before
    assert 1 == len(left)
    assert (130, []) == (process.returncode, os.listdir(temporary))
    assert after.endswith("Interrupted; the workers have stopped.\n")


@pytest.mark.wide
def test_the_example_leaves_an_existing_file_alone(folder, tmp_path):
    queue_path = tmp_path / "queue.json"
    queue_path.write_text("somebody's")
    result = _run(folder, "--queue", queue_path)
    assert 2 == result.returncode
    assert "already exists" in result.stderr
    assert "somebody's" == queue_path.read_text()
