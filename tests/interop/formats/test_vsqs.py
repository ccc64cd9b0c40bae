"""jqueue and the real vsqs 0.3 on one folder: in turns, at the same time, and killed at random moments."""

import asyncio
import os
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from jqueue import JobStatus
from jqueue.connect import connect
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from tests.interop.formats.vsqs_programs import OUR_WORKER, THEIR_WORKER, Theirs, Worker
from tests.interop.formats.waiting import wait_until

pytestmark = pytest.mark.wide


@pytest.fixture
def theirs(original, tmp_path):
    with Theirs(original("vsqs"), tmp_path) as theirs:
        yield theirs


@pytest.fixture
def queue(tmp_path):
    return connect(f"vsqs://{tmp_path}/queue?fsync=false")


# Folders made by vsqs


async def test_a_folder_made_by_vsqs_is_read(unpacked):
    queue = connect(f"vsqs://{unpacked('vsqs-0.3')}/queue")
    state = await queue.read_state()
    assert Counter({JobStatus.QUEUED: 7, JobStatus.IN_PROGRESS: 1}) == Counter(job.status for job in state.jobs)
    assert b"" in {job.payload for job in state.jobs}
    assert bytes(range(256)) in {job.payload for job in state.jobs}
    jobs = await queue.dequeue(batch_size=99)
    assert sorted(job.id for job in jobs) == [job.id for job in jobs]
    assert 7 == len(jobs)
    assert {"queue"} == {job.entrypoint for job in jobs}
    assert {2026} == {job.created_at.year for job in jobs}


async def test_jobs_that_vsqs_no_longer_sees_are_found(unpacked):
    folder = unpacked("vsqs-0.3")
    [expired] = await connect(f"vsqs://{folder}/expired").dequeue(batch_size=9)
    assert 2 == expired.attempt
    jobs = await connect(f"vsqs://{folder}/other").dequeue(batch_size=9)
    assert 2 == len(jobs), "one of them was claimed with a fraction of a second, which vsqs cannot read"
    assert 1 == len([name for name in os.listdir(folder / "other") if name.endswith(".new")])


# In turns


async def _alternate(theirs, queue, rounds, dice):
    """Each side gets the payloads of the other unchanged and in order, and respects its timeouts."""
    for number in range(rounds):
        payloads = [dice.randbytes(dice.choice([0, 1, 300])) + b"%d-%d" % (number, part) for part in range(3)]
        for payload in payloads:
            if dice.random() < 0.5:
                theirs.publish(payload)
            else:
                await queue.enqueue("work", payload, headers={"kept": "by us"})
        assert 3 == theirs.size()
        for payload in payloads:
            match dice.choice(["ours", "theirs", "both", "given back"]):
                case "ours":
                    [job] = await queue.dequeue()
                    assert payload == job.payload
                    await queue.heartbeat(job)
                    await queue.ack(job)
                case "theirs":
                    name, found = theirs.receive()
                    assert payload == found
                    theirs.delete(name)
                case "both":
                    [job] = await queue.dequeue()
                    assert payload == job.payload
                    await queue.nack(job, charge=False)
                    name, found = theirs.receive()
                    assert payload == found
                    theirs.delete(name)
                case "given back":
                    name, found = theirs.receive(timeout=0)  # a claim that expires at once
                    assert payload == found
                    [job] = await queue.dequeue()
                    assert payload == job.payload
                    theirs.delete(name)  # has no effect: the claim now belongs to jqueue
                    await queue.ack(job)
        assert 0 == theirs.size()
    assert [] == await queue.dequeue()
    assert theirs.receive() is None


@pytest.mark.parametrize("rounds", [15, pytest.param(300, marks=pytest.mark.full)])
async def test_jqueue_and_vsqs_can_take_turns(theirs, queue, rounds):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    await _alternate(theirs, queue, rounds, random.Random(seed))


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.full)])
async def test_an_expired_claim_can_be_taken_by_the_other_side(theirs, queue, rounds):
    for _ in range(rounds):
        theirs.publish(b"payload")
        name, _ = theirs.receive(timeout=1)
        assert [] == await queue.dequeue(), "not before"
        [job] = await queue.dequeue(wait=5, claim_timeout=1)
        assert 2 == job.attempt
        assert theirs.receive() is None, "not before"
        async with asyncio.timeout(5):
            while (found := theirs.receive()) is None:
                await asyncio.sleep(0.05)
        theirs.delete(name)  # vsqs knows the job only by this name
        theirs.delete(found[0])
        assert 0 == theirs.size()


