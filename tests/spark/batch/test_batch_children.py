"""A handler that ends or blocks its process costs only its own job an attempt. Without Spark."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jqueue.spark.batch.child_listener import ChildTimeouts
from jqueue.worker import Worker
from tests.spark.batch.child_scenes import Diary, crash, done_by, jobs_of, make_worker, needs_fork

pytestmark = [pytest.mark.wide, needs_fork]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


def close_everything():
    os.closerange(3, 4096)


def interrupt():
    raise KeyboardInterrupt


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


ENDS = {
    "exits": (lambda: os._exit(3), "ended with exit code 3"),
    "exits as if all was well": (lambda: os._exit(0), "ended with exit code 0"),
    "kills itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
    "is terminated": (terminate, "was ended by SIGTERM"),
    "interrupts itself": (lambda: os.kill(os.getpid(), signal.SIGINT), "was ended by SIGINT"),
    "raises KeyboardInterrupt": (interrupt, "ended with exit code 130"),
    "aborts": (os.abort, "was ended by SIGABRT: it crashed"),
    "crashes": (crash, "was ended by SIGSEGV: it crashed"),
    "closes all files": (close_everything, "ended"),
    "kills its group": (lambda: os.killpg(0, signal.SIGKILL), "was ended by SIGKILL"),
}


@pytest.mark.parametrize(("misdeed", "told"), ENDS.values(), ids=ENDS.keys())
def test_a_handler_that_ends_its_process_is_the_only_one_charged(misdeed, told):
    jobs = jobs_of(*[b"good"] * 7, b"bad", *[b"good"] * 12)
    outcomes = done_by(make_worker(misdeed), jobs)
    assert [job.claim for job in jobs] == [outcome.claim for outcome in outcomes]
    assert {7: "killed"} == {number: each.kind for number, each in enumerate(outcomes) if each.kind != "done"}
    assert outcomes[7].error is not None
    assert outcomes[7].error.startswith(f"the process of the handler {told}")


def test_each_handler_that_ends_its_process_is_found_and_other_jobs_are_done():
    jobs = jobs_of(*[b"bad", b"good", b"good"] * 8)
    kinds = Counter(outcome.kind for outcome in done_by(make_worker(lambda: os._exit(1), concurrency=4), jobs))
    assert Counter(done=16, killed=8) == kinds


def test_jobs_not_begun_when_a_process_ends_are_begun_once(diary):
    worker = Worker(concurrency=3)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        await asyncio.sleep(0.01)
        if payload == b"0":
            os._exit(1)

    payloads = [b"%d" % number for number in range(20)]
    done_by(worker, jobs_of(*payloads))
    times = Counter(diary.read())
    assert dict.fromkeys(map(str, range(3, 20)), 1) == {name: times[name] for name in map(str, range(3, 20))}
    assert {"0": 2, "1": 2, "2": 2} == {name: times[name] for name in "012"}, "begun, and then each alone"


def test_the_handler_that_ended_its_process_is_found_by_running_suspects_alone(diary):
    worker, last_has_begun, never = Worker(concurrency=3), asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(f"{payload.decode()} {os.getpid()}")
        if worker.concurrency > 1 and payload != b"rest":  # three run side by side
            if payload == b"last":
                last_has_begun.set()
            await (last_has_begun if payload == b"bad" else never).wait()
        if payload == b"bad":
            os._exit(1)

    done_by(worker, jobs_of(b"good", b"bad", b"last", b"rest"))
    lines = [line.split() for line in diary.read()]
    assert Counter(good=2, bad=3, last=2, rest=1) == Counter(name for name, _ in lines)
    [*_, final] = [pid for name, pid in lines if name == "bad"]
    assert ["bad"] == [name for name, pid in lines if pid == final]
    assert 4 == len({pid for _, pid in lines}) - 1


def test_outcomes_reported_before_a_process_ended_are_not_repeated(diary):
    worker = Worker(concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        if payload == b"bad":
            os._exit(1)

    done_by(worker, jobs_of(b"first", b"second", b"bad", b"last"))
    assert ["first", "second", "bad", "bad", "last"] == diary.read()


def test_a_handler_that_ends_its_process_only_beside_others_charges_no_job(tmp_path):
    worker, mark = Worker(concurrency=5), tmp_path / "killed once"

    @worker.handler("work")
    async def work() -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    assert {"done"} == {outcome.kind for outcome in done_by(worker, jobs_of(*[b""] * 10))}


def test_a_handler_in_a_thread_that_ends_its_process_is_charged():
    worker = Worker(concurrency=3)

    @worker.handler("work")
    def work(payload: bytes) -> None:
        if payload == b"bad":
            os._exit(9)

    outcomes = done_by(worker, jobs_of(b"good", b"bad", b"good", b"good"))
    assert ["done", "killed", "done", "done"] == [outcome.kind for outcome in outcomes]


def test_output_of_handlers_is_not_mixed_with_messages_to_the_parent(capfd):
    worker = Worker()

    @worker.handler("work")
    def work(payload: bytes) -> None:
        print(f"printed {payload.decode()}")
        os.write(1, b"\0\0\0\1written\n" * 2000)
        subprocess.run(["echo", "by another process"], check=True)

    assert ["done"] * 3 == [outcome.kind for outcome in done_by(worker, jobs_of(b"1", b"2", b"3"))]
    told = capfd.readouterr().out
    assert 3 == told.count("by another process")
    assert ["1", "2", "3"] == sorted(told.count(f"printed {number}") * str(number) for number in (1, 2, 3))


def test_output_buffered_before_the_fork_is_printed_once():
    program = """
