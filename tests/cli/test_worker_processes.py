"""`jqueue worker --processes N` and `--reload`, as users run them: real processes below one parent."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import pytest

from jqueue.cli.supervisor import TICK
from tests.cli.commands import PATIENCE, Blocking, run

PROGRAM = """
import asyncio
import os
import pathlib

from jqueue.worker import Worker

worker = Worker(concurrency=1, grace=60)
VERSION = 1


@worker.handler("note")
async def note() -> None:
    with pathlib.Path("notes").open("a") as notes:
        notes.write(f"{VERSION}\\n")


@worker.handler("until told")
async def until_told() -> None:
    with pathlib.Path("began").open("a") as began:
        began.write(f"{os.getpid()}\\n")
    while not pathlib.Path("told").exists():
        await asyncio.sleep(0.01)


@worker.handler("apart", process=True)
def apart() -> None:
    asyncio.run(note())


@worker.handler("fails", max_attempts=1)
async def fails() -> None:
    1 / 0
"""

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals"),
    pytest.mark.xdist_group("worker processes"),
]


class Parent:
    """The parent of worker processes in a folder, and what all of them have written to the log."""

    def __init__(self, folder, *arguments, target="program:worker", **options):
        self.folder = folder
        self.path = folder / "log"
        with self.path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jqueue", "worker", target, *arguments],
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

    def lines(self, name, count):
        """Wait until a file has lines, and return them."""
        return self.until(
            lambda: len(lines := (self.folder / name).read_text().split() if (self.folder / name).exists() else [])
            >= count and lines,
            f"{count} lines in {name}",
        )  # fmt: skip

    def end(self):
        """Wait for the end, and return the exit status."""
        return self.process.wait(PATIENCE)


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
    parents = []

    def start(*arguments, **options):
        parents.append(Parent(tmp_path, "queue.json", *arguments, **options))
        return parents[-1]

    yield start
    for parent in parents:
        parent.process.kill()  # its processes notice that
        parent.process.wait()


def busy(queue, start, count, *arguments, **options):
    """Start processes that each do one job until it is told to end. Return the parent and their ids."""
    for _ in range(count):
        queue.enqueue("until told", b"")
    parent = start("--processes", str(count), *arguments, **options)
    pids = [int(line) for line in parent.lines("began", count)]
    assert count == len(set(pids))
    assert parent.process.pid not in pids
    return parent, pids


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.wide)])
def test_a_signal_stops_all_processes_in_order_and_the_parent_exits_with_0(tmp_path, queue, start, name):
    parent, _ = busy(queue, start, 2)
    parent.process.send_signal(getattr(signal, name))
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    (tmp_path / "told").touch()
    assert 0 == parent.end()
    assert {} == queue.jobs()
    assert len(re.findall(r"worker-[12] stopped: 1 succeeded", parent.log)) == 2


@pytest.mark.wide
def test_ctrl_c_in_a_terminal_reaches_each_process_once(tmp_path, queue, start):
    parent, _ = busy(queue, start, 2, start_new_session=True)
    os.killpg(parent.process.pid, signal.SIGINT)  # as a terminal does
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    time.sleep(3 * TICK)  # leaves time for a second signal, which would hand the jobs back at once
    (tmp_path / "told").touch()
    assert 0 == parent.end()
    assert {} == queue.jobs()


@pytest.mark.wide
def test_a_second_signal_ends_all_at_once(queue, start):
    parent, pids = busy(queue, start, 2)
    parent.process.send_signal(signal.SIGTERM)
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    assert all(map(is_there, pids))
    parent.process.send_signal(signal.SIGTERM)
    assert 0 == parent.end()
    assert {(1, 0)} == {(job.attempt, job.failures) for job in queue.read_state().queued_jobs()}


@pytest.mark.wide
def test_processes_stop_in_order_when_their_parent_is_killed(tmp_path, queue, start):
    parent, pids = busy(queue, start, 2)
    parent.process.kill()
    parent.until_logged(r"worker-[12] is stopping: waiting for 1 job", times=2)
    (tmp_path / "told").touch()
    parent.until(lambda: not any(map(is_there, pids)), "ended with their parent")
    assert {} == queue.jobs()


@pytest.mark.wide
def test_a_process_that_is_killed_is_replaced(tmp_path, queue, start):
    parent, pids = busy(queue, start, 2)
    queue.enqueue("until told", b"")
    os.kill(pids[0], signal.SIGKILL)
    assert int(parent.lines("began", 3)[2]) not in pids
    assert re.search(rf"worker process [12] \(pid {pids[0]}\) ended by SIGKILL: another one is started", parent.log)
    parent.process.send_signal(signal.SIGTERM)
    (tmp_path / "told").touch()
    assert 0 == parent.end()


@pytest.mark.wide
def test_a_process_that_ends_at_once_again_and_again_ends_all(tmp_path, start):
    (tmp_path / "crash.py").write_text("import os\nos._exit(7)\n")
    parent = start("--processes", "1", target="crash:worker")
    assert 2 == parent.end()
    assert 4 == parent.log.count("ended with status 7: another one is started in")
    assert "ended with status 7, the 5th time in a row at once: all are stopped" in parent.log


@pytest.mark.parametrize("target", ["program:missing", "program:worker"])
def test_a_mistake_is_printed_by_one_process(tmp_path, start, target):
    if target == "program:worker":
        (tmp_path / "queue.json").write_text("this is no queue")
    parent = start("--processes", "4", target=target)
    assert 2 == parent.end()
    assert 1 == len(parent.log.splitlines()), parent.log


@pytest.mark.wide
def test_a_drain_ends_when_all_processes_have_ended_with_the_worst_status(tmp_path, queue, start):
    for entrypoint in (*["note"] * 20, "apart", "fails"):
        queue.enqueue(entrypoint, b"")
    assert 1 == start("--processes", "2", "--drain").end()
    assert 21 == len((tmp_path / "notes").read_text().split())
    assert 0 == start("--processes", "2", "--drain").end()
    (tmp_path / "queue.json").write_text("this is no queue")
    assert 2 == start("--processes", "2").end()


def two_free_ports():
    """Return the first of two free ports, below those that connections of other programs get."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port


