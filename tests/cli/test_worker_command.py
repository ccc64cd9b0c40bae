"""`jqueue worker` as users run it, in its own process."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from jqueue.cli.log import PLAIN, JobFormatter, JSONFormatter
from tests.cli.commands import PATIENCE, Blocking, refused

PROGRAM = """
import asyncio
import logging
import pathlib
import time

from jqueue.worker import Context, Worker

worker = Worker(concurrency=4, grace=20)
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


@worker.handler("stubborn", max_attempts=1)
async def stubborn() -> None:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass


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
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_lets_running_jobs_finish_and_the_worker_exits_with_0(folder, queue, start, name):
    queue.enqueue("until told", b"")
    process = start("queue.json")
    assert "began\n" == process.stdout.readline()
    process.send_signal(getattr(signal, name))
    while "worker is stopping: waiting for 1 job, up to 20 s" not in process.stderr.readline():
        pass
    (folder / "told").touch()
    assert "1 succeeded" in end(process)
    assert {} == queue.jobs()


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


@pytest.mark.wide
def test_a_signal_amid_the_imports_ends_the_worker_with_0(start):
    process = start("queue.json", target="slow_import:worker")
    assert "importing\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert "" == end(process)


@pytest.mark.wide
def test_a_first_process_of_a_container_ends_at_sigterm_amid_the_imports(start):
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no new process namespace")
    process = start("queue.json", target="slow_import:worker", before=container)
    assert "importing\n" == process.stdout.readline()
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        os.kill(int(children.read()), signal.SIGTERM)
    assert "" == end(process)


@pytest.mark.parametrize(
    ("entrypoint", "grace", "signals"),
    [
        ("until told", "0.1", ["SIGTERM"]),
        pytest.param("deaf", "600", ["SIGTERM", "SIGINT"], marks=pytest.mark.wide),
        pytest.param("stubborn", "600", ["SIGTERM", "SIGTERM", "SIGHUP"], marks=pytest.mark.wide),
    ],
)
def test_an_unfinished_job_is_handed_back_uncharged_after_the_grace_or_further_signals(
    queue, start, entrypoint, grace, signals
):
    queue.enqueue(entrypoint, b"")
    process = start("queue.json", "--grace", grace)
    assert "began\n" == process.stdout.readline()
    for name in signals:
        process.send_signal(getattr(signal, name))
    end(process)
    [job] = queue.read_state().queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("program", "MODULE:NAME"),
        ("program.py:worker", "not its file"),
        ("absent:worker", "the module 'absent' is neither"),
        ("program:absent", "has no 'absent'"),
        ("program:not_a_worker", "has a 'not_a_worker' of type int"),
        ("program:idle", 'program:idle has no handlers: register one with @idle.handler("name")'),
    ],
)
def test_a_wrong_target_gives_a_one_line_error(folder, monkeypatch, target, reason):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    assert reason in refused("worker", target, "queue.json")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def worker(:\n", "SyntaxError"),
    ],
)
def test_a_failed_import_shows_only_the_traceback_of_the_program(folder, start, code, error):
    (folder / "broken.py").write_text(code)
    lines = end(start("queue.json", target="broken:worker"), status=2).splitlines()
    assert "jqueue: the module 'broken' could not be imported:" == lines[0]
    assert error in lines[-1]
    files = [line.split('"')[1] for line in lines if line.startswith('  File "')]
    assert str(folder / "broken.py") == files[0]
    assert not [file for file in files if "typer" in file or "importlib" in file or "/cli/" in file]
    assert not (folder / "queue.json").exists()


@pytest.mark.wide
def test_a_queue_that_is_missing_or_in_memory_is_warned_about_and_a_folder_is_created_on_request(folder, start):
    missing = f"there is no queue at {folder / 'queue.json'}: check the URL; the first enqueue creates a queue"
    assert missing in end(start("queue.json", "--drain"))
    assert "an in-memory queue is visible only to its own process" in end(start("memory://", "--drain"))
    assert f"the folder '{folder / 'new'}' does not exist" in end(start("new/queue.json", "--drain"), status=2)
    end(start("new/queue.json", "--drain", "--create"))


