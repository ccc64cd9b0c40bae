"""Handlers of a batch in processes of their own: one that ends or blocks its process is alone charged."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import record_of
from jqueue.operations import Enqueue
from jqueue.spark import BatchFailedError, run_batch
from jqueue.spark.batch import children
from jqueue.spark.batch.marks import DONE, OVER, Marks
from jqueue.spark.batch.worker_pickle import pickled
from jqueue.spark.claims import ClaimedJobs
from jqueue.spark.staging import Staging
from jqueue.worker import Context, Discard, Worker
from tests.spark.imitated_session import Session
from tests.spark.spark_calls import call, enqueue, left_in
from tests.spark.step_stores import Fault, told
from tests.spark.test_batch import works

pytestmark = [pytest.mark.wide, pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")]


def run(url, worker, **options):
    session: object = Session()
    return run_batch(session, url, worker, partitions=1, **options)  # type: ignore[arg-type]


class Diary:
    """Lines that handlers in any process write to a file."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def note(self, text):
        with self.path.open("a") as file:
            file.write(f"{text}\n")

    def read(self):
        return self.path.read_text().splitlines()


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "diary")


def interrupt():
    raise KeyboardInterrupt


ENDS = {
    "exits as if all was well": (lambda: os._exit(0), "ended with exit code 0"),
    "kills itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
    "crashes": (lambda: ctypes.string_at(0), "was ended by SIGSEGV: it crashed"),
    "kills its group": (lambda: os.killpg(0, signal.SIGKILL), "was ended by SIGKILL"),
    "interrupts itself": (lambda: signal.raise_signal(signal.SIGINT), "was ended by SIGINT"),
    "raises KeyboardInterrupt": (interrupt, "ended with exit code 130"),
}


@pytest.mark.parametrize(("end", "threads"), [*((end, False) for end in ENDS), ("kills itself", True)])
def test_a_handler_that_ends_its_process_is_found_and_is_the_only_one_charged(url, end, threads):
    misdeed, words = ENDS[end]
    worker = Worker(concurrency=5)

    async def waiting(payload: bytes) -> None:
        await asyncio.sleep(0)
        if payload == b"bad":
            misdeed()

    def quick(payload: bytes) -> None:
        if payload == b"bad":
            misdeed()

    worker.handler("work")(quick if threads else waiting)
    enqueue(url, works(*[b"good"] * 7, b"bad", *[b"good"] * 7, b"bad", b"good"))
    report = run(url, worker)
    assert (17, 15, 2, 2) == (report.claimed, report.succeeded, report.failed, report.killed)
    left = left_in(url)
    assert ([b"bad"], 1) == ([*left], left[b"bad"].failures)
    assert left[b"bad"].error.startswith("ProcessDied: the process of the handler")
    assert words in left[b"bad"].error


def test_executors_do_not_call_the_function_for_dead_jobs_as_the_driver_commits(url, diary):
    worker = Worker(on_dead=lambda job: diary.note(job.id))

    @worker.handler("work", max_attempts=1)
    async def work(payload: bytes) -> None:
        raise ValueError

    enqueue(url, works(b"", b""))
    assert (2, []) == (run(url, worker).dead, diary.read())


def test_retry_of_the_worker_decides_about_a_job_whose_process_has_died(url):
    worker = Worker(retry={Exception: Discard})

    @worker.handler
    async def work() -> None:
        os._exit(1)

    enqueue(url, works(0))
    assert (1, 1) == ((report := run(url, worker)).dead, report.killed)


def test_jobs_that_a_dead_process_had_begun_are_done_again_alone_and_all_others_once(url, diary):
    worker = Worker(concurrency=3)

    @worker.handler("work")
    async def work(number: int) -> None:
        diary.note(number)
        if number == 0:
            while len(diary.read()) < 5:
                await asyncio.sleep(0.01)
            os._exit(1)
        if number in (2, 4) and diary.read().count(f"{number}") == 1:
            await asyncio.Event().wait()

    enqueue(url, works(*range(20)))
    report = run(url, worker)
    times = Counter(map(int, diary.read()))
    assert (19, 1) == (report.succeeded, report.killed)
    assert {number: 2 if number in (0, 2, 4) else 1 for number in range(20)} == times


