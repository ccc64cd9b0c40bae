"""Several processes on one file, some of them killed: no update and no acknowledged write is lost."""

import asyncio
import hashlib
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]

PROCESSES = 8
INCREMENTS = 50

KILLING_SECONDS = 10.0


async def _increment(path, times):
    storage = LocalFileSystemStorage(path, lock_timeout=60)
    for _ in range(times):
        while True:
            content, etag = await storage.read()
            try:
                await storage.write(b"%d" % (int(content or b"0") + 1), etag)
            except CASConflictError:
                continue
            break


def _run_increments(path, times):
    asyncio.run(_increment(path, times))


def test_increments_of_many_processes_are_all_counted(tmp_path):
    path = tmp_path / "queue.json"
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_run_increments, args=(path, INCREMENTS)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [0] * PROCESSES == [process.exitcode for process in processes]
    assert b"%d" % (PROCESSES * INCREMENTS) == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == sorted(os.listdir(tmp_path))


# This program counts up in the file for ever, and prints each number after its write has returned.
COUNTING = """
import asyncio, hashlib, os, sys
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage

async def count():
    storage = LocalFileSystemStorage(sys.argv[1])
    content, etag = await storage.read()
    number = int(content.split()[0]) if content else 0
    while True:
        number += 1
        body = b"%d " % number * 20_000
        etag = await storage.write(body + hashlib.sha256(body).hexdigest().encode(), etag)
        os.write(1, b"%d\\n" % number)

asyncio.run(count())
"""


def _acknowledged_before_a_kill(path, dice):
    """Return the last number that a process acknowledged before it was killed, at any instruction."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COUNTING, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        acknowledged = [process.stdout.readline() for _ in range(dice.randrange(1, 10))]
        time.sleep(dice.uniform(0.0, 0.004))  # not a wait for anything: it makes the moment of the kill random
        process.kill()
        acknowledged += process.stdout.read().splitlines()
    return int(acknowledged[-1])


def _read_checked(path):
    content, etag = asyncio.run(LocalFileSystemStorage(path).read())
    body, checksum = content[:-64], content[-64:]
    assert hashlib.sha256(body).hexdigest().encode() == checksum
    return int(body.split()[0]), etag


def _leftovers(folder):
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


@pytest.mark.parametrize("most", [8, pytest.param(25, marks=pytest.mark.full)])
def test_a_killed_writer_loses_no_acknowledged_write(tmp_path, most):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    path = tmp_path / "queue.json"
    deadline = time.monotonic() + KILLING_SECONDS
    kills, left = 0, 0
    while kills < most and time.monotonic() < deadline:
        acknowledged = _acknowledged_before_a_kill(path, dice)
        kills += 1
        stored, etag = _read_checked(path)
        assert acknowledged <= stored <= acknowledged + 1, f"kill {kills}"
        assert len(_leftovers(tmp_path)) <= 1, "the next writer removes the leftovers of a killed one"
        left += len(_leftovers(tmp_path))
    print(f"{kills} kills up to number {stored}; {left} of them left a temporary file")
    asyncio.run(LocalFileSystemStorage(path).write(b"the end", etag))
    assert ["queue.json", "queue.json.lock"] == sorted(os.listdir(tmp_path))
