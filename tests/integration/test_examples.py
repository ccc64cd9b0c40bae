"""The examples, run as users do: in a process of their own."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 90  # none takes a tenth of it on an idle machine


@pytest.fixture
def temporary(tmp_path):
    """Return the folder in which the examples make their temporary folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def run(temporary):
    """Return a function that runs an example, checks that it leaves no files, and returns its output, 200 wide."""

    def run(name):
        environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "200"}
        command = [sys.executable, f"examples/{name}.py"]
        # This returns only when the last process that the example started is gone: they share its output.
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
        print(result.stdout, result.stderr)
        errors = [line for line in result.stderr.splitlines() if "; dead (failure " not in line]
        assert (0, [], []) == (result.returncode, errors, os.listdir(temporary))
        return result.stdout

    return run


def _rows(output):
    """Return the rows of all tables, as tuples of texts."""
    return [tuple(cell.strip() for cell in line.split("│")[1:-1]) for line in output.splitlines() if line[:1] == "│"]


def test_mails_are_sent_by_the_second_try_and_an_undeliverable_one_is_dead(run):
    output = run("web_mail")
    assert [
        ("ada@example.org", "done", "sent by try 2"),
        ("bob@example.org", "done", "sent by try 2"),
        ("nobody", "dead", "Discard: not an email address"),
        ("cyd@example.org", "done", "sent by try 2"),
        ("dan@example.org", "done", "sent by try 2"),
    ] == _rows(output)
    assert "4 mails sent. ada@example.org signed up twice: one job.\n" in output
    assert output.endswith("Stopped by SIGTERM; the worker's exit code is 0.\n")


def test_a_request_and_its_handler_in_another_process_are_one_trace(run):
    output = run("traced_web")
    assert " spans in 1 trace:" in output
    assert "process welcome" in output.partition("enqueue welcome")[2]


def test_dead_jobs_of_a_script_are_redriven_and_all_amounts_are_right(run):
    output = run("sync_script")
    assert "12 jobs enqueued by 12 threads: 9 results.\n" in output
    dead, converted = _rows(output)[:3], _rows(output)[3:]
    assert ["KeyError: 'CHF'"] * 3 == [row[2].partition(" (")[0] for row in dead]
    assert {2} <= {int(row[1]) for row in dead} <= {2, 3}, "a worker that stops may hand back a claim"
    assert [("10 CHF", "10.50"), ("20 CHF", "21.00"), ("30 CHF", "31.50")] == converted
    assert re.search(r"^12 of 12 amounts converted, in \d+ commits of one file\.\n\Z", output, re.MULTILINE)


def test_each_occurrence_is_run_once_by_one_of_two_workers(run):
    output = run("cron_worker")
    schedules, runs = _rows(output)[:3], _rows(output)[3:]
    assert ["check", "nightly", "tick"] == [row[0] for row in schedules]
    assert len(runs) >= 6
    assert len(runs) == len({row[:2] for row in runs}), "an occurrence was run twice"
    assert output.endswith(f"{len(runs)} occurrences, 2 workers, 0 run more than once. Exit codes: [0, 0]\n")


def test_a_fan_out_reaches_its_limits_and_never_exceeds_them(run):
    output = run("fan_out")
    assert {"alpha.example", "beta.example", "gamma.example", "delta.example"} == {row[0] for row in _rows(output)}
    assert ["6"] * 4 == [row[1] for row in _rows(output)]
    assert "24 pages by 2 workers." in output
    found = re.search(r"^(\d+), (\d+), (\d+); the limits were 6, 2, 10\.$", output, re.MULTILINE)
    assert found is not None
    at_once, from_one_host, in_a_second = map(int, found.groups())
    assert 1 <= at_once <= 6
    assert 1 <= from_one_host <= 2
    assert 1 <= in_a_second <= 10


@contextmanager
def _started(temporary, *command):
    """Start an example, and check that nothing of it is left in the end."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process
    assert [] == os.listdir(temporary)


def test_a_stopped_example_stops_the_processes_that_it_started(temporary):
    with _started(temporary, "examples/cron_worker.py") as process:
        _until(lambda: any(temporary.glob("*/queue.json")), process)  # a process that it started makes it
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LONGEST_SECONDS)  # ends when the last process is gone
    assert 128 + signal.SIGTERM == process.returncode


def _until(condition, process):
    """Wait until other processes make a condition true."""
    while not condition():
        assert process.poll() is None, "it ended before"
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue


# The example of `make run`

FILES = 60
CHANGING = Path("/proc/sys/kernel/random")
"""A folder on Linux in which the content of `uuid` differs at each read."""


@pytest.fixture
def folder(tmp_path):
    """Return nested folders with files, and with a link that must not be counted."""
    for number in range(FILES):
        path = tmp_path / "files" / f"{number % 3}" / f"file [{number}] é"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * number)
    (tmp_path / "files" / "link").symlink_to(path)
    return tmp_path / "files"


def _checksums(*arguments):
    command = [sys.executable, "examples/checksums.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS)


def test_the_example_recovers_the_jobs_of_a_killed_worker_with_correct_checksums(folder, tmp_path):
    result = _checksums(folder, "--workers", 2, "--concurrency", 4, "--queue", tmp_path / "queue.json")
    print(result.stdout)
    assert (0, "") == (result.returncode, result.stderr)
    kill = re.search(r"^Half-way: killed worker \d+ with SIGKILL, with (\d+) jobs in progress$", result.stdout, re.M)
    assert kill is not None
    assert f"Other workers have done its {kill[1]} jobs" in result.stdout
    assert result.stdout.endswith(f"A plain loop gives the same {FILES} checksums: no job was lost.\n")


@pytest.mark.full
@pytest.mark.skipif(not CHANGING.is_dir(), reason="there is no such folder here")
def test_the_example_fails_when_a_checksum_differs_from_that_of_a_plain_loop():
    result = _checksums(CHANGING, "--workers", 2)
    assert 1 == result.returncode
    assert "files are missing or differ" in result.stdout


def test_an_interrupted_example_leaves_no_worker_and_no_folder_behind(folder, temporary):
    with _started(temporary, "examples/checksums.py", folder) as process:
        assert any(line.startswith("Half-way") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        after, _ = process.communicate(timeout=LONGEST_SECONDS)  # ends when the last worker is gone
    assert 130 == process.returncode
    assert after.endswith("Interrupted; the workers have stopped.\n")