def test_a_job_is_not_charged_for_a_process_in_which_another_was_done_before(url, diary):
    worker = Worker(concurrency=2)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        diary.note(payload.decode())
        times = diary.read().count(payload.decode())
        if payload == b"bomb":
            while b"other" not in diary.path.read_bytes() and times == 1:
                await asyncio.sleep(0.01)
            threading.Timer(0.3 if times == 2 else 0, os._exit, [1]).start()
            await asyncio.sleep(60 if times == 1 else 0)
        elif times < 3:
            await asyncio.Event().wait()

    enqueue(url, works(b"bomb", b"other"))
    report = run(url, worker)
    assert (2, 0) == (report.succeeded, report.killed)


def test_jobs_that_a_worker_has_handed_back_are_neither_done_again_nor_charged_if_its_process_dies_then(url, diary):
    @asynccontextmanager
    async def lifespan():
        yield
        os._exit(7)

    worker = Worker(concurrency=3, lifespan=lifespan, grace=0.1, cancel_grace=0.1)

    @worker.handler("work")
    async def work(number: int) -> None:
        diary.note(number)
        worker.stop()
        await asyncio.Event().wait()

    enqueue(url, works(*range(3)))
    report = run(url, worker)
    assert (3, 0) == (report.handed_back, report.killed)
    assert ["0", "1", "2"] == sorted(diary.read())


@pytest.mark.parametrize("hang", [lambda: time.sleep(600), lambda: [0 for _ in iter(int, 1)]], ids=["asleep", "busy"])
def test_a_handler_that_blocks_the_event_loop_beyond_its_timeout_is_ended_and_alone_charged(url, hang, monkeypatch):
    monkeypatch.setattr(children, "LATE", 0.2)
    worker = Worker(concurrency=3, cancel_grace=0.05)

    @worker.handler("work", timeout=600)
    async def work() -> None: ...

    @worker.handler("slow", timeout=0.1)
    async def slow() -> None:
        hang()

    enqueue(url, [*works(0, 1), Enqueue("slow", b"slow"), *works(3, 4)])
    report = run(url, worker)
    assert (4, 1) == (report.succeeded, report.failed)
    [(payload, job)] = left_in(url).items()
    assert (b"slow", 1) == (payload, job.failures)
    assert "and still ran after it was told to stop: its process was ended" in job.error


def test_a_handler_without_a_timeout_has_that_of_the_batch_and_one_that_stops_in_time_keeps_its_process(url, diary):
    worker = Worker(concurrency=5, cancel_grace=600)

    @worker.handler("work", timeout=600)
    async def work() -> None:
        diary.note(os.getpid())

    @worker.handler("slow")
    async def slow() -> None:
        diary.note(os.getpid())
        await asyncio.Event().wait()

    enqueue(url, [Enqueue("slow", b"slow"), *works(*range(9))])
    report = run(url, worker, timeout=0.2)
    assert (9, 1) == (report.succeeded, report.failed)
    assert "timed out after 0.2 s" == left_in(url)[b"slow"].error
    assert 1 == len(set(diary.read()))


def test_what_handlers_leave_running_delays_nothing_and_ends_with_their_process(url, diary, monkeypatch):
    """Threads, processes, a lifespan that hangs at its end."""
    monkeypatch.setattr(children, "END", 0.2)
    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        yield
        time.sleep(600)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        threading.Thread(target=time.sleep, args=(600,)).start()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        if payload == b"bad":
            diary.note(subprocess.Popen(["sleep", "600"]).pid)
            os._exit(5)

    enqueue(url, works(b"good", b"bad"))
    before = processes()
    report = run(url, worker)
    assert (1, 1) == (report.succeeded, report.killed)
    assert before == processes()
    until_gone(diary.read())


def processes():
    tasks = Path("/proc/self/task")
    return {each for task in tasks.iterdir() for each in (task / "children").read_text().split()}


def until_gone(pids):
    """Wait until processes have ended. A zombie has."""
    deadline = time.monotonic() + 60
    while pids := [pid for pid in pids if _is_there(pid)]:
        assert time.monotonic() < deadline, f"{pids} go on"
        time.sleep(0.01)


def _is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_handlers_end_when_their_task_is_killed(url, diary):
    worker = Worker()

    @worker.handler("work")
    async def work() -> None:
        diary.note(os.getpid())
        time.sleep(600)

    enqueue(url, works(b""))
    driver = os.fork()
    if driver == 0:
        run(url, worker)
        os._exit(0)
    while not diary.read():
        time.sleep(0.01)
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    until_gone(diary.read())