import sys
from tests.spark.batch.child_scenes import done_by, jobs_of, make_worker
sys.stdout.write("once")
done_by(make_worker(lambda: None), jobs_of(b"", b""))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "once" == done.stdout


def test_invalid_data_in_the_pipe_counts_as_the_end_of_the_process(monkeypatch):
    pipes, pipe = [], os.pipe

    def noted():
        pipes.append(pipe())
        return pipes[-1]

    def scribble():
        os.write(pipes[-1][1], b"\0\0\0\4junk")

    monkeypatch.setattr(os, "pipe", noted)
    outcomes = done_by(make_worker(scribble), jobs_of(b"good", b"bad", b"good"))
    assert ["done", "killed", "done"] == [outcome.kind for outcome in outcomes]
    assert "the process of the handlers wrote to a pipe of jqueue" == outcomes[1].error


@pytest.mark.parametrize("hang", [lambda: time.sleep(60), lambda: [0 for _ in iter(int, 1)]], ids=["asleep", "busy"])
def test_a_handler_that_blocks_the_event_loop_is_ended_and_is_the_only_one_charged(hang):
    worker = Worker(concurrency=3, cancel_grace=0.05)

    @worker.handler("work", timeout=0.1)
    async def work(payload: bytes) -> None:
        if payload == b"slow":
            hang()

    outcomes = done_by(worker, jobs_of(b"", b"", b"slow", b"", b""))
    assert ["done", "done", "overdue", "done", "done"] == [outcome.kind for outcome in outcomes]


def test_each_handler_that_blocks_the_event_loop_is_waited_for_once(diary):
    worker = Worker(concurrency=10, cancel_grace=0.05)

    @worker.handler("work", timeout=0.1)
    async def work(payload: bytes) -> None:
        await asyncio.sleep(0)
        if payload == b"slow":
            diary.note(payload.decode())
            time.sleep(60)

    outcomes = done_by(worker, jobs_of(*[b"", b"slow", b"", b""] * 4), ChildTimeouts(late=60))
    assert Counter(done=12, overdue=4) == Counter(outcome.kind for outcome in outcomes)
    assert ["slow"] * 4 == diary.read()


def test_a_handler_may_block_the_event_loop_for_less_than_its_timeout(diary):
    worker = Worker(concurrency=10)

    @worker.handler("work", timeout=30)
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        time.sleep(0.6 if payload == b"slow" else 0)

    assert ["done"] * 4 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b"slow", b"", b""))]
    assert 4 == len(diary.read())


def test_a_worker_that_hangs_after_its_jobs_is_ended():
    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield
        time.sleep(60)

    @worker.handler("work")
    async def work() -> None: ...

    began = time.monotonic()
    assert ["done"] * 3 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b"", b""))]
    assert time.monotonic() - began < 20


def test_threads_that_handlers_leave_running_delay_nothing():
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)

    began = time.monotonic()
    assert ["done"] == [outcome.kind for outcome in done_by(worker, jobs_of(b""))]
    assert time.monotonic() - began < 20


def test_processes_that_handlers_leave_behind_end_with_theirs_and_delay_nothing(diary):
    def fork():
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        diary.note(subprocess.Popen(["sleep", "60"]).pid)
        os._exit(5)

    began = time.monotonic()
    outcomes = done_by(make_worker(fork), jobs_of(b"bad", b"good"))
    assert [("killed", "the process of the handler ended with exit code 5"), ("done", None)] == [
        (outcome.kind, outcome.error) for outcome in outcomes
    ]
    assert time.monotonic() - began < 20
    assert diary.read()
    assert not [pid for pid in diary.read() if _goes_on(int(pid))]


def _goes_on(pid):
    """True if a process still runs after two seconds; a zombie does not count."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
            state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        except ProcessLookupError:
            return False
        if not state.strip() or state.startswith("Z"):
            return False
        time.sleep(0.01)
    return True


def test_garbage_of_the_parent_is_not_finalized_in_the_child(diary):
    class Connection:
        def __init__(self):
            self.itself = self

        def __del__(self):
            diary.note(os.getpid())

    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        gc.collect()

    gc.disable()
    try:
        Connection()
        done_by(worker, jobs_of(b""))
        assert [] == diary.read()
    finally:
        gc.enable()
    gc.collect()
    assert [str(os.getpid())] == diary.read()


def children_and_pipes():
    """The child processes of this process and the number of its open files. Other tests run in other processes."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        return None
    children = {child for task in tasks.iterdir() for child in (task / "children").read_text().split()}
    return children, len(os.listdir("/proc/self/fd"))


def test_no_process_and_no_pipe_remains():
    before = children_and_pipes()
    done_by(make_worker(lambda: os._exit(1)), jobs_of(b"bad", b"good"))
    assert before == children_and_pipes()


def test_handlers_run_in_the_task_on_systems_without_fork(monkeypatch, diary):
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        diary.note(os.getpid())

    monkeypatch.delattr(os, "fork")
    assert ["done"] * 2 == [outcome.kind for outcome in done_by(worker, jobs_of(b"", b""))]
    assert [str(os.getpid())] * 2 == diary.read()


def test_a_child_ends_when_its_parent_is_killed(diary):
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        diary.note(os.getpid())
        time.sleep(60)

    parent = os.fork()
    if parent == 0:
        done_by(worker, jobs_of(b""))
        os._exit(0)
    while not diary.read():
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    [pid] = diary.read()
    assert not _goes_on(int(pid))
