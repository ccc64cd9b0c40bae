"""`jqueue worker` as users run it, in its own process."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest

from jqueue.cli.worker import PLAIN, JobFormatter, JSONFormatter
from tests.cli.commands import PATIENCE, Blocking, run

PROGRAM = """
import asyncio
import logging
import pathlib
import time

from jqueue.worker import Context, Worker

worker = Worker(concurrency=4, grace=60)
idle = Worker()
not_a_worker = 5


@worker.handler("note")
async def note(text: str, ctx: Context) -> None:
    ctx.logger.info("attempt %d", ctx.attempt)
    with pathlib.Path("notes.txt").open("a") as notes:
        notes.write(f"{text}\\n")


@worker.handler("fails", max_attempts=1)
async def fails() -> None:
    1 / 0


@worker.handler("until told")
async def until_told() -> None:
    print("began", flush=True)
    while not pathlib.Path("told").exists():
        await asyncio.sleep(0.01)


@worker.handler("deaf", max_attempts=1)
def deaf() -> None:
    print("began", flush=True)
    time.sleep(600)


@worker.handler("apart", process=True, max_attempts=1)
def apart(ctx: Context) -> None:
    ctx.logger.info("begins %s", "well", extra={"place": pathlib.Path()})
    logging.getLogger("apart.part").debug("not for everyone")
    logging.getLogger("configured.part").info("own line")
    try:
        1 / 0
    except ZeroDivisionError:
        ctx.logger.exception("two\\nlines")
"""

SLOW = """
import time

print("importing", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "slow_import.py").write_text(SLOW)
    return tmp_path


@pytest.fixture
def queue(path):
    return Blocking(path)


@pytest.fixture
def start(folder):
    running = []

    def start(*arguments, target="program:worker", before=()):
        command = [*before, sys.executable, "-m", "jqueue", "worker", target, *arguments]
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def end(process, status=0):
    """The log of a worker that ends with a status."""
    _, errors = process.communicate(timeout=PATIENCE)
    assert status == process.returncode, errors
    return errors


def test_a_draining_worker_does_all_ready_jobs_and_exits_with_1_if_a_job_died(folder, queue, start):
    for number in range(20):
        queue.enqueue("note", b"%d" % number)
    queue.enqueue("fails", b"S3CR3T")
    for number in range(6):
        queue.enqueue(f"unknown-{number}", b"")
    log = end(start("queue.json", "--drain"), status=1)
    assert sorted(map(str, range(20))) == sorted((folder / "notes.txt").read_text().split())
    unknown = "unknown-0 (1), unknown-1 (1), unknown-2 (1), unknown-3 (1), unknown-4 (1) and 1 more"
    assert f"27 ready jobs, 0 scheduled, 0 dead; this worker has no handler for the ready jobs of {unknown}\n" in log
    assert "20 succeeded" in log
    assert "S3CR3T" not in log
    assert 1 == queue.stats().dead


@pytest.mark.wide
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_lets_running_jobs_finish_and_the_worker_exits_with_0(folder, queue, start, name):
    queue.enqueue("until told", b"")
    process = start("queue.json")
    assert "began\n" == process.stdout.readline()
    process.send_signal(getattr(signal, name))
    assert any("worker is stopping: waiting for 1 job, up to 60 s" in line for line in process.stderr)
    (folder / "told").touch()
    assert "1 succeeded" in end(process)
    assert {} == queue.jobs()


@pytest.mark.parametrize(
    ("entrypoint", "grace", "signals"),
    [("until told", 0, ["SIGTERM"]), pytest.param("deaf", 600, ["SIGTERM", "SIGINT"], marks=pytest.mark.wide)],
)
def test_an_unfinished_job_is_handed_back_uncharged_after_the_grace_or_a_further_signal(
    queue, start, entrypoint, grace, signals
):
    queue.enqueue(entrypoint, b"")
    process = start("queue.json", "--grace", str(grace))
    assert "began\n" == process.stdout.readline()
    for name in signals:
        process.send_signal(getattr(signal, name))
    end(process)
    [job] = queue.read_state().queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.mark.wide