def test_output_of_handlers_does_not_mix_with_messages_and_results_of_any_kind_arrive(url, capfd):
    worker = Worker()

    @worker.handler("work")
    def work(payload: bytes) -> object:
        os.write(1, b"\0\0\0\1written\n" * 2000)
        subprocess.run(["echo", "by another process"], check=True)
        return {b"none": None, b"lock": threading.Lock(), b"huge": "x" * 10**6, b"large": "é" * 30_000}[payload]

    enqueue(url, works(b"none", b"lock", b"huge", b"large", keep_result=60))
    report = run(url, worker)
    assert (4, 0) == (report.succeeded, report.dead)
    assert {None, "é" * 30_000} == {job.result for job in call(url, jobs)}
    assert 2 == len(call(url, jobs)), "a result that cannot be kept is missing"
    assert 4 == capfd.readouterr().out.count("by another process")


def test_none_is_a_result_that_a_handler_keeps_and_each_job_that_is_done_is_logged_on_request(url, capfd):
    worker = Worker(log_done=True)

    @worker.lifespan
    @asynccontextmanager
    async def lifespan():
        logging.basicConfig(level="INFO", stream=sys.stderr, force=True)
        yield

    @worker.handler("work", keep_result=60)
    async def work(payload: bytes) -> None: ...

    @worker.handler("quiet")
    async def quiet(payload: bytes) -> None: ...

    enqueue(url, [*works(b""), Enqueue("quiet", b"")])
    assert 2 == run(url, worker).succeeded
    assert [("work", "completed", None)] == [(job.entrypoint, job.status, job.result) for job in call(url, jobs)]
    assert 2 == capfd.readouterr().err.count(" is done after ")


async def jobs(queue):
    return [job async for job in queue.iterate_jobs()]


def test_without_fork_handlers_run_in_the_task_and_a_worker_keeps_its_settings(url, diary, monkeypatch):
    local = Worker()

    @local.handler("work")
    async def work() -> None:
        diary.note(os.getpid())

    before = local.settings, local.handlers["work"].options
    enqueue(url, works(b"", b""))
    monkeypatch.delattr(os, "fork")  # as on Windows
    monkeypatch.setattr(children, "unpickled", lambda _: local)  # a task that Spark runs in the same process again
    assert 2 == run(url, local, timeout=7).succeeded
    assert [str(os.getpid())] * 2 == diary.read()
    assert before == (local.settings, local.handlers["work"].options)


# A worker on its way to executors


worker = Worker()


@worker.handler("work")
async def nothing() -> None: ...


def test_a_worker_in_a_module_is_imported_by_its_name_and_must_be_there(url, monkeypatch):
    enqueue(url, works(1))
    assert 1 == run(url, worker).succeeded
    enqueue(url, works(2))
    session: object = Session(lambda number: monkeypatch.delattr(sys.modules[__name__], "worker"))
    with pytest.raises(BatchFailedError, match=f"the module {__name__} has no worker 'worker' on executors"):
        run_batch(session, url, worker, partitions=1)  # type: ignore[arg-type]


def test_the_worker_of_a_partition_reads_nothing_of_the_queue_by_itself(url, steps):
    """A look at its cron entries would read all of its jobs, once for each partition."""
    enqueue(url, works(1, 2))
    jobs = [record_of(job) for job in call(url, lambda queue: queue.dequeue(batch_size=2))]
    task = children.BatchTask(pickled(worker), Staging(steps, 60.0), "a")
    with told(requests := Fault("", "lost", times=0)), closing(Marks(2)) as marks:
        children.work(task, ClaimedJobs(jobs), range(2), marks)
        assert ([], OVER, [0, 1]) == (requests.names, marks.end, marks.places(DONE))


def test_a_part_of_a_worker_that_cannot_be_sent_is_named_before_any_claim(url):
    local, lock = Worker(), threading.Lock()

    @local.handler("work")
    async def good(payload: bytes, ctx: Context) -> None: ...

    @local.handler("bad")
    async def bad() -> None:
        lock.acquire()

    enqueue(url, works(b"1"))
    with pytest.raises(InvalidJobError) as caught:
        run(url, local)
    line = str(caught.value)
    assert line.startswith("the worker cannot be sent to executors: the handler 'bad' holds an object that cannot be ")
    assert "lock" in line
    assert "\n" not in line
    assert 0 == left_in(url)[b"1"].attempt
