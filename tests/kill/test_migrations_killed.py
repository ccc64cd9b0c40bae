"""Moves that are killed at each call to a file, or by the clock, lose no job and move none twice."""

import asyncio
import bisect
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jqueue.operations import Enqueue
from tests.moved_jobs import PAIRS, PLACES, audit, drained, jobs_of, open_at

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
ON_DISK = [pair for pair in PAIRS if "memory" not in pair]


def killed_everywhere(pair, every, seed):
    command = [sys.executable, "-m", "tests.kill.migrations", *pair, "--every", str(every), "--seed", str(seed)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert 0 == result.returncode, result.stdout + result.stderr
    assert " kills." in result.stdout


@pytest.mark.parametrize("pair", ON_DISK, ids="-to-".join)
def test_a_move_killed_at_some_of_its_file_calls_loses_no_job(pair):
    killed_everywhere(pair, 17, 7)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pair", ON_DISK, ids="-to-".join)
def test_a_move_killed_at_each_of_its_file_calls_loses_no_job(pair, seed):
    killed_everywhere(pair, 1, seed)


def killed_by_the_clock(folder, pair, count, kills, seed):
    """Run `jqueue migrate`, kill it at random moments, and restart it until it ends. Return the kills."""
    dice = random.Random(seed)
    print(f"seed {seed}")
    source, dest = (open_at(folder, kind, name) for kind, name in zip(pair, ("source", "dest"), strict=True))

    async def fill():
        if source.capabilities.transactions:
            await source.enqueue_many([Enqueue("work", b"%d" % number) for number in range(count)])
        else:
            for number in range(count):
                await source.enqueue("work", b"%d" % number)
        return [job.id for job in await jobs_of(source)]

    ids = asyncio.run(fill())
    urls = [PLACES[kind](folder, name) for kind, name in zip(pair, ("source", "dest"), strict=True)]
    command = [sys.executable, "-m", "jqueue", "migrate", *urls, "--json"]
    died, holds_back = 0, pair[0].startswith("dirq")  # each kill may leave an orphaned lock, which ends by age
    while True:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until = time.monotonic() + (dice.uniform(0.3, 1.5) if died < kills else 120)
        try:
            process.wait(until - time.monotonic())
        except subprocess.TimeoutExpired:
            process.kill()
        output, errors = process.communicate()
        asyncio.run(audit(open_at(folder, pair[0], "source"), open_at(folder, pair[1], "dest"), ids))
        if process.returncode == 0:
            break
        if holds_back and process.returncode == 1 and json.loads(output)["in_progress"]:
            asyncio.run(release_orphaned_locks(source))
            continue
        assert process.returncode == -9, (output, errors)
        died += 1
    moved = [int(payload) for payload in asyncio.run(drained(dest))]
    assert list(range(count)) == sorted(moved)
    print(f"{died} kills, {out_of_order(moved)} jobs later than others")
    assert out_of_order(moved) <= (died if holds_back else 0)
    assert [] == asyncio.run(jobs_of(source))
    return died


async def release_orphaned_locks(queue):
    """Dequeue as a worker does until orphaned locks have ended: they end by age, while a consumer watches them."""
    async with asyncio.timeout(60):
        while any(job.status == "in_progress" for job in await jobs_of(queue)):
            assert [] == await queue.dequeue("nobody's")
            await asyncio.sleep(0.1)


def out_of_order(numbers):
    """Return the smallest number of items whose removal leaves the others in order."""
    ends: list[int] = []  # for each length, the smallest last number of an increasing subsequence
    for number in numbers:
        place = bisect.bisect(ends, number)
        ends[place : place + 1] = [number]
    return len(numbers) - len(ends)


def test_the_command_killed_at_random_moments_loses_no_job(tmp_path):
    killed_by_the_clock(tmp_path, ("file", "vsqs"), 400, 2, 7)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pair", ON_DISK, ids="-to-".join)
def test_the_command_killed_often_loses_no_job(tmp_path, pair, seed):
    assert killed_by_the_clock(tmp_path, pair, 3000, 20, seed)
