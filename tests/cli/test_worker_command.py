"""`jqueue worker` as users run it, in its own process."""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.cli.app import app
from jqueue.cli.log import PLAIN, JobFormatter, JSONFormatter

SECONDS = 120
"""Limit for a process that hangs. A busy machine takes 20 s to start a worker and a process of its handlers."""

PROGRAM = """
import asyncio
import gc
import pathlib

from jqueue.worker import Context, Worker

worker = Worker(concurrency=4, grace=20)
idle = Worker()
not_a_worker = 5


@worker.handler("note")
async def note(text: str, ctx: Context) -> None:
    with pathlib.Path("notes.txt").open("a") as notes:
        notes.write(f"{text}\\n")


@worker.handler("is searched")
async def is_searched() -> None:
    print(any(each is worker for each in gc.get_objects()))


@worker.handler("told")
async def told(ctx: Context) -> None:
    ctx.logger.info("attempt %d", ctx.attempt)


@worker.handler("fails", max_attempts=1)
async def fails() -> None:
    1 / 0


@worker.handler("slow")
async def slow(seconds: float) -> None:
    print("began", flush=True)
    await asyncio.sleep(seconds)


@worker.handler("deaf", max_attempts=1)
def deaf(text: str) -> None:
    print("began", flush=True)
    import time

    time.sleep(600)


@worker.handler("stubborn", max_attempts=1)
async def stubborn(text: str) -> None:
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass
"""

WRONG = """
from jqueue.worker import Worker

worker = Worker()


@worker.cron("every now and then")
async def nightly() -> None: ...
"""


SLOW = """
import time

print("importing", flush=True)
while True:
    time.sleep(0.01)

from program import worker
"""

LOGGING = """
import logging
import logging.config

own = logging.getLogger("configured.part")
own.warning("early %s", "line")
{setup}

from program import worker


@worker.handler("own", process={process})
def log() -> None:
    own.info("own line")
"""

APART = """
import logging
import pathlib

from jqueue.worker import Context, Worker

worker = Worker()


@worker.handler("apart", process=True, timeout=5, max_attempts=1)
def apart(ctx: Context) -> None:
    ctx.logger.info("begins %s", "well", extra={"place": pathlib.Path()})
    logging.getLogger("apart.part").debug("not for everyone")
    logging.warning("from the root")
    try:
        1 / 0
    except ZeroDivisionError:
        ctx.logger.exception("two\\nlines")
"""

