"""The examples about the worker, run as users do: in a process of their own, and piece by piece."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from jqueue import BrokerQueue, Job, connect

pytestmark = pytest.mark.wide

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[2]
NAMES = ["web_mail", "traced_web", "sync_script", "cron_worker", "fan_out"]
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
        assert (0, "", []) == (result.returncode, result.stderr, os.listdir(temporary))
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
    tree = output.partition(" trace:\n\n")[2].splitlines()
    assert " spans in 1 trace:" in output
    [enqueue] = [line for line in tree if line.strip().startswith("enqueue welcome")]
    first, second = [line for line in tree if line.strip().startswith("process welcome")]
    web, worker = enqueue.partition("[")[2].rstrip("]"), second.partition("[")[2].partition(",")[0]
    assert web not in second
    assert (True, False) == ("1 links, failed" in first, "failed" in second)
    below = [line for line in tree if line.index(line.strip()) > enqueue.index("enqueue")]
    assert {first, second} <= set(below)
    assert worker in "".join(line for line in below if "commit" in line)


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
    assert ["Asia/Kolkata", "America/New_York", "Europe/Berlin"] == [row[2] for row in schedules]
    nightly = datetime.fromisoformat(schedules[1][3])
    assert (2, 30, True) == (nightly.hour, nightly.minute, nightly.weekday() < 5)

    assert len(runs) >= 6
    assert len(runs) == len({row[:2] for row in runs}), "an occurrence was run twice"
    for name, moment, berlin, worker in runs:
        every = {"tick": 2, "check": 3}[name]
        assert 0 == int(moment[-2:]) % every
        assert moment[2:] == berlin[2:]
        assert worker in ("1", "2")
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


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_example_stops_the_processes_that_it_started(name, temporary):
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, f"examples/{name}.py"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        _until(lambda: any(temporary.glob("*/queue.json")), process)  # a process that it started makes it
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LONGEST_SECONDS)  # ends when the last process is gone
    assert (128 + signal.SIGTERM, []) == (process.returncode, os.listdir(temporary))


def _until(condition, process):
    """Wait until other processes make a condition true."""
    while not condition():
        assert process.poll() is None, "it ended before"
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue


def _work(target, path, *options):
    """Return the command that runs the worker of an example."""
    return [sys.executable, "-m", "jqueue", "worker", target, str(path), "--log-level", "error", *options]


async def _enqueued(path, *jobs) -> list[Job]:
    async with connect(path, BrokerQueue) as queue:
        return [await queue.enqueue(entrypoint, payload, keep_result=600) for entrypoint, payload in jobs]


async def _results(path, jobs):
    async with connect(path, BrokerQueue) as queue:
        return [await queue.result(job, timeout=0) for job in jobs]


@pytest.mark.parametrize(
    ("name", "job", "result"),
    [
        ("sync_script", ("to_euros", b'{"number": 2, "currency": "USD"}'), 1.8),
        ("cron_worker", ("nightly", b""), None),
        ("fan_out", ("summary", b"[]"), []),
    ],
)
def test_the_worker_of_an_example_runs_on_its_own(name, job, result, tmp_path, monkeypatch):
    rates = tmp_path / "rates.json"
    rates.write_text('{"USD": 0.9}')
    monkeypatch.setenv("RATES", str(rates))
    path = tmp_path / "queue.json"
    jobs = asyncio.run(_enqueued(path, job))
    command = _work(f"examples.{name}:worker", path, "--drain")
    drained = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert (0, "") == (drained.returncode, drained.stderr)
    assert [result] == asyncio.run(_results(path, jobs))


@pytest.fixture
def site(tmp_path):
    """Run the web application without its worker, and return its URL."""
    environment = {**os.environ, "QUEUE": str(tmp_path / "queue.json")}
    command = [sys.executable, "-m", "uvicorn", "examples.web_mail:app", "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
        yield next(found.group(1) for line in process.stderr if (found := address.search(line)))
        process.terminate()


def _call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"}), timeout=30) as answer:
        return answer.status, json.load(answer)


def _status(url, body=None):
    try:
        return _call(url, body)[0]
    except HTTPError as error:
        with error:
            return error.code


def test_the_web_application_accepts_reports_and_refuses_jobs(site, tmp_path):
    status, answer = _call(f"{site}/signup", {"address": "eve@example.org"})
    assert 202 == status
    job = f"{site}/jobs/{answer['job']}"
    assert (200, {"state": "not done yet"}) == _call(job)
    assert (202, answer) == _call(f"{site}/signup", {"address": "eve@example.org"})
    assert [404, 422, 422] == [
        _status(f"{site}/jobs/unknown"),
        _status(f"{job}?wait=31"),
        _status(f"{site}/signup", {"name": "eve"}),
    ]
    with subprocess.Popen(_work("examples.web_mail:worker", tmp_path / "queue.json"), cwd=ROOT) as process:
        assert (200, {"state": "done", "result": "sent by try 2"}) == _call(f"{job}?wait=30")
        process.terminate()
    assert 0 == process.returncode
