"""Every job is done, and acked once, when real worker processes are killed and stopped at random moments."""

import asyncio
import os
import random
import signal
from typing import Any

import pytest

from jqueue import JobStatus
from jqueue.operations import Enqueue
from tests.worker_processes.journal import BEGINS, ENDS
from tests.worker_processes.processes import Scene, WorkerProcess, most_at_once
from tests.worker_processes.programs.load import FEW

pytestmark = [pytest.mark.wide, pytest.mark.xdist_group("worker processes")]

WORKERS = 3
KINDS = ("doze", "block", "few", "divide")


def some_jobs(dice, round, **options):
    """Jobs of each kind, one of them so long that its worker often ends before it."""
    seconds = [dice.uniform(0, 0.05) for _ in range(15)] + [dice.uniform(0.5, 2)]
    return [
        Enqueue(kind, b"%.3f" % length, job_id=f"{kind}-{round}-{number}", **options)
        for number, length in enumerate(seconds)
        for kind in [KINDS[number % len(KINDS)]]
    ]


async def rage(scene, ends, rounds, **options):
    """End a random worker in each round, in one of these ways, and start another. Returns the ids of all jobs."""
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"seed {seed}: with SEED={seed}, workers end in the same way")
    dice, enqueued, living = random.Random(seed), list[str](), [scene.start("load") for _ in range(WORKERS)]
    for round in range(rounds):
        jobs = await scene.queue.enqueue_many(some_jobs(dice, round, **options))
        enqueued += [job.id for job in jobs]
        lines = len(scene.lines()) + dice.randint(1, 20)
        await scene.until(lambda: len(scene.lines()) >= lines, "handlers work")  # noqa: B023 - called at once
        victim = dice.choice([worker for worker in living if worker.has_started])
        living.remove(victim)
        getattr(victim, dice.choice(ends))()
        if victim.killed:
            await scene.give_back_jobs_of(victim)
        living.append(scene.start("load"))
    await scene.until_only(lambda jobs: all(job.entrypoint == "tick" for job in jobs.values()), "all jobs are done")
    for worker in living:
        await scene.until(lambda: worker.has_started, "it handles signals")  # noqa: B023 - called at once
        worker.stop()
    assert {0} == {worker.end() for worker in scene.processes if not worker.killed}
    return enqueued


@pytest.mark.parametrize(
    ("ends", "rounds", "options"),
    [
        pytest.param(["kill", "stop"], 4, {"max_attempts": 30}, id="killed and stopped"),
        pytest.param(["stop"], 2, {"max_attempts": 1}, id="stopped, which counts as no failure of any job"),
    ],
)
async def test_every_job_is_done_and_acked_once_however_its_workers_end(tmp_path, ends, rounds, options):
    async with Scene(tmp_path).open() as scene:
        enqueued = await rage(scene, ends, rounds, **options)
        children = [f"{job_id}-child" for job_id in enqueued if job_id.startswith("divide-")]
        state, stats = await scene.queue.read_state(), await scene.queue.stats()
    totals: Any = stats.totals
    begun, ended, lines = scene.count(BEGINS), scene.count(ENDS), scene.lines()
    ticks = {job_id for job_id in begun if job_id.startswith("cron:")}
    waiting = {job.id for job in state.jobs}
    assert {*enqueued, *children} | ticks - waiting <= ended.keys()
    assert begun.keys() == {*enqueued, *children} | ticks
    assert totals.dead == 0
    assert len(enqueued) + len(children) + len(ticks - waiting) == totals.done
    spans = [(line.what, line.job_id, line.attempt) for line in lines]
    assert len(spans) == len(set(spans)), "a claim was worked on twice"
    assert most_at_once(lines, "few") <= FEW
    if "kill" not in ends:  # only a thread that finishes after its grace works in vain
        assert {1} == {count for job_id, count in ended.items() if not job_id.startswith("block")}


@pytest.mark.parametrize("first", [0, 1], ids=["the one that commits for both", "the other one"])
async def test_the_job_of_a_killed_worker_is_claimed_again_at_once(tmp_path, first):
    """The claims last for ten minutes, but the processes are on one machine."""
    async with Scene(tmp_path).open() as scene:
        workers = list[WorkerProcess]()
        for _ in range(2):
            workers.append(scene.start("load"))
            await scene.until(lambda: workers[-1].has_started, "it works")
            await asyncio.sleep(3)  # it is in the list of workers
        jobs = await scene.queue.enqueue_many([Enqueue("doze", b"4", max_attempts=9)] * 6)
        await scene.until(lambda: {job.id for job in jobs} <= scene.count(BEGINS).keys(), "all are claimed")
        workers[first].kill()
        claims = (await scene.queue.read_state()).in_progress_jobs()
        held = {job.id for job in claims if (job.holder or "").endswith(f":{workers[first].pid}")}
        lost = held & {job.id for job in jobs}
        assert lost
        at = asyncio.get_running_loop().time()
        await scene.until(lambda: all(scene.count(BEGINS)[each] == 2 for each in lost), "they are claimed again")
        assert asyncio.get_running_loop().time() - at < 30
        await scene.until(lambda: {job.id for job in jobs} <= scene.count(ENDS).keys(), "all jobs are done")


async def test_a_job_that_kills_its_workers_is_dead_in_the_end_and_its_neighbours_are_charged_with_nothing(tmp_path):
    async with Scene(tmp_path).open() as scene:
        poison = Enqueue("poison", b"0.5", max_attempts=2, job_id="poison")
        await scene.queue.enqueue_many([poison, *[Enqueue("doze", b"1", max_attempts=2, keep_result=600)] * 10])
        for _ in range(2 + 2):  # two deaths of which any of the jobs may be the cause, and two that are charged
            assert scene.start("poison").end() == 3
        worker = scene.start("poison")
        jobs = await scene.until_only(
            lambda jobs: all(job.status in (JobStatus.DEAD, JobStatus.COMPLETED) for job in jobs.values()), "all end"
        )
        worker.stop()
        assert worker.end() == 0
        assert {"poison"} == {job.id for job in jobs.values() if job.status is JobStatus.DEAD}
        assert {0} == {job.failed_tries for job in jobs.values() if job.status is JobStatus.COMPLETED}
        assert 3 == max(scene.count(BEGINS).values())


async def test_workers_that_all_stood_still_keep_their_claims(tmp_path):
    """The first to go on has a free slot, so it looks for jobs. Those of the others have one attempt."""

    async with Scene(tmp_path).open() as scene:
        workers = [scene.start("brief") for _ in range(WORKERS)]
        await scene.until(lambda: all(worker.has_started for worker in workers), "they handle signals")
        dozes = [Enqueue("doze", b"10", max_attempts=1) for _ in range(2 * WORKERS)]
        jobs = {job.id for job in await scene.queue.enqueue_many(dozes)}
        await scene.until(lambda: jobs == scene.count(BEGINS).keys(), "all jobs are claimed")
        for worker in workers:
            os.kill(worker.pid, signal.SIGSTOP)
        await asyncio.sleep(5)
        for worker in workers:
            os.kill(worker.pid, signal.SIGCONT)
            await asyncio.sleep(0.7)
        await scene.until(lambda: jobs == scene.count(ENDS).keys(), "all jobs are done")
        await scene.until_only(lambda left: not left, "all jobs are acked")
        assert {1} == set(scene.count(BEGINS).values())