@pytest.mark.wide
def test_each_process_has_probes_at_a_port_of_its_own(queue, start):
    port = two_free_ports()
    parent, _ = busy(queue, start, 2, "--health", f"127.0.0.1:{port}")
    parent.until_logged("probes at http", times=2)
    names = set()
    for each in (port, port + 1):
        with urllib.request.urlopen(f"http://127.0.0.1:{each}/healthz", timeout=PATIENCE) as answer:
            names.update(re.findall(rb"worker-\d", answer.read()))
    assert {b"worker-1", b"worker-2"} == names


def test_processes_cannot_share_a_queue_in_memory():
    result = run("worker", "program:worker", "memory://", "--processes", "2")
    assert (2, "") == (result.exit_code, result.stdout)
    assert "an in-memory queue is visible only to its own process: --processes needs a file or a store" in result.stderr


# --reload


def test_a_worker_starts_anew_when_its_program_changes_and_waits_for_a_change_after_an_error(tmp_path, queue, start):
    parent = start("--reload")
    parent.until_logged("worker started:")
    (tmp_path / "program.py").write_text("def broken(:\n")
    parent.until_logged("worker process 1 has ended with status 2: waiting for a change")
    assert "SyntaxError" in parent.log
    assert "program.py changed: the worker is started anew" in parent.log
    (tmp_path / "program.py").write_text(PROGRAM.replace("VERSION = 1", "VERSION = 22"))
    queue.enqueue("note", b"")
    assert ["22"] == parent.lines("notes", 1)
    parent.process.send_signal(signal.SIGTERM)
    assert 0 == parent.end()


@pytest.mark.wide
def test_a_change_lets_running_jobs_finish(tmp_path, queue, start):
    parent = start("--reload")
    queue.enqueue("until told", b"")
    parent.lines("began", 1)
    (tmp_path / "another.py").write_text("1")
    parent.until_logged("worker is stopping: waiting for 1 job")
    (tmp_path / "told").touch()
    parent.until_logged("worker started:", times=2)
    assert {} == queue.jobs()


def test_reload_without_watchfiles_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    result = run("worker", "program:worker", "queue.json", "--reload")
    assert (2, 'jqueue: --reload needs watchfiles: pip install "jqueue[reload]"\n') == (result.exit_code, result.stderr)


def test_a_broken_program_is_printed_by_one_process_until_it_is_mended(tmp_path, queue, start):
    (tmp_path / "program.py").write_text("def broken(:\n")
    parent = start("--processes", "3", "--reload")
    parent.until_logged("worker process 1 has ended with status 2: waiting for a change")
    (tmp_path / "program.py").write_text(PROGRAM)
    parent.until_logged(r"worker-[123] started:", times=3)
    assert 1 == parent.log.count("SyntaxError")
    parent.process.send_signal(signal.SIGTERM)
    assert 0 == parent.end()


def test_a_folder_that_cannot_be_watched_is_told_without_a_traceback(tmp_path, start):
    (tmp_path / "watchfiles.py").write_text(
        "class PythonFilter: pass\ndef watch(*args, **options):\n    raise RuntimeError('no watches left')\n    yield\n"
    )
    parent = start("--reload")
    assert 2 == parent.end()
    assert "jqueue: --reload cannot watch this folder: no watches left; with WATCHFILES_FORCE_POLLING=1" in parent.log
    assert "Traceback" not in parent.log