IMPORTED_SLOWLY = """
import multiprocessing
import time

if multiprocessing.parent_process() is not None:
    time.sleep(5.5)  # longer than the timeout of the handler
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "slow_import.py").write_text(SLOW)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "misspelled.py").write_text("def worker(:\n")
    (tmp_path / "wrong.py").write_text(WRONG)
    return tmp_path


@pytest.fixture
def start(folder):
    running = []

    def start(*arguments, before=()):
        command = [*before, sys.executable, "-m", "jqueue", "worker", *arguments]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def queue(folder):
    return DirectQueue(LocalFileSystemStorage(folder / "queue.json"))


def enqueue(folder, entrypoint, payload):
    return asyncio.run(queue(folder).enqueue(entrypoint, payload))


def state(folder):
    return asyncio.run(queue(folder).read_state())


def test_a_draining_worker_does_all_ready_jobs_and_exits(folder, start):
    for number in range(20):
        enqueue(folder, "note", b"%d" % number)
    process = start("program:worker", "queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    assert sorted(map(str, range(20))) == sorted((folder / "notes.txt").read_text().split())
    assert () == state(folder).jobs
    assert "20 ready jobs" in errors
    assert "20 succeeded" in errors


def test_a_draining_worker_exits_with_1_if_a_job_died(folder, start):
    enqueue(folder, "fails", b"")
    arguments = ("program:worker", "queue.json", "--drain", "--poll-interval", "0.5")
    process = start(*arguments)
    _, errors = process.communicate(timeout=SECONDS)
    assert 1 == process.returncode, errors
    again = start(*arguments)
    _, errors = again.communicate(timeout=SECONDS)
    assert 0 == again.returncode, errors


@pytest.mark.wide
def test_the_garbage_collector_does_not_search_the_modules_of_the_program(folder, start):
    enqueue(folder, "is searched", b"")
    output, errors = start("program:worker", "queue.json", "--drain").communicate(timeout=SECONDS)
    assert "False\n" == output, errors


@pytest.mark.wide
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_lets_running_jobs_finish_and_the_worker_exits_with_0(folder, start, name):
    enqueue(folder, "slow", b"0.5")
    process = start("program:worker", "queue.json")
    assert "began\n" == process.stdout.readline()
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    assert () == state(folder).jobs
    assert "worker is stopping: waiting for 1 job, up to 20 s\n" in errors
    assert "1 succeeded" in errors


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("nohup"), reason="there is no nohup here")
def test_a_worker_under_nohup_goes_on_after_a_hang_up(folder, start):
    enqueue(folder, "slow", b"600")
    process = start("program:worker", "queue.json", "--grace", "0", before=["nohup"])
    assert "began\n" == process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    enqueue(folder, "slow", b"0")
    assert "began\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert (0, True) == (process.returncode, "1 succeeded" in errors), errors


@pytest.mark.wide
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_amid_the_imports_ends_the_worker_with_0(folder, start, name):
    process = start("slow_import:worker", "queue.json")
    assert "importing\n" == process.stdout.readline()
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=SECONDS)
    assert (0, "") == (process.returncode, errors)


@pytest.mark.wide
def test_a_first_process_of_a_container_ends_at_sigterm_amid_the_imports(folder, start):
    container = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no new process namespace")
    process = start("slow_import:worker", "queue.json", before=container)
    assert "importing\n" == process.stdout.readline()
    [first] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert (0, "") == (process.returncode, errors)


def test_an_unfinished_job_is_handed_back_uncharged_after_the_grace(folder, start):
    enqueue(folder, "slow", b"600")
    process = start("program:worker", "queue.json", "--grace", "0.1")
    assert "began\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    [job] = state(folder).queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.mark.wide
@pytest.mark.parametrize("entrypoint", ["deaf", "stubborn"])
def test_a_second_signal_stops_the_worker_at_once_despite_a_stuck_handler(folder, start, entrypoint):
    enqueue(folder, entrypoint, b"x")
    process = start("program:worker", "queue.json", "--grace", "600")
    assert "began\n" == process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    [job] = state(folder).queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("program", "MODULE:NAME"),
        ("program:", "MODULE:NAME"),
        ("program.py:worker", "not its file"),
        ("absent:worker", "the module 'absent' is neither"),
        ("program:absent", "has no 'absent'"),
        ("program:not_a_worker", "has a 'not_a_worker' of type int"),
        ("program:idle", 'program:idle has no handlers: register one with @idle.handler("name")'),
    ],
)
def test_a_wrong_target_gives_a_one_line_error(folder, monkeypatch, target, expected):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    result = CliRunner().invoke(app, ["worker", target, "queue.json"])
    assert 2 == result.exit_code
    assert expected in result.stderr
    assert 1 == result.stderr.count("\n")


@pytest.mark.wide
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("broken", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("misspelled", "SyntaxError"),
        ("wrong", "is not a cron expression"),
    ],
)
def test_a_failed_import_shows_only_the_traceback_of_the_program(folder, start, module, said):
    process = start(f"{module}:worker", "queue.json")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode
    assert f"jqueue: the module '{module}' could not be imported:" == errors.splitlines()[0]
    assert said in errors.splitlines()[-1]
    files = [line.split('"')[1] for line in errors.splitlines() if line.startswith('  File "')]
    assert str(folder / f"{module}.py") == files[0]
    assert not [file for file in files if "typer" in file or "importlib" in file or "/cli/" in file]
    assert not (folder / "queue.json").exists()


@pytest.mark.wide
def test_a_missing_queue_is_warned_about(folder, start):
    process = start("program:worker", "queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    assert f"there is no queue at {folder / 'queue.json'}: check the URL; the first enqueue creates a queue" in errors


@pytest.mark.wide
def test_a_missing_folder_is_created_only_with_create(folder, start):
    process = start("program:worker", "new/queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode
    assert f"jqueue: the folder '{folder / 'new'}' does not exist: correct the path, or create the folder" in errors
    process = start("program:worker", "new/queue.json", "--drain", "--create")
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors


@pytest.mark.wide
def test_a_queue_in_memory_is_warned_about(start):
    process = start("program:worker", "memory://", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    assert "WARNING jqueue.worker: an in-memory queue is visible only to its own process" in errors


@pytest.mark.wide
def test_ready_jobs_without_a_handler_are_counted_at_the_start(folder, start):
    enqueue(folder, "note", b"one")
    for number in range(7):
        enqueue(folder, f"unknown-{number}", b"")
    enqueue(folder, "unknown-0", b"")
    process = start("program:worker", "queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    named = "unknown-0 (2), unknown-1 (1), unknown-2 (1), unknown-3 (1), unknown-4 (1) and 2 more"
    assert f"9 ready jobs, 0 scheduled, 0 dead; this worker has no handler for the ready jobs of {named}\n" in errors


@pytest.mark.wide
def test_log_lines_of_a_handler_name_its_job(folder, start):
    job = enqueue(folder, "told", b"")
    process = start("program:worker", "queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert f" INFO jqueue.worker: [told {job.id}] attempt 1\n" in errors
    assert " INFO jqueue.worker: worker started" in errors


@pytest.mark.wide
@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_program_that_disables_earlier_loggers_still_logs(folder, start, process):
    setup = "logging.config.dictConfig({'version': 1})"
    (folder / "configured.py").write_text(LOGGING.format(setup=setup, process=process))
    failing = enqueue(folder, "fails", b"")
    enqueue(folder, "own", b"")
    process = start("configured:worker", "queue.json", "--drain")
    _, errors = process.communicate(timeout=SECONDS)
    assert " WARNING configured.part: early line\n" in errors
    assert f" WARNING jqueue.worker: job {failing.id} (fails, attempt 1) failed: ZeroDivisionError" in errors
    assert 1 == errors.count(" INFO configured.part: own line\n"), errors


@pytest.mark.wide
@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_program_keeps_the_format_of_its_log(folder, start, process):
    setup = "logging.basicConfig(format='mine %(levelname)s %(name)s %(message)s')"
    (folder / "configured.py").write_text(LOGGING.format(setup=setup, process=process))
    enqueue(folder, "own", b"")
    process = start("configured:worker", "queue.json", "--drain", "--log-format", "json")
    _, errors = process.communicate(timeout=SECONDS)
    early, *lines = errors.splitlines()
    assert "early line" == json.loads(early)["message"]
    assert ["mine"] * len(lines) == [line.split()[0] for line in lines]
    assert "mine WARNING jqueue.worker --log-format json has no effect: the module of the worker sets up" in lines[0]
    assert "mine INFO configured.part own line" in lines


@pytest.mark.wide
def test_debug_logs_show_the_traceback_of_a_failed_handler(folder, start):
    enqueue(folder, "fails", b"")
    process = start("program:worker", "queue.json", "--drain", "--log-level", "DEBUG")
    _, errors = process.communicate(timeout=SECONDS)
    assert "ZeroDivisionError was raised here:" in errors
    assert f'File "{folder / "program.py"}"' in errors
    assert "1 / 0" in errors


def test_an_unusable_queue_gives_a_one_line_error(folder, start):
    (folder / "queue.json").write_text("this is no queue")
    process = start("program:worker", "queue.json")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode
    assert 1 == errors.count("\n"), errors
    assert "cannot be used" in errors
    assert "this is no queue" == (folder / "queue.json").read_text()


@pytest.mark.wide
def test_show_errors_logs_the_message_and_traceback_of_a_handler(folder, start):
    enqueue(folder, "fails", b"")
    process = start("program:worker", "queue.json", "--drain", "--show-errors")
    _, errors = process.communicate(timeout=SECONDS)
    [first] = [line for line in errors.splitlines() if "Traceback (most recent call last):" in line]
    assert "(fails): Traceback" in first
    assert "    ZeroDivisionError: division by zero" in errors.splitlines()  # indented, unlike a line of the log


@pytest.mark.wide
def test_the_log_in_json_is_one_object_a_line_with_its_job_and_no_payload(folder, start):
    enqueue(folder, "told", b"")
    enqueue(folder, "fails", b"")
    enqueue(folder, "note", b"S3CR3T\\n{")
    process = start("program:worker", "queue.json", "--drain", "--log-format", "json")
    _, errors = process.communicate(timeout=SECONDS)
    records = [json.loads(line) for line in errors.splitlines()]
    assert [{"time", "level", "logger", "message", "worker"}] * len(records) == [
        record.keys() - {"job_id", "entrypoint", "attempt"} for record in records
    ]
    assert {f"worker@{socket.gethostname()}:{process.pid}"} == {record["worker"] for record in records}
    [told] = [record for record in records if record["message"] == "attempt 1"]
    assert ("INFO", "told", 1) == (told["level"], told["entrypoint"], told["attempt"])
    [failed] = [record for record in records if record["level"] == "WARNING"]
    assert ("fails", 1, True) == (failed["entrypoint"], failed["attempt"], failed["job_id"] in failed["message"])
    assert "S3CR3T" not in errors


@pytest.mark.wide
def test_records_of_a_process_handler_are_logged_by_its_worker(folder, start):
    (folder / "apart.py").write_text(APART)
    job = enqueue(folder, "apart", b"")
    process = start("apart:worker", "queue.json", "--drain", "--log-format", "json")
    _, errors = process.communicate(timeout=SECONDS)
    records = [json.loads(line) for line in errors.splitlines()]
    assert {f"worker@{socket.gethostname()}:{process.pid}"} == {record["worker"] for record in records}
    levels = {record["message"]: (record["level"], record.get("job_id")) for record in records}
    assert ("INFO", job.id) == levels["begins well"]
    assert ("WARNING", None) == levels["from the root"]
    assert ("ERROR", job.id) == levels["two\nlines"]
    assert "not for everyone" not in levels
    [traceback] = [record["traceback"] for record in records if "traceback" in record]
    assert traceback.endswith("ZeroDivisionError: division by zero")


@pytest.mark.wide
@pytest.mark.parametrize(("propagate", "times"), [(False, 1), (True, 2)])
def test_each_handler_of_the_log_gets_a_record_of_a_process_once(folder, start, propagate, times):
    setup = f"own.addHandler(logging.StreamHandler()); own.propagate = {propagate}"
    (folder / "configured.py").write_text(LOGGING.format(setup=setup, process=True))
    enqueue(folder, "own", b"")
    _, errors = start("configured:worker", "queue.json", "--drain").communicate(timeout=SECONDS)
    assert times == errors.count("own line"), errors


@pytest.mark.wide
def test_the_import_of_a_module_does_not_count_towards_the_timeout_of_a_process_handler(folder, start):
    (folder / "apart.py").write_text(IMPORTED_SLOWLY + APART)
    enqueue(folder, "apart", b"")
    _, errors = start("apart:worker", "queue.json", "--drain").communicate(timeout=SECONDS)
    assert "1 succeeded" in errors, errors


@pytest.mark.wide
def test_the_log_in_json_ends_with_the_error_that_ends_the_worker(folder, start):
    (folder / "queue.json").write_text("no queue")
    process = start("program:worker", "queue.json", "--log-format", "json")
    _, errors = process.communicate(timeout=SECONDS)
    last = json.loads(errors.splitlines()[-1])
    assert (2, "ERROR", True) == (process.returncode, last["level"], "cannot be used" in last["message"])


def test_a_record_in_json_cannot_control_a_terminal_or_forge_a_line():
    record = logging.LogRecord("other", logging.ERROR, "x.py", 1, "a\x1b[2J\nb \u2028 %s", ("\x9b",), None)
    record.entrypoint, record.job_id, record.attempt = "m\x1b", "1\n2", 3
    line = JSONFormatter().format(record)
    assert line.isascii()
    assert line.isprintable()
    assert (None, "m\x1b", 3) == tuple(json.loads(line)[name] for name in ("worker", "entrypoint", "attempt"))


@pytest.mark.wide
@pytest.mark.parametrize("fate", ["gone", "replaced", "corrupt"])
def test_a_queue_lost_or_damaged_meanwhile_ends_the_worker_after_give_up_after(folder, start, fate):
    enqueue(folder, "slow", b"0.01")
    process = start("program:worker", "queue.json", "--give-up-after", "0.5")
    assert "began\n" == process.stdout.readline()
    path = folder / "queue.json"
    if fate == "gone":
        path.unlink()
    elif fate == "replaced":
        asyncio.run(DirectQueue(LocalFileSystemStorage(folder / "other.json")).enqueue("note", b"x"))
        (folder / "other.json").replace(path)
    else:
        path.write_text("this is no queue")
    _, errors = process.communicate(timeout=SECONDS)
    assert 2 == process.returncode, errors
    said = {"gone": "has disappeared", "replaced": "another queue (", "corrupt": "the queue's object"}[fate]
    lines = [line for line in errors.splitlines() if f"the queue at {path} cannot be used" in line]
    assert " ERROR " in lines[0], errors
    assert (
        f"jqueue: the queue at {path} cannot be used: "
        == lines[-1][: len(f"jqueue: the queue at {path} cannot be used: ")]
    )
    assert said in lines[-1]


@pytest.mark.wide
def test_repeated_signals_still_end_the_worker_with_0(folder, start):
    enqueue(folder, "stubborn", b"x")
    process = start("program:worker", "queue.json")
    assert "began\n" == process.stdout.readline()
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors
    [job] = state(folder).queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.fixture
def black_hole():
    """The URL of an endpoint that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.wide
def test_a_silent_store_is_named_within_seconds_and_its_worker_can_be_stopped(start, black_hole, monkeypatch):
    pytest.importorskip("aiobotocore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    process = start("program:worker", f"s3://bucket/q.json?endpoint_url={black_hole}&region_name=us-east-1")
    line = process.stderr.readline()
    assert "s3://bucket/q.json" in line
    assert "has not answered within 2 s" in line
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert 0 == process.returncode, errors


def test_log_lines_are_escaped_and_cannot_be_forged():
    evil = "one\x1b[2J\a\n2026-01-01 00:00:00,000 INFO jqueue.worker: forged"
    formatter = JobFormatter(PLAIN)
    record = logging.LogRecord("program", logging.INFO, __file__, 1, "got %s", (evil,), None)
    first, second = formatter.format(record).split("\n")
    assert "got one\\x1b[2J\\x07" in first
    assert second == "    2026-01-01 00:00:00,000 INFO jqueue.worker: forged"
