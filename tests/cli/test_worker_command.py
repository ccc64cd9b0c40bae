"""`jqueue worker` as users run it, in processes of its own: alone, with `--processes` and with `--reload`."""

import contextlib
import json
import logging
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from jqueue.cli.supervisor import TICK, Supervisor
from jqueue.cli.worker import PLAIN, JobFormatter, JSONFormatter
from jqueue.worker.signals import SIGNALS
from tests.cli.commands import PATIENCE, Blocking, run

PROGRAM = """
import asyncio
import logging
import os
import pathlib
import time

from jqueue.worker import Context, Worker

worker = Worker(concurrency=4, grace=60)
idle = Worker()
not_a_worker = 5


def began() -> None:
    with pathlib.Path("began").open("a") as file:
        file.write(f"{os.getpid()}\\n")


@worker.handler("note")
async def note(text: str, ctx: Context) -> None:
    ctx.logger.info("attempt %d", ctx.attempt)
    with pathlib.Path("notes").open("a") as notes:
        notes.write(f"{text}\\n")


@worker.handler("fails", max_attempts=1)
async def fails() -> None:
    1 / 0


@worker.handler("until told")
async def until_told() -> None:
    began()
    while not pathlib.Path("told").exists():
        await asyncio.sleep(0.01)


@worker.handler("orphans", max_attempts=1)
async def orphans() -> None:
    program = await asyncio.create_subprocess_shell("(echo child >> began) & (echo child >> began) & exit 7")
    assert 7 == await program.wait()


@worker.handler("deaf", max_attempts=1)
def deaf() -> None:
    began()
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
import pathlib
import time

pathlib.Path("began").write_text("importing")
while True:
    time.sleep(0.01)
"""

WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes"), WINDOWS]


class Process:
    """The command in a folder, and the log that it and its processes have written."""

    def __init__(self, folder, *arguments, target="program:worker", before=(), **options):
        self.folder = folder
        self.path = folder / "log"
        with self.path.open("wb") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "jqueue", "worker", target, "queue.json", *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),  # the tests may run under nohup
                **options,
            )

    def until(self, condition, what):
        """Wait until a condition holds, and return its value."""
        give_up = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < give_up, f"not {what}: {self.log}"
            time.sleep(0.01)
        return value

    @property
    def log(self):
        return self.path.read_text()

    def until_logged(self, pattern, times=1):
        """Wait until a line of the log contains this so often."""
        return self.until(lambda: len(re.findall(pattern, self.log)) >= times, f"{times} times {pattern!r} in the log")

    def lines(self, name, count=1):
        """Wait until a file has lines, and return them."""
        file = self.folder / name
        return self.until(
            lambda: file.exists() and len(lines := file.read_text().split()) >= count and lines,
            f"{count} lines in {name}",
        )

    def send(self, name):
        """Send a signal."""
        self.process.send_signal(getattr(signal, name))

    def end(self, status=0):
        """Wait for the end with this exit status, and return the log."""
        assert status == self.process.wait(PATIENCE), self.log
        return self.log


