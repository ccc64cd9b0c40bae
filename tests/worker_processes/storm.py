"""Kill, stop and replace workers under load at random moments, until all enqueued jobs are done."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.operations import Enqueue
from tests.worker_processes.journal import bytes_written
from tests.worker_processes.processes import LONGEST, LOOK_EVERY, Fate, WorkerProcess
from tests.worker_processes.recording import SUFFIX, Log, RecordingStorage

PRODUCER = "producer"
MOST_READY = 60
"""Number of jobs that wait at once: enough to keep all workers busy, and few enough for small versions."""

KINDS = ("doze", "block", "answer", "divide")
LINE = 70
"""Approximate length of a journal line, in bytes."""

ENDS = ("kill", "stop", "stop, then kill", "stop twice")
WEIGHTS = (10, 10, 2, 2)


class Storm:
    """One run.

    Args:
        folder: the folder of the queue and of all logs.
        dice: source of randomness for the ends of workers and for the jobs.
        workers: number of workers at a time.
        ends: number of workers that are ended and replaced.

    Attributes:
        enqueued: ids of the jobs whose enqueue returned.
        fates: the end of each worker, by name.
    """

    def __init__(self, folder: Path, dice: random.Random, workers: int, ends: int) -> None:
        self.enqueued: list[str] = []
        self.fates: dict[str, Fate] = {}
        self._folder = folder
        self._dice = dice
        self._workers = workers
        self._ends = ends
        self._living: list[WorkerProcess] = []
        self._ending: list[WorkerProcess] = []
        self._started = 0
        self._made = 0
        self._producing = True

    async def run(self) -> None:
        """End workers at random, let the last ones finish all jobs, and stop them."""
        storage = LocalFileSystemStorage(self._folder / "queue.json")
        recorded = RecordingStorage(storage, Log(self._folder / f"{PRODUCER}{SUFFIX}"))
        try:
            async with BrokerQueue(recorded) as queue:
                producing = asyncio.create_task(self._produce(queue))
                await self._rage()
                self._producing = False
                await producing
                await self._until_empty(queue)
                for worker in self._living:
                    worker.stop()
                self._ending += self._living
                self._living = []
                await self._until(lambda: all(worker.has_ended for worker in self._ending), "all workers have ended")
                self._reap()
        finally:
            for worker in self._living + self._ending:
                worker.end()

    async def _produce(self, queue: BrokerQueue) -> None:
        while self._producing:
            if self.enqueued and (await queue.stats()).ready > MOST_READY:
                await asyncio.sleep(LOOK_EVERY)
                continue
            jobs = [self._job() for _ in range(self._dice.randint(1, 8))]
            self.enqueued += [job.id for job in await queue.enqueue_many(jobs)]

    def _job(self) -> Enqueue:
        self._made += 1
        kind = self._dice.choice(KINDS)
        long = self._dice.random() < 0.05
        seconds = self._dice.uniform(0.5, 2.0) if long else self._dice.uniform(0.0, 0.05)
        keep = 1 if kind == "answer" else None
        return Enqueue(kind, b"%.3f" % seconds, job_id=f"{kind}-{self._made}", keep_result=keep)

    async def _rage(self) -> None:
        for _ in range(self._workers):
            self._start()
        for _ in range(self._ends):
            await self._some_work()
            await asyncio.sleep(self._dice.uniform(0, 0.05))  # to end the next one anywhere in a handler or a commit
            self._end_one()
            self._start()
            self._reap()

    async def _some_work(self) -> None:
        """Wait until the handlers have written a random number of journal lines."""
        before = bytes_written(self._folder)
        lines = self._dice.randint(1, 60)
        await self._until(lambda: bytes_written(self._folder) >= before + lines * LINE, f"{lines} lines of handlers")

    def _end_one(self) -> None:
        started = [worker for worker in self._living if worker.has_started]
        victim = self._dice.choice(started if started and self._dice.random() < 0.9 else self._living)
        self._living.remove(victim)
        self._ending.append(victim)
        how = self._dice.choices(ENDS, WEIGHTS)[0]
        if how == "kill":
            victim.kill()
            return
        victim.stop()
        if how != "stop":
            delay = self._dice.uniform(0, 0.4)  # mostly within the grace of 0.3 s
            asyncio.get_running_loop().call_later(delay, victim.kill if "kill" in how else victim.stop)

    def _start(self) -> None:
        self._started += 1
        self._living.append(WorkerProcess(self._folder, f"worker-{self._started}", "load"))

    def _reap(self) -> None:
        for worker in [worker for worker in self._ending if worker.has_ended]:
            self._ending.remove(worker)
            self.fates[worker.name] = worker.wait()

    async def _until_empty(self, queue: BrokerQueue) -> None:
        give_up = time.monotonic() + LONGEST
        while (await queue.read_state()).jobs:
            assert time.monotonic() < give_up, f"after {LONGEST:g} s, jobs are still in the queue"
            await asyncio.sleep(LOOK_EVERY)

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        give_up = time.monotonic() + LONGEST
        while not condition():
            assert time.monotonic() < give_up, f"still not true after {LONGEST:g} s: {what}"
            await asyncio.sleep(LOOK_EVERY)
