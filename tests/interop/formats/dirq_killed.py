"""Processes of jqueue and of dirq, in Python or Perl, that work on one folder and are killed at random moments.

A program of dirq gets a URL, the folder, its kind, a file and a seed. It writes a line to the file before and after
each operation on a payload: `try` and `added`, `finish` and `done`.
"""

import asyncio
import collections
import random
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from jqueue import connect
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from tests.interop.formats.waiting import wait_until

LEAST_DONE = 20
"""Number of jobs that must be done at least, even on a slow machine."""

KINDS = {"simple": DirqSimple, "queue": DirqElements}

COMMON = r"""
import os, random, sys, time
url, folder, kind, journal, seed = sys.argv[1:]
chance = random.Random(int(seed))
lines = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def note(what, payload):
    os.write(lines, ("%s %s\n" % (what, payload.decode())).encode())

def payloads():
    for number in range(chance.randrange(1, 4)):
        yield b"%s-%d" % (seed.encode(), chance.randrange(1 << 60))
"""

OURS = (
    COMMON
    + r"""
import asyncio
from jqueue import connect

async def main():
    async with connect(url, stale_timeout=300) as queue:
        while True:
            for payload in payloads():
                note("try", payload)
                await queue.enqueue(chance.choice(["queue", "other"]), payload)
                note("added", payload)
            for job in await queue.dequeue(batch_size=chance.randrange(1, 5)):
                if chance.random() < 0.3:
                    await queue.nack(job, charge=chance.random() < 0.5)
                    continue
                if chance.random() < 0.3:
                    await queue.heartbeat(job)
                note("finish", job.payload)
                await queue.ack(job)
                note("done", job.payload)

asyncio.run(main())
"""
)


@dataclass(frozen=True)
class Worker:
    """A program that is started, killed and started again.

    Attributes:
        command: the command, without its arguments.
        environment: environment variables of the process.
    """

    command: Sequence[str]
    environment: dict[str, str] | None = None


class Killed:
    """Workers on one folder.

    Args:
        kind: kind of the dirq folder.
        path: the folder in which the dirq folder and the journals are made.
        workers: one worker for each process.
    """

    def __init__(self, kind: str, path: Path, workers: Sequence[Worker]) -> None:
        self._seed = random.randrange(2**32)
        print(f"seed {self._seed}")
        self._chance = random.Random(self._seed)
        self._kind, self._folder, self._journals, self._workers = kind, path / "queue", path / "journals", workers
        options = "granularity=1" if kind == "simple" else "schema=body:binary"
        self._url = f"dirq://{self._folder}?kind={kind}&fsync=false&{options}"
        self._journals.mkdir()

    def work(self, seconds: float) -> None:
        """Run all workers for `seconds`, and at least until four were killed and `LEAST_DONE` jobs are done."""
        running: list[subprocess.Popen[str] | None] = [None] * len(self._workers)
        kills, until = 0, time.monotonic() + seconds
        while time.monotonic() < until or kills < 4 or self._done() <= LEAST_DONE:
            place = self._chance.randrange(len(self._workers))
            kills += self._kill(running[place])
            running[place] = self._start(place)
            time.sleep(self._chance.uniform(0.1, min(1.5, seconds / 4)))
        for process in running:
            self._kill(process)

    def _start(self, place: int) -> subprocess.Popen[str]:
        journal = self._journals / f"{len(list(self._journals.iterdir()))}-{place}"
        journal.touch()
        worker = self._workers[place]
        arguments = [self._url, str(self._folder), self._kind, str(journal), str(self._chance.randrange(1 << 60))]
        process = subprocess.Popen(
            [*worker.command, *arguments], env=worker.environment, stderr=subprocess.PIPE, text=True
        )
        wait_until("it has begun", partial(_has_begun, journal), [process])
        return process

    def _done(self) -> int:
        return sum(journal.read_text().count("done ") for journal in self._journals.iterdir())

    def _kill(self, process: subprocess.Popen[str] | None) -> int:
        if process is None:
            return 0
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
        assert -signal.SIGKILL == process.returncode, errors
        return 1

    def audit(self) -> None:
        """Assert that nothing was lost or finished twice, by the remaining jobs and the journals of the workers."""
        left = asyncio.run(_drain(self._url, KINDS[self._kind](self._folder)))
        _audit(left, self._journals.iterdir())


def _has_begun(journal: Path) -> bool:
    return journal.stat().st_size > 0


async def _drain(url: str, store: DirqSimple | DirqElements) -> list[str]:
    """Free all claims, and return the payloads of the remaining jobs."""
    store.purge(datetime.now(UTC) + timedelta(hours=1))
    left: list[str] = []
    async with connect(url) as queue:
        await queue.requeue_stale(0)
        while jobs := await queue.dequeue(batch_size=100):
            left += [job.payload.decode() for job in jobs]
            assert await queue.ack_many(jobs) == []
        assert () == (await queue.read_state()).jobs
    return left


def _audit(left: Sequence[str], journals: Iterable[Path]) -> None:
    said: dict[str, list[str]] = collections.defaultdict(list)
    unsure: set[str] = set()
    for journal in journals:
        of_it: dict[str, list[str]] = collections.defaultdict(list)
        for line in journal.read_text().splitlines():
            what, _, payload = line.partition(" ")
            of_it[what].append(payload)
            said[what].append(payload)
        unsure |= set(of_it["finish"]) - set(of_it["done"])
    added, done = set(said["added"]), said["done"]
    assert len(done) > LEAST_DONE, "too few jobs were done to prove anything"
    assert [] == [payload for payload, times in collections.Counter(done).items() if times > 1], "finished twice"
    assert set() == set(done) & set(left), "finished, and back in the queue"
    assert [] == [payload for payload, times in collections.Counter(left).items() if times > 1], "in the queue twice"
    assert set() == added - set(done) - set(left) - unsure, "lost"
    assert set(done) | set(left) <= set(said["try"]), "never added"
    print(f"{len(added)} added, {len(done)} done, {len(left)} left, {len(unsure)} unsure")
