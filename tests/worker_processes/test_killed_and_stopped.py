"""Every job is accounted for when real worker processes under load are killed and stopped at random moments."""

import asyncio
import os
import random
import time
from collections import Counter

import pytest

from tests.worker_processes.accounts import Accounts
from tests.worker_processes.claim_history import End, Lives, steps
from tests.worker_processes.history import read_history
from tests.worker_processes.journal import ENDS, journals
from tests.worker_processes.storm import Storm

pytestmark = pytest.mark.wide

WORKERS = 3
GROUP = pytest.mark.xdist_group("worker processes")
"""One group, because these tests load all processors of a small machine."""


def lives_of(folder):
    lives = Lives()
    for before, after in steps(read_history(folder, (folder / "queue.json").read_bytes())):
        lives.see(before, after)
    return lives


def rage(folder, ends):
    seed = int(os.environ.get("SEED") or random.randrange(2**32))
    print(f"seed {seed}: with SEED={seed}, the same workers end in the same way")
    storm = Storm(folder, random.Random(seed), WORKERS, ends)
    started = time.monotonic()
    asyncio.run(storm.run())
    seconds = time.monotonic() - started

    lives, said = lives_of(folder), journals(folder)
    accounts = Accounts(lives, said, storm.fates, threads=frozenset({"block"}))
    children = [f"{job_id}-child" for job_id in storm.enqueued if job_id.startswith("divide-")]
    faults = accounts.faults([*storm.enqueued, *children])
    print(figures(storm, lives, said, seconds))
    assert [] == faults[:20], f"{len(faults)} faults, seed {seed}"
    return storm, lives


def figures(storm, lives, said, seconds):
    fates = storm.fates.values()
    killed = sum(fate.killed_at is not None for fate in fates)
    ends = Counter(claim.end for claim in lives.claims.values())
    done = Counter(line.job_id for lines in said.values() for line in lines if line.what == ENDS)
    return (
        f"{len(storm.fates)} workers in {seconds:.1f} s, {killed} killed and {len(fates) - killed} stopped; "
        f"{len(lives.enqueued)} jobs, {sum(count > 1 for count in done.values())} done more than once; "
        f"{lives.versions} versions; claims: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    )


@GROUP
def test_every_job_is_accounted_for_when_workers_are_killed_and_stopped_at_random_moments(tmp_path):
    storm, lives = rage(tmp_path, 22)
    ends = {claim.end for claim in lives.claims.values()}
    assert set(End) == ends, "the run was too short: it shows no claims of some kinds of end"
    assert 22 + WORKERS == len(storm.fates)


@pytest.mark.full
@GROUP
def test_every_job_is_accounted_for_when_hundreds_of_workers_are_killed_and_stopped(tmp_path):
    rage(tmp_path, 300)
