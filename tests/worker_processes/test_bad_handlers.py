"""Bad handlers in real workers: they hang, raise, end their process, ignore cancellation or return invalid results.

Each of their jobs is accounted for in the queue, and the worker goes on with the other jobs.
"""

import asyncio
import os
import re
import signal
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.operations import Enqueue
from tests.worker_processes.claim_history import End, Lives, steps
from tests.worker_processes.history import read_history
from tests.worker_processes.journal import BEGINS, ENDS, journals
from tests.worker_processes.processes import WorkerProcess, until
from tests.worker_processes.programs.bad import worker as bad_worker
from tests.worker_processes.recording import SUFFIX, Log, RecordingStorage

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes")]

RESULTS = {
    "hangs": (2, r"timed out after 0\.3 s"),
    "raises": (3, "ValueError: no such customer"),
    "raises an unprintable error": (1, "Unprintable"),
    "raises SystemExit": (2, "SystemExit: 3"),
    "raises SystemExit in a thread": (2, "SystemExit: 3"),
    "raises KeyboardInterrupt": (1, "KeyboardInterrupt"),
    "raises StopIteration in a thread": (1, "StopIteration"),
    "recurses": (1, "RecursionError"),
    "cancels itself": (1, "CancelledError"),
    "ignores cancellation": (1, r"timed out after 0\.3 s, and still ran"),
    "ignores cancellation in a thread": (1, r"timed out after 0\.3 s, and still ran"),
    "returns an object": (1, "JSON"),
    "returns not a number": (1, "JSON"),
    "returns itself": (1, "JSON"),
    "returns too much": (1, "result is .* bytes"),
    "returns an object from a process": (1, "JSON"),
    "segfaults in its process": (1, "process .* exit code -11"),
    "raises SystemExit in its process": (1, "SystemExit|exit code 3"),
    "ends its own process": (1, "process .* exit code 3"),
    "raises in its process": (1, "ValueError: no such customer"),
    "runs for ever in its process": (1, r"timed out after 0\.5 s"),
}
"""Number of failures of each bad handler, and a pattern of the error stored with its job."""

IGNORING = {"ignores cancellation", "ignores cancellation in a thread"}
"""The handlers that end only when the scene releases them. Their jobs are in progress until then."""

GOOD = 30
SHORT = 1.5
"""Claim timeout in seconds, for tests in which a claim becomes stale."""


class Scene:
    """A folder with a queue and all logs."""

    def __init__(self, folder):
        self.folder = folder
        self.storage = LocalFileSystemStorage(folder / "queue.json")
        self.recorded = RecordingStorage(self.storage, Log(folder / f"test{SUFFIX}"))
        self.fate = None
        self.log = ""

    def enqueue(self, *jobs):
        async def enqueue():
            async with DirectQueue(self.recorded) as queue:
                await queue.enqueue_many(jobs)

        asyncio.run(enqueue())

    def jobs(self):
        async def read():
            async with DirectQueue(self.storage) as queue:
                return {job.id: job for job in (await queue.read_state()).jobs}

        return asyncio.run(read())

    def lives(self):
        lives = Lives()
        for before, after in steps(read_history(self.folder, (self.folder / "queue.json").read_bytes())):
            lives.see(before, after)
        assert [] == lives.faults
        return lives

    def said(self, what):
        """The job id of each journal line of this kind."""
        return [line.job_id for lines in journals(self.folder).values() for line in lines if line.what == what]

    @contextmanager
    def worker(self, name, *options, claim_timeout=None):
        environment = {"JQUEUE_TEST_CLAIM_TIMEOUT": str(claim_timeout)} if claim_timeout else {}
        process = WorkerProcess(self.folder, name, "bad", "queue.json", *options, environment=environment)
        try:
            yield process
        finally:
            process.end()


def job_of(entrypoint, job_id=None):
    """A job with the options of its handler."""
    options = bad_worker.handlers[entrypoint].options
    return Enqueue(
        entrypoint,
        b"1",
        job_id=job_id or entrypoint,
        max_attempts=options.max_attempts,
        keep_result=options.keep_result,
    )


def good_ones(word):
    return [job_of("good", f"good-{word}-{number}") for number in range(GOOD)]


def unsettled(scene):
    return {name for name, job in scene.jobs().items() if job.status not in ("dead", "completed")}


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """The scene after one worker has had all bad jobs at once, with good jobs before and after them."""
    scene = Scene(tmp_path_factory.mktemp("bad"))
    others = [job_of("good in a process"), job_of("returns an object without keep_result")]
    scene.enqueue(*good_ones("before"), *map(job_of, RESULTS), *others, *good_ones("behind"))
    with scene.worker("worker") as process:
        until(lambda: len(scene.said(ENDS)) >= 2 * GOOD, "all good jobs are done")
        until(lambda: IGNORING == unsettled(scene), "all jobs are settled whose handlers have ended")
        scene.enqueue(*good_ones("late"))
        until(lambda: len(scene.said(ENDS)) >= 3 * GOOD, "it still works")
        (scene.folder / "release").touch()
        until(lambda: not unsettled(scene), "all jobs are settled")
        process.stop()
        scene.fate = process.wait()
        scene.log = process.log.read_text()
    return scene


