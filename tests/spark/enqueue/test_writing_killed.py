"""A write killed at random moments and run again adds exactly its rows, and leaves nothing behind for long."""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from jqueue import DirectQueue, LocalFileSystemStorage
from tests.spark.enqueue.bulk import staged_at, texts_of

pytestmark = pytest.mark.full

PROGRAM = Path(__file__).with_name("enqueue_killed.py")
TASKS, ROWS, WRITES, KILLS = 8, 20_000, 3, 7
SLOWEST = 60.0
"""Seconds that a write may take."""


def run(url, version, seconds):
    """Run a write, and kill it after some seconds. Return True if it had succeeded before."""
    command = [sys.executable, str(PROGRAM), url, str(version), str(TASKS), str(ROWS)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


async def collected(file):
    """Remove objects that nothing needs, whatever their age, and return their number."""
    async with DirectQueue(LocalFileSystemStorage(file)) as queue:
        collector = queue._collector
        assert collector is not None
        collector.kept_for = timedelta(seconds=-1)
        return await collector.collect()


@pytest.mark.timeout(600)
def test_a_write_that_is_killed_and_run_again_adds_exactly_its_rows(tmp_path):
    file, dice = str(tmp_path / "queue.json"), random.Random(7)
    killed = 0
    for version in range(1, WRITES + 1):
        for _ in range(KILLS):
            killed += not run(file, version, dice.uniform(0, 4))
        assert run(file, version, SLOWEST)
    found = Counter(texts_of(file))
    expected = {
        b"%d-%d-%d" % (version, task, row)
        for version in range(1, WRITES + 1)
        for task in range(TASKS)
        for row in range(ROWS)
    }
    assert (expected, 1) == (set(found), max(found.values()))
    assert killed
    asyncio.run(collected(file))
    assert [] == staged_at(file)
    assert len(found) == len(texts_of(file))