def test_an_unusable_queue_gives_a_one_line_error(folder, start):
    (folder / "queue.json").write_text("this is no queue")
    log = end(start("queue.json"), status=2)
    assert (1, True) == (log.count("\n"), "cannot be used" in log)
    assert "this is no queue" == (folder / "queue.json").read_text()


@pytest.mark.wide
@pytest.mark.parametrize(
    ("fate", "reason"),
    [("gone", "has disappeared"), ("replaced", "another queue ("), ("corrupt", "the queue's object")],
)
def test_a_queue_lost_or_damaged_meanwhile_ends_the_worker_after_give_up_after(folder, queue, start, fate, reason):
    queue.enqueue("until told", b"")
    (folder / "told").touch()
    process = start("queue.json", "--give-up-after", "0.5")
    assert "began\n" == process.stdout.readline()
    if fate == "gone":
        queue.path.unlink()
    elif fate == "replaced":
        Blocking(folder / "other.json").enqueue("note", b"x")
        (folder / "other.json").replace(queue.path)
    else:
        queue.path.write_text("this is no queue")
    lines = [line for line in end(process, status=2).splitlines() if f"{queue.path} cannot be used" in line]
    assert " ERROR " in lines[0]
    assert lines[-1].startswith(f"jqueue: the queue at {queue.path} cannot be used: ")
    assert reason in lines[-1]


@pytest.mark.wide
def test_a_silent_store_is_named_and_its_worker_can_be_stopped(start, monkeypatch):
    pytest.importorskip("aiobotocore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts connections and never answers
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = start(f"s3://bucket/q.json?endpoint_url={endpoint}&region_name=us-east-1")
        line = process.stderr.readline()
        assert "s3://bucket/q.json" in line
        assert "has not answered within 2 s" in line
        process.send_signal(signal.SIGTERM)
        end(process)


# The log


@pytest.mark.wide
def test_the_log_names_the_job_of_each_line_and_shows_errors_on_request(queue, start):
    job = queue.enqueue("note", b"S3CR3T")
    queue.enqueue("fails", b"")
    log = end(start("queue.json", "--drain", "--show-errors"), status=1)
    assert f" INFO jqueue.worker: [note {job.id}] attempt 1\n" in log
    assert "    ZeroDivisionError: division by zero" in log.splitlines()  # indented, unlike a line of the log
    assert "S3CR3T" not in log


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
    (queue.path).write_text("no queue")
    last = json.loads(end(start("queue.json", "--log-format", "json"), status=2).splitlines()[-1])
    assert ("ERROR", True) == (last["level"], "cannot be used" in last["message"])


LOGGING = """
import logging
import logging.config

logging.getLogger("configured.part").warning("early %s", "line")
{setup}

from program import worker
"""


@pytest.mark.wide
def test_a_program_that_disables_earlier_loggers_still_logs(folder, queue, start):
    (folder / "configured.py").write_text(LOGGING.format(setup="logging.config.dictConfig({'version': 1})"))
    queue.enqueue("apart", b"")
    log = end(start("queue.json", "--drain", target="configured:worker"))
    assert " WARNING configured.part: early line\n" in log
    assert 1 == log.count(" INFO configured.part: own line\n"), log


@pytest.mark.wide
def test_a_program_keeps_the_format_of_its_log(folder, queue, start):
    setup = "logging.basicConfig(format='mine %(levelname)s %(name)s %(message)s')"
    (folder / "configured.py").write_text(LOGGING.format(setup=setup))
    queue.enqueue("apart", b"")
    log = end(start("queue.json", "--drain", "--log-format", "json", target="configured:worker"))
    early, *lines = log.splitlines()
    assert "early line" == json.loads(early)["message"]
    assert "mine WARNING jqueue.worker --log-format json has no effect: the module of the worker sets up" in lines[0]
    assert "mine INFO configured.part own line" in lines


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
