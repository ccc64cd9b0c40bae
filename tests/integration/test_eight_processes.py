"""Eight processes and thousands of jobs on one file: an audit of every enqueue, claim and ack."""

import asyncio
import itertools
import json
import multiprocessing
import time
from collections import Counter

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage
from jqueue.operations import Enqueue

pytestmark = pytest.mark.wide

PROCESSES = 8
EARLY = 2
"""One in `EARLY` jobs is there when the processes start; the processes enqueue the others while they work."""

CONSUMERS = 4
BATCH = 4
PATIENCE = 0.5
STARTING_SECONDS = 60
LONGEST_SECONDS = 150.0
"""Seconds after which a process no longer waits for a lost job. It is also the deadline of every call."""


class _Auditor:
    """Record of one process: ids in the order of its answers."""

    def __init__(self, jobs, acked_by_all, name):
        self.jobs = jobs
        self.own = (jobs - jobs // EARLY) // PROCESSES
        self.enqueued: list[str] = []
        self.claimed: list[tuple[str, int]] = []
        self.acked: list[str] = []
        self.give_up = time.monotonic() + LONGEST_SECONDS
        self._acked_by_all = acked_by_all
        self._payloads = (f"{name} {number}".encode() for number in itertools.count())

    def is_waiting(self):
        return self._acked_by_all.value < self.jobs and time.monotonic() < self.give_up

    def record(self):
        return {"enqueued": self.enqueued, "claimed": self.claimed, "acked": self.acked}

    async def enqueue(self, queue):
        job = await queue.enqueue("audited", next(self._payloads))
        self.enqueued.append(job.id)

    async def work(self, queue, wait):
        """Claim and ack the jobs that come within the wait."""
        jobs = await queue.dequeue("audited", batch_size=BATCH, wait=wait)
        self.claimed += [job.claim for job in jobs]
        for job in jobs:
            await queue.ack(job)
            self.acked.append(job.id)
            with self._acked_by_all.get_lock():
                self._acked_by_all.value += 1


async def _all_at_once(storage, auditor):
    """Work with a broker: many calls in flight."""

    async def enqueue_all():
        for _ in range(auditor.own):
            await auditor.enqueue(queue)

    async def consume():
        while auditor.is_waiting():
            await auditor.work(queue, PATIENCE)

    async with BrokerQueue(storage, deadline=LONGEST_SECONDS) as queue:
        await asyncio.gather(enqueue_all(), *(consume() for _ in range(CONSUMERS)))


async def _one_by_one(storage, auditor):
    """Work with a direct queue: one call after the other."""
    async with DirectQueue(storage, deadline=LONGEST_SECONDS) as queue:
        for _ in range(auditor.own):
            await auditor.enqueue(queue)
            await auditor.work(queue, 0)
        while auditor.is_waiting():
            await auditor.work(queue, PATIENCE)


def _process(number, jobs, path, record, barrier, acked_by_all):
    auditor = _Auditor(jobs, acked_by_all, f"process {number}")
    act = _one_by_one if number % 2 else _all_at_once
    barrier.wait(STARTING_SECONDS)
    asyncio.run(act(LocalFileSystemStorage(path), auditor))
    record.write_text(json.dumps(auditor.record()))


async def _enqueue_early(path, count):
    async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
        jobs = await queue.enqueue_many(Enqueue("audited", b"early %d" % number) for number in range(count))
    return [job.id for job in jobs]


async def _read_state(path):
    return await DirectQueue(LocalFileSystemStorage(path)).read_state()


@pytest.mark.parametrize("jobs", [240, pytest.param(2000, marks=pytest.mark.full)])
def test_eight_processes_do_each_of_many_jobs_once(tmp_path, jobs):
    path = tmp_path / "queue.json"
    early = asyncio.run(_enqueue_early(path, jobs // EARLY))
    spawn = multiprocessing.get_context("spawn")
    barrier, acked_by_all = spawn.Barrier(PROCESSES + 1), spawn.Value("l", 0)
    files = [tmp_path / f"record {number}" for number in range(PROCESSES)]
    processes = [
        spawn.Process(target=_process, args=(number, jobs, path, file, barrier, acked_by_all))
        for number, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    barrier.wait(STARTING_SECONDS)
    for process in processes:
        process.join()
    assert [0] * PROCESSES == [process.exitcode for process in processes], "a caller got an error: see its traceback"

    records = [json.loads(file.read_text()) for file in files]
    state = asyncio.run(_read_state(path))
    enqueued = Counter([*early, *itertools.chain.from_iterable(record["enqueued"] for record in records)])
    acked = Counter(itertools.chain.from_iterable(record["acked"] for record in records))
    claimed = Counter((job, attempt) for record in records for job, attempt in record["claimed"])
    assert jobs == len(enqueued)
    assert dict.fromkeys(enqueued, 1) == acked
    assert dict.fromkeys(((job, 1) for job in enqueued), 1) == claimed
    assert () == state.jobs