def is_there(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def queue(path):
    return Blocking(path)


@pytest.fixture
def start(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "slow_import.py").write_text(SLOW)
    running = []

    def start(*arguments, **options):
        running.append(Process(tmp_path, *arguments, **options))
        return running[-1]

    yield start
    for each in running:
        each.process.kill()  # its processes notice that
        each.process.wait()


def busy(queue, start, count, *arguments, **options):
    """Start processes that each do one job until it is told to end. Return the parent and their ids."""
    for _ in range(count):
        queue.enqueue("until told", b"")
    parent = start("--processes", str(count), "--concurrency", "1", *arguments, **options)
    pids = [int(line) for line in parent.lines("began", count)]
    assert count == len(set(pids))
    assert parent.process.pid not in pids
    return parent, pids


def test_a_draining_worker_does_all_ready_jobs_of_its_queues_and_exits_with_1_if_a_job_died(tmp_path, queue, start):
    for number in range(20):
        queue.enqueue("note", b"%d" % number)
    queue.enqueue("fails", b"S3CR3T")
    for number in range(6):
        queue.enqueue(f"unknown-{number}", b"")
    Blocking(tmp_path / "other.json").enqueue("note", b"there")
    log = start("other.json", "--drain").end(status=1)
    assert sorted([*map(str, range(20)), "there"]) == sorted((tmp_path / "notes").read_text().split())
    assert "other.json has 1 ready job" in log
    unknown = "unknown-0 (1), unknown-1 (1), unknown-2 (1), unknown-3 (1), unknown-4 (1) and 1 more"
    assert "27 ready jobs, 0 in progress, 0 scheduled, 0 dead; " in log
    assert f"; this worker has no handler for the ready jobs of {unknown}\n" in log
    assert "21 succeeded" in log
    assert "S3CR3T" not in log
    assert 1 == queue.stats().dead


@pytest.mark.wide
def test_a_hang_up_lets_running_jobs_finish_and_the_worker_exits_with_0(tmp_path, queue, start):
    queue.enqueue("until told", b"")
    process = start()
    process.lines("began")
    process.send("SIGHUP")
    process.until_logged("worker is stopping: waiting for 1 job, up to 60 s")
    (tmp_path / "told").touch()
    assert "1 succeeded" in process.end()
    assert {} == queue.jobs()


@pytest.mark.parametrize(
    ("entrypoint", "grace", "signals"),
    [("until told", 0, ["SIGTERM"]), pytest.param("deaf", 600, ["SIGTERM", "SIGINT"], marks=pytest.mark.wide)],
)
def test_an_unfinished_job_is_handed_back_uncharged_after_the_grace_or_a_further_signal(
    queue, start, entrypoint, grace, signals
):
    queue.enqueue(entrypoint, b"")
    process = start("--grace", str(grace))
    process.lines("began")
    for name in signals:
        process.send(name)
    process.end()
    [job] = queue.read_state().queued_jobs()
    assert (1, 0) == (job.attempt, job.failures)


@pytest.fixture
def container():
    """A command that runs another one as the first process of a container."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this system allows no new process namespace")
    return command


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.wide
def test_a_signal_amid_the_imports_ends_the_worker_with_0_also_as_the_first_process_of_a_container(
    tmp_path, start, container
):
    process = start(target="slow_import:worker")
    process.lines("began")
    process.send("SIGTERM")
    assert "" == process.end()
    (tmp_path / "began").unlink()
    process = start(target="slow_import:worker", before=container)
    process.lines("began")
    [first] = children_of(process.process.pid)
    os.kill(first, signal.SIGTERM)
    assert "" == process.end()


@pytest.mark.wide
def test_the_first_process_of_a_container_leaves_no_zombies_and_takes_no_exit_status(tmp_path, queue, start, container):
    for _ in range(3):
        queue.enqueue("orphans", b"")
    process = start("--concurrency", "1", before=container)
    process.lines("began", 6)
    [first] = children_of(process.process.pid)
    process.until(lambda: len(children_of(first)) == 1, "left with one child")
    os.kill(first, signal.SIGTERM)
    assert "3 succeeded" in process.end()


@pytest.mark.wide
@pytest.mark.skipif(not shutil.which("nohup"), reason="there is no nohup here")
def test_a_worker_under_nohup_goes_on_after_a_hang_up(tmp_path, queue, start):
    queue.enqueue("until told", b"")
    process = start(before=["nohup"])
    process.lines("began")
    process.send("SIGHUP")
    queue.enqueue("until told", b"")
    process.lines("began", 2)
    (tmp_path / "told").touch()
    process.send("SIGTERM")
    process.end()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("program", "MODULE:NAME"),
        ("absent:worker", "the module 'absent' is neither"),
        ("program:absent", "has no 'absent'"),
        ("program:idle", 'program:idle has no handlers: register one with @idle.handler("name")'),
        ("broken:worker", "SyntaxError"),
        ("program:worker damaged.json", "cannot be used"),
        (
            "program:worker memory:// --processes 2",
            "an in-memory queue is visible only to its own process: --processes",
        ),
        ("program:worker queue.json --reload", '--reload needs watchfiles: pip install "jqueue[reload]"'),
    ],
)
def test_a_wrong_target_or_queue_is_refused(tmp_path, monkeypatch, target, reason):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("def worker(:\n")
    (tmp_path / "damaged.json").write_text("this is no queue")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    program, *others = target.split()
    before = signal.getsignal(signal.SIGINT)
    result = run("worker", program, *(others or ["queue.json"]))
    assert signal.getsignal(signal.SIGINT) is before
    assert (2, "", True) == (result.exit_code, result.stdout, reason in result.stderr)
    assert all(line.startswith(("jqueue: ", " ", "SyntaxError")) for line in result.stderr.splitlines())
    assert "/cli/" not in result.stderr, "a traceback shows only the program"
    assert "this is no queue" == (tmp_path / "damaged.json").read_text()
    assert not (tmp_path / "queue.json").exists()


@pytest.mark.wide
def test_a_worker_without_a_queue_says_so_and_one_whose_queue_is_damaged_meanwhile_gives_up(tmp_path, queue, start):
    process = start("--give-up-after", "0")
    process.until_logged(f"there is no queue at {queue.path}: check the URL; the first")
    queue.enqueue("until told", b"")
    (tmp_path / "told").touch()
    process.lines("began")
    queue.path.write_text("this is no queue")
    last = process.end(status=2).splitlines()[-1]
    assert last.startswith(f"jqueue: the queue at {queue.path} cannot be used: ")


# The log


@pytest.mark.wide
def test_the_log_in_json_is_one_object_a_line_also_for_a_process_of_handlers(queue, start):
    jobs = {name: queue.enqueue(name, b"").id for name in ("apart", "fails", "note")}
    process = start("--drain", "--log-format", "json")
    records = [json.loads(line) for line in process.end(status=1).splitlines()]
    assert {f"worker@{socket.gethostname()}:{process.process.pid}"} == {record["worker"] for record in records}
    by_message = {record["message"]: record for record in records}
    assert ("INFO", "apart", jobs["apart"], 1, ".") == tuple(
        by_message["begins well"][name] for name in ("level", "entrypoint", "job_id", "attempt", "place")
    )
    assert ("ERROR", jobs["apart"]) == tuple(by_message["two\nlines"][name] for name in ("level", "job_id"))
    assert by_message["two\nlines"]["traceback"].endswith("ZeroDivisionError: division by zero")
    assert "not for everyone" not in by_message
    assert jobs["fails"] in {record["job_id"] for record in records if record["level"] == "ERROR"}


CONFIGURED = """
import logging
import logging.config

logging.getLogger("configured.part").warning("early %s", "line")
logging.config.dictConfig({"version": 1})

from program import worker
"""


@pytest.mark.wide
def test_the_log_names_the_job_of_each_line_and_shows_errors_on_request(tmp_path, queue, start):
    """Also if a program disables the loggers that there are before it sets up its own."""
    (tmp_path / "configured.py").write_text(CONFIGURED)
    jobs = {name: queue.enqueue(name, b"S3CR3T").id for name in ("note", "fails", "apart")}
    log = start("--drain", "--show-errors", target="configured:worker").end(status=1)
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


@pytest.mark.parametrize(
    ("value", "shown"), [({"a": [1]}, {"a": [1]}), (math.nan, "nan"), ({(1, 2): 3}, "{(1, 2): 3}")]
)
def test_a_record_in_json_has_the_extra_of_its_call_and_is_valid_json(value, shown):
    extra = {"order": value, "worker": "mine", "place": pathlib.Path("here")}
    record = logging.getLogger("program").makeRecord("program", 20, __file__, 1, "sold", (), None, extra=extra)
    values = json.loads(JSONFormatter().format(record), parse_constant=pytest.fail)
    assert {"time", "level", "logger", "message", "worker", "order", "extra_worker", "place"} == values.keys()
    assert (None, shown, "mine", "here") == tuple(values[name] for name in ("worker", "order", "extra_worker", "place"))


# Several processes


def test_a_signal_stops_all_processes_in_order_and_the_parent_exits_with_0(tmp_path, queue, start):
    parent, pids = busy(queue, start, 2)
    parent.send("SIGTERM")
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)  # a service manager sends it to all processes, and the parent has passed it on
    time.sleep(TICK)  # leaves time for a second stop, which would hand the jobs back at once
    (tmp_path / "told").touch()
    parent.end()
    assert {} == queue.jobs()
    assert len(re.findall(r"worker-[12] stopped: 1 succeeded", parent.log)) == 2


@pytest.mark.wide
def test_each_process_has_probes_and_they_stop_in_order_when_their_parent_is_killed(tmp_path, queue, start):
    port = two_free_ports()
    parent, pids = busy(queue, start, 2, "--health", f"127.0.0.1:{port}")
    parent.until_logged("probes at http", times=2)
    names = set()
    for each in (port, port + 1):
        with urllib.request.urlopen(f"http://127.0.0.1:{each}/healthz", timeout=PATIENCE) as answer:
            names.update(re.findall(rb"worker-\d", answer.read()))
    assert {b"worker-1", b"worker-2"} == names
    parent.process.kill()
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    (tmp_path / "told").touch()
    parent.until(lambda: not any(map(is_there, pids)), "ended with their parent")
    assert {} == queue.jobs()


@pytest.mark.wide
def test_a_process_that_is_killed_is_replaced_and_a_second_signal_ends_all_at_once(queue, start):
    parent, pids = busy(queue, start, 2)
    queue.enqueue("until told", b"")
    os.kill(pids[0], signal.SIGKILL)
    living = [int(parent.lines("began", 3)[2]), pids[1]]
    assert living[0] not in pids
    assert re.search(rf"worker process [12] \(pid {pids[0]}\) ended by SIGKILL: another one is started", parent.log)
    parent.send("SIGTERM")
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    assert all(map(is_there, living))
    parent.send("SIGTERM")
    parent.end()
    assert {(1, 0), (1, 1)} == {(job.attempt, job.failures) for job in queue.read_state().queued_jobs()}


@pytest.mark.wide
def test_a_worker_is_renewed_after_its_jobs_which_is_no_crash_and_alone_it_exits_with_0(tmp_path, queue, start):
    (tmp_path / "told").touch()
    for _ in range(2):
        queue.enqueue("until told", b"")
    parent = start("--processes", "1", "--concurrency", "1", "--max-jobs", "1")
    assert 2 == len(set(parent.lines("began", 2)))
    parent.send("SIGTERM")
    assert "another one is started" not in parent.end()
    queue.enqueue("until told", b"")
    assert "worker has done 1 job: it finishes" in start("--max-jobs", "1").end()


def test_a_mistake_is_printed_by_one_process(tmp_path, start):
    (tmp_path / "queue.json").write_text("this is no queue")
    parent = start("--processes", "2")
    parent.end(status=2)
    assert 1 == len(parent.log.splitlines()), parent.log


@pytest.mark.wide
def test_a_drain_ends_when_all_processes_have_ended_with_the_worst_status(tmp_path, queue, start):
    for entrypoint in (*["note"] * 20, "fails"):
        queue.enqueue(entrypoint, b"1")
    start("--processes", "2", "--drain").end(status=1)
    assert 20 == len((tmp_path / "notes").read_text().split())


def nothing_to_do(number, has_begun):
    has_begun()
    return 0


def crash(number, has_begun):
    os._exit(7)


def test_a_process_that_ends_at_once_again_and_again_ends_all_and_a_program_keeps_its_signals(monkeypatch, caplog):
    """A Supervisor runs in any thread."""
    monkeypatch.setattr("jqueue.cli.supervisor.MOST", 2)
    before = [signal.getsignal(number) for number in SIGNALS]
    with ThreadPoolExecutor() as threads:
        assert 0 == threads.submit(Supervisor(nothing_to_do, 1, {0}).supervise).result()
    assert 2 == Supervisor(crash, 1, {0}).supervise()
    assert before == [signal.getsignal(number) for number in SIGNALS]
    first, second = caplog.messages
    assert first.endswith("ended with status 7: another one is started in 0.25 s")
    assert second.endswith("ended with status 7, the 2th time in a row at once: all are stopped")


def two_free_ports():
    """Return the first of two free ports, below those that connections of other programs get."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


# --reload


@pytest.mark.wide
def test_a_worker_starts_anew_when_its_program_changes_and_waits_for_a_change_after_an_error(tmp_path, queue, start):
    (tmp_path / "program.py").write_text("def broken(:\n")
    parent = start("--reload")
    parent.until_logged("worker process 1 has ended with status 2: waiting for a change")
    (tmp_path / "program.py").write_text(PROGRAM)
    parent.until_logged("worker started:")
    assert 1 == parent.log.count("SyntaxError")
    assert "program.py changed: the worker is started anew" in parent.log
    queue.enqueue("until told", b"")
    parent.lines("began")
    (tmp_path / "program.py").write_text(PROGRAM.replace("{text}", "new {text}"))
    parent.until_logged("worker is stopping: waiting for 1 job")
    (tmp_path / "told").touch()
    parent.until_logged("worker started:", times=2)
    assert {} == queue.jobs()
    queue.enqueue("note", b"1")
    assert ["new", "1"] == parent.lines("notes")
    parent.send("SIGTERM")
    parent.end()


def test_a_folder_that_cannot_be_watched_is_told_without_a_traceback(tmp_path, start):
    (tmp_path / "watchfiles.py").write_text(
        "class PythonFilter: pass\ndef watch(*args, **options):\n    raise RuntimeError('no watches left')\n    yield\n"
    )
    parent = start("--reload")
    parent.end(status=2)
    assert "jqueue: --reload cannot watch this folder: no watches left; with WATCHFILES_FORCE_POLLING=1" in parent.log
    assert "Traceback" not in parent.log