def test_a_signal_amid_the_imports_ends_the_worker_with_0_also_as_the_first_process_of_a_container(start):
    process = start("queue.json", target="slow_import:worker")
    assert "importing\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert "" == end(process)
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no new process namespace")
    process = start("queue.json", target="slow_import:worker", before=container)
    assert "importing\n" == process.stdout.readline()
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        os.kill(int(children.read()), signal.SIGTERM)
    assert "" == end(process)


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("nohup"), reason="there is no nohup here")
def test_a_worker_under_nohup_goes_on_after_a_hang_up(folder, queue, start):
    queue.enqueue("until told", b"")
    process = start("queue.json", before=["nohup"])
    assert "began\n" == process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    queue.enqueue("until told", b"")
    assert "began\n" == process.stdout.readline()
    (folder / "told").touch()
    process.send_signal(signal.SIGTERM)
    end(process)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("program", "MODULE:NAME"),
        ("absent:worker", "the module 'absent' is neither"),
        ("program:absent", "has no 'absent'"),
        ("program:idle", 'program:idle has no handlers: register one with @idle.handler("name")'),
        ("broken:worker", "SyntaxError"),
        ("program:worker damaged.json", "cannot be used"),
    ],
)
def test_a_wrong_target_or_queue_is_refused(folder, monkeypatch, target, reason):
    (folder / "broken.py").write_text("def worker(:\n")
    (folder / "damaged.json").write_text("this is no queue")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    program, _, url = target.partition(" ")
    result = run("worker", program, url or "queue.json")
    assert (2, "", True) == (result.exit_code, result.stdout, reason in result.stderr)
    assert all(line.startswith(("jqueue: ", " ", "SyntaxError")) for line in result.stderr.splitlines())
    assert "/cli/" not in result.stderr, "a traceback shows only the program"
    assert "this is no queue" == (folder / "damaged.json").read_text()
    assert not (folder / "queue.json").exists()


@pytest.mark.wide
def test_a_worker_without_a_queue_says_so_and_one_whose_queue_is_damaged_meanwhile_gives_up(folder, queue, start):
    process = start("queue.json", "--give-up-after", "0")
    assert f"there is no queue at {queue.path}: check the URL; the first" in process.stderr.readline()
    queue.enqueue("until told", b"")
    (folder / "told").touch()
    assert "began\n" == process.stdout.readline()
    queue.path.write_text("this is no queue")
    last = end(process, status=2).splitlines()[-1]
    assert last.startswith(f"jqueue: the queue at {queue.path} cannot be used: ")


# The log


@pytest.mark.wide
def test_the_log_in_json_is_one_object_a_line_also_for_a_process_of_handlers(queue, start):
    jobs = {name: queue.enqueue(name, b"").id for name in ("apart", "fails", "note")}
    process = start("queue.json", "--drain", "--log-format", "json")
    records = [json.loads(line) for line in end(process, status=1).splitlines()]
    assert {f"worker@{socket.gethostname()}:{process.pid}"} == {record["worker"] for record in records}
    by_message = {record["message"]: record for record in records}
    assert ("INFO", "apart", jobs["apart"], 1) == tuple(
        by_message["begins well"][name] for name in ("level", "entrypoint", "job_id", "attempt")
    )
    assert ("ERROR", jobs["apart"]) == tuple(by_message["two\nlines"][name] for name in ("level", "job_id"))
    assert by_message["two\nlines"]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "not for everyone" not in by_message
    assert [jobs["fails"]] == [record["job_id"] for record in records if record["level"] == "WARNING"]


CONFIGURED = """
import logging
import logging.config

logging.getLogger("configured.part").warning("early %s", "line")
logging.config.dictConfig({"version": 1})

from program import worker
"""


@pytest.mark.wide
def test_the_log_names_the_job_of_each_line_and_shows_errors_on_request(folder, queue, start):
    """Also if a program disables the loggers that there are before it sets up its own."""
    (folder / "configured.py").write_text(CONFIGURED)
    jobs = {name: queue.enqueue(name, b"S3CR3T").id for name in ("note", "fails", "apart")}
    log = end(start("queue.json", "--drain", "--show-errors", target="configured:worker"), status=1)
    assert f" INFO jqueue.worker: [note {jobs['note']}] attempt 1\n" in log
    assert "    ZeroDivisionError: division by zero" in log.splitlines()  # indented, unlike a line of the log
    assert " WARNING configured.part: early line\n" in log
    assert 1 == log.count("own line\n"), log
    assert "S3CR3T" not in log


def test_a_record_cannot_control_a_terminal_or_forge_a_line():
    evil = "one\x1b[2J\a\n2026-01-01 00:00:00,000 INFO jqueue.worker: forged\x9b\u2028"
    record = logging.LogRecord("program", logging.INFO, __file__, 1, "got %s", (evil,), None)
    first, second = JobFormatter(PLAIN).format(record).split("\n")
    assert "got one\\x1b[2J\\x07" in first
    assert second.startswith("    2026-01-01 00:00:00,000 INFO jqueue.worker: forged")
    record.entrypoint, record.job_id, record.attempt = "m\x1b", "1\n2", 3
    line = JSONFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert ("m\x1b", 3) == tuple(json.loads(line)[name] for name in ("entrypoint", "attempt"))
