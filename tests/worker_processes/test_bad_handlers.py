"""Bad handlers in real workers: they hang, raise, recurse, ignore cancellation or end a process of their own.

Each of their jobs is accounted for in the queue, and the worker goes on with the other jobs.
"""

import re
from collections import Counter
from pathlib import Path

import pytest

from jqueue.operations import Enqueue
from tests.worker_processes.journal import ENDS
from tests.worker_processes.processes import Scene
from tests.worker_processes.programs.bad import worker as bad_worker

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes")]

RESULTS = {
    "hangs": (2, r"timed out after 0\.3 s"),
    "raises": (3, "ValueError: no such customer"),
    "recurses": (1, "RecursionError"),
    "ignores cancellation": (1, r"timed out after 0\.3 s, and still ran"),
    "ignores cancellation in a thread": (1, r"timed out after 0\.3 s, and still ran"),
    "segfaults in its process": (1, "process .* exit code -11"),
    "runs for ever in its process": (1, r"timed out after 0\.5 s"),
}
"""Number of failures of each bad handler, and a pattern of the error stored with its job."""

IGNORING = {"ignores cancellation", "ignores cancellation in a thread"}
"""The handlers that end only when the scene releases them. Their jobs are in progress until then."""

GOOD = 30


@pytest.fixture
async def scene(tmp_path):
    async with Scene(tmp_path).open() as scene:
        yield scene


def job_of(entrypoint, job_id=None):
    """A job with the options of its handler."""
    options = bad_worker.handlers[entrypoint].options
    return Enqueue(entrypoint, b"1", job_id=job_id or entrypoint, max_attempts=options.max_attempts)


def good_ones(word):
    return [job_of("good", f"good-{word}-{number}") for number in range(GOOD)]


def unsettled(jobs):
    return {name for name, job in jobs.items() if job.status != "dead"}


async def test_all_bad_handlers_at_once_harm_no_job_but_their_own(scene):
    await scene.queue.enqueue_many([*good_ones("before"), *map(job_of, RESULTS), *good_ones("behind")])
    process = scene.start("bad")
    await scene.until(lambda: scene.count(ENDS).total() >= 2 * GOOD, "all good jobs are done")
    await scene.until_only(lambda jobs: unsettled(jobs) == IGNORING, "all handlers have ended that can")
    await scene.queue.enqueue_many(good_ones("late"))
    await scene.until(lambda: scene.count(ENDS).total() >= 3 * GOOD, "it still works")
    (scene.folder / "release").touch()
    jobs = await scene.until_only(lambda jobs: not unsettled(jobs), "all jobs are settled")
    process.stop()
    log = process.log.read_text()
    assert 0 == process.end(), log
    assert "Traceback" not in log
    assert RESULTS.keys() == jobs.keys()
    for name, (failures, pattern) in RESULTS.items():
        assert failures == jobs[name].failures, jobs[name].error
        assert re.search(pattern, jobs[name].error), jobs[name].error
    good = [job.job_id for word in ("before", "behind", "late") for job in good_ones(word)]
    assert Counter(good) == Counter({name: count for name, count in scene.count(ENDS).items() if name in good})
    assert len(good) == (await scene.queue.stats()).totals.done
    assert not is_alive(scene.folder / "endless.pid")


async def test_a_busy_handler_process_ends_with_its_worker(scene):
    await scene.queue.enqueue_many([job_of("stays in its process")])
    process, pid = scene.start("bad"), scene.folder / "staying.pid"
    await scene.until(pid.exists, "it has begun")
    process.stop()
    assert 0 == process.end()
    [job] = (await scene.jobs()).values()
    assert ("queued", 1, 0) == (job.status, job.attempt, job.failures)
    await scene.until(lambda: not is_alive(pid), "the process is gone")


def is_alive(pid_file):
    """True if the process exists and is not a zombie, which a process becomes until its parent waits for it."""
    try:
        return Path(f"/proc/{int(pid_file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