@pytest.mark.parametrize("entrypoint", RESULTS)
def test_a_bad_handler_makes_only_its_own_job_dead(after, entrypoint):
    failures, pattern = RESULTS[entrypoint]
    job = after.jobs()[entrypoint]
    assert ("dead", failures) == (job.status, job.failures), job.error
    assert job.attempt >= failures  # a claim that arrives after its long poll has ended is handed back
    assert re.search(pattern, job.error), job.error
    assert job.error.isprintable() or "\n" in job.error


def test_a_worker_with_all_bad_handlers_does_every_good_job_once_and_exits_with_0(after):
    lives = after.lives()
    good = [job.job_id for word in ("before", "behind", "late") for job in good_ones(word)]
    assert sorted(good) == sorted(job_id for job_id in after.said(ENDS) if job_id.startswith("good"))
    others = ["good in a process", "returns an object without keep_result"]
    assert {*good, *others} == set(lives.acked)
    assert {1} == set(lives.acked.values())
    assert {*RESULTS, "good in a process"} == set(after.jobs())
    assert 2 == after.jobs()["good in a process"].result
    assert 0 == after.fate.exit_code, after.log
    assert "Traceback" not in after.log, after.log


def test_a_handler_process_that_never_ends_is_killed_at_its_timeout(after):
    assert not is_alive(int((after.folder / "endless.pid").read_text()))


@pytest.mark.parametrize(
    "says_itself",
    [
        pytest.param(True, id="max_attempts of the job"),
        pytest.param(False, id="max_attempts of its handler", marks=pytest.mark.full),
    ],
)
def test_a_job_that_ends_its_workers_becomes_dead_and_the_other_jobs_are_done(tmp_path, says_itself):
    scene = Scene(tmp_path)
    killer = job_of("ends its process", "killer") if says_itself else Enqueue("ends its process", b"", job_id="killer")
    scene.enqueue(killer, *good_ones("with"))
    fates = []
    for number in range(4):
        with scene.worker(f"worker-{number}", claim_timeout=SHORT) as process:
            until(partial(is_over, scene, process), "the job is dead, or its worker")
            if not process.has_ended:
                process.stop()
            fates.append(process.wait().exit_code)
        if fates[-1] == 0:
            break
    job = scene.jobs()["killer"]
    assert ([3, 3, 0], "dead") == (fates, job.status)
    assert "stale: no heartbeat" in job.error if says_itself else "its workers ended without" in job.error
    assert ["killer"] * 2 == [job_id for job_id in scene.said(BEGINS) if job_id == "killer"]
    lives = scene.lives()
    assert dict.fromkeys((job.job_id for job in good_ones("with")), 1) == lives.acked


def is_over(scene, process):
    jobs = scene.jobs()
    return process.has_ended or (set(jobs) == {"killer"} and jobs["killer"].status == "dead")


def test_a_busy_handler_process_ends_with_its_worker_and_its_job_is_handed_back_uncharged(tmp_path):
    scene = Scene(tmp_path)
    scene.enqueue(job_of("stays in its process"))
    with scene.worker("worker") as process:
        until(lambda: (tmp_path / "staying.pid").exists(), "it has begun")
        process.stop()
        assert 0 == process.wait().exit_code, process.log.read_text()
    [job] = scene.jobs().values()
    assert ("queued", 1, 0) == (job.status, job.attempt, job.failures)
    until(lambda: not is_alive(int((tmp_path / "staying.pid").read_text() or 0)), "the process is gone")


def test_a_busy_handler_process_ends_when_its_worker_is_killed(tmp_path):
    scene = Scene(tmp_path)
    scene.enqueue(job_of("stays in its process"))
    with scene.worker("worker") as process:
        until(lambda: (tmp_path / "staying.pid").exists(), "it has begun")
        process.kill()
        process.wait()
    pid = int((tmp_path / "staying.pid").read_text())
    try:
        until(lambda: not is_alive(pid), "the process is gone")
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid):
    """True if the process exists and is not a zombie, which a process becomes until its parent waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_stops_despite_a_thread_that_never_returns_and_hands_its_job_back_uncharged(tmp_path):
    scene = Scene(tmp_path)
    scene.enqueue(job_of("never returns"), *good_ones("beside"))
    with scene.worker("worker") as process:
        until(lambda: len(scene.said(ENDS)) == GOOD and "never returns" in scene.said(BEGINS), "it hangs")
        process.stop()
        assert 0 == process.wait().exit_code, process.log.read_text()
    [job] = scene.jobs().values()
    assert ("never returns", "queued", 1, 0) == (job.id, job.status, job.attempt, job.failures)
    assert End.RETURNED == scene.lives().claims["never returns", 1].end


def test_a_handler_that_blocks_the_loop_loses_its_claim_and_its_job_is_acked_once(tmp_path):
    scene = Scene(tmp_path)
    scene.enqueue(job_of("never returns and blocks the loop", "blocks"))
    with (
        scene.worker("one", "--concurrency", "1", claim_timeout=SHORT) as one,
        scene.worker("other", "--concurrency", "1", claim_timeout=SHORT) as other,
    ):
        until(lambda: scene.said(BEGINS) == ["blocks"] * 2, "the other one has it, too")
        (scene.folder / "release").touch()
        until(lambda: not scene.jobs(), "it is done")
        one.stop()
        other.stop()
        assert (0, 0) == (one.wait().exit_code, other.wait().exit_code)
    lives = scene.lives()
    first, second = lives.claims["blocks", 1], lives.claims["blocks", 2]
    assert (End.CHARGED, End.ACKED) == (first.end, second.end)
    assert {"one", "other"} == {first.by, second.by}
    assert {"blocks": 1} == lives.acked