async def test_vsqs_receives_a_delayed_job_when_it_is_due(theirs, queue):
    await queue.enqueue("work", b"later", delay=0.5)
    await queue.enqueue("work", b"now")
    assert b"now" == theirs.receive()[1]
    assert theirs.receive() is None
    async with asyncio.timeout(5):
        while (found := theirs.receive()) is None:
            await asyncio.sleep(0.05)
    assert b"later" == found[1]


async def test_vsqs_ignores_dead_jobs_and_notes(theirs, queue):
    await queue.enqueue("work", b"payload", headers={"large": "x" * 4000})
    [job] = await queue.dequeue()
    await queue.nack(job, dead=True)
    assert 0 == theirs.size()
    assert theirs.receive() is None
    await queue.redrive(job.id)
    assert b"payload" == theirs.receive(timeout=0)[1]
    [job] = await queue.dequeue()
    assert {"large": "x" * 4000} == dict(job.headers)


async def test_capacity_counts_the_same_in_jqueue_and_vsqs(theirs, tmp_path):
    queue = StoreQueue(VsqsFolder(tmp_path / "queue", capacity=3))
    theirs.publish(b"1")
    theirs.receive()
    await queue.enqueue("work", b"2")
    await queue.enqueue("work", b"3")
    with pytest.raises(Exception, match="no room"):
        await queue.enqueue("work", b"4")
    assert 3 == theirs.size()


# At the same time, and killed


def _lines(folder: Path):
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            what, name, begun, ended = line.split()
            yield what, name, float(begun), float(ended)


async def _drained(folder: Path, timeout: int) -> set[str]:
    """The payloads of the remaining jobs, which are acked as their claims expire."""
    queue = connect(f"vsqs://{folder}/queue?fsync=false")
    found: set[str] = set()
    async with asyncio.timeout(60):
        while (await queue.read_state()).jobs:
            jobs = await queue.dequeue(batch_size=1000, wait=2 * timeout)
            assert [] == await queue.ack_many(jobs)
            assert set() == found & {job.payload.decode() for job in jobs}
            found |= {job.payload.decode() for job in jobs}
    return found


@pytest.mark.parametrize("seconds", [4, pytest.param(90, marks=pytest.mark.full)])
async def test_no_job_is_lost_or_done_twice_when_either_side_is_killed(original, ours, tmp_path, seconds):
    timeout, seed = 2, random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    sides = [(original("vsqs"), THEIR_WORKER, "theirs"), (ours, OUR_WORKER, "ours")]
    workers = [Worker(*side[:2], tmp_path, f"{side[2]}{number}-", timeout) for side in sides for number in range(2)]
    try:
        logs, processes = lambda: tmp_path.glob("*.log"), [worker.process for worker in workers]
        wait_until("all have begun", lambda: 4 == sum(log.stat().st_size > 0 for log in logs()), processes)
        kills, until = 0, time.monotonic() + seconds
        while time.monotonic() < until or kills <= seconds:
            await asyncio.sleep(dice.uniform(0.05, 0.7))
            worker = dice.choice(workers)
            worker.kill()
            kills += 1
            worker.start()
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate()
    left = await _drained(tmp_path, timeout)
    taken, given, added = defaultdict(list), defaultdict(list), set()
    ended: Counter[str] = Counter()
    late = 0
    for what, name, begun, logged in _lines(tmp_path):
        match what:
            case "added":
                added.add(name)
            case "taken":
                taken[name].append((begun, logged))
            case "given":
                given[name].append(logged)
            case "late":
                late += 1
            case "ended":
                ended[name] += 1
    print(f"{kills} kills, {len(added)} added, {sum(ended.values())} ended, {len(left)} left")
    assert {"ours0", "ours1", "theirs0", "theirs1"} == {name.partition("-")[0] for name in added}
    missing = added - set(ended) - left
    assert set() == missing - set(taken), "lost"
    unsaid = kills + len(workers) + late
    assert len(missing) <= unsaid, "lost: more than were finished by a process that died before it could say so"
    assert [] == [name for name, times in ended.items() if times > 1], "ended twice"
    assert set() == left & set(ended), "ended, and still there"
    for name, times in taken.items():
        times.sort(key=lambda pair: pair[1])
        for (begun, logged), (next_begun, next_logged) in pairwise(times):
            # A claim was made between the two times, so the claim logged first may be the later one.
            apart = next_logged >= begun + timeout or logged >= next_begun + timeout
            free = apart or any(begun <= moment for moment in given[name])
            assert free, f"{name} was taken twice within its timeout"
