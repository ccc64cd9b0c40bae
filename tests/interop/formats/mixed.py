"""jqueue and an original on one folder or file: in turns, and as processes that are killed in the middle."""

import json
import random
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from jqueue import connect
from tests.interop.environments import Interpreter

OURS = r"""
import asyncio, os, random, sys
from jqueue import JQueueError, connect

url, seed = sys.argv[1:]
chance = random.Random(seed)

def note(what, payload):
    os.write(1, b"%s %s\n" % (what.encode(), payload))

async def main():
    async with connect(url, stale_timeout=3600) as queue:
        while True:
            for _ in range(chance.randrange(1, 4)):
                payload = b"%s-%d" % (seed.encode(), chance.randrange(1 << 60))
                note("try", payload)
                await queue.enqueue(chance.choice(["queue", "other"]), payload)
                note("added", payload)
            for job in await queue.dequeue(batch_size=chance.randrange(1, 5)):
                try:
                    if chance.random() < 0.3:
                        await queue.nack(job, charge=chance.random() < 0.5)
                        continue
                    if chance.random() < 0.3:
                        await queue.heartbeat(job)
                    note("finish", job.payload)
                    await queue.ack(job)
                    note("done", job.payload)
                except JQueueError:
                    note("lost", job.payload)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Worker:
    """A program that writes `try` and `added`, `finish` and `done` with a payload, each before and after the call.

    Attributes:
        command: its command, to which a seed is appended.
        environment: its environment variables.
    """

    command: Sequence[str]
    environment: dict[str, str] | None = None


def our_worker(ours: Interpreter, url: str) -> Worker:
    """A worker of this project."""
    return Worker(ours.command(OURS, url), ours.environment)


def killed(workers: Sequence[Worker], lives: int) -> list[list[list[str]]]:
    """Run all workers at once, and kill each after some lines, `lives` times. Returns the lines of each life, split."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    def live(place: int) -> list[list[list[str]]]:
        chance = random.Random(seed + place)
        return [_one_life(workers[place], f"{seed}-{place}-{life}", chance.randrange(40, 120)) for life in range(lives)]

    with ThreadPoolExecutor(len(workers)) as pool:
        return [life for all_lives in pool.map(live, range(len(workers))) for life in all_lives]


def _one_life(worker: Worker, seed: str, lines: int) -> list[list[str]]:
    command = [*worker.command, seed]
    with subprocess.Popen(
        command, env=worker.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        written = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        written += process.stdout
        assert -signal.SIGKILL == process.wait(60), "".join(written)
    split = [line.split() for line in written]
    assert {"try", "added", "finish", "done", "lost"} >= {line[0] for line in split}, "".join(written)
    return split


async def left_in(url: str) -> list[str]:
    """End all claims, and return the payloads of the remaining jobs, which are acked."""
    left: list[str] = []
    async with connect(url) as queue:
        await queue.requeue_stale(0)
        while (await queue.read_state()).jobs:  # the last message of a text file may still wait for more lines
            jobs = await queue.dequeue(batch_size=100, wait=60)
            left += [job.payload.decode() for job in jobs]
            assert await queue.ack_many(jobs) == []
    return left


def audit(lives: Sequence[Sequence[Sequence[str]]], left: Sequence[str], *, locks: bool = True) -> None:
    """Assert that nothing was lost or finished twice.

    Args:
        lives: the lines of each life of a worker.
        left: the remaining payloads.
        locks: False if the original takes no locks, so that it and jqueue may finish the same payload.
    """
    all_lines: dict[str, list[str]] = defaultdict(list)
    unsure: set[str] = set()
    for life in lives:
        of_it = defaultdict(set)
        for what, payload in life:
            of_it[what].add(payload)
            all_lines[what].append(payload)
        unsure |= of_it["finish"] - of_it["done"]
    added, done = set(all_lines["added"]), Counter(all_lines["done"])
    assert len(done) > 20, "too few jobs were done to prove anything"
    assert max(done.values()) <= (1 if locks else 2), "finished twice"
    assert not locks or not all_lines["lost"], "a claim was lost within its timeout"
    assert not done.keys() & set(left), "finished, and back in the queue"
    assert len(left) == len(set(left)), "in the queue twice"
    assert set() == added - done.keys() - set(left) - unsure, "lost"
    assert done.keys() | set(left) <= set(all_lines["try"]), "never added"
    print(json.dumps({"added": len(added), "done": len(done), "left": len(left), "unsure": len(unsure)}))


def payload_of(content: Any) -> bytes:
    """Return the payload of an element of an original."""
    payload: bytes = content["body"] if isinstance(content, dict) else content
    return payload


async def take_turns(
    queues: Sequence[Any],
    theirs: Any,
    rounds: int,
    *,
    as_element: Callable[[bytes], Any] = lambda payload: payload,
    locks: bool = True,
    purge: Callable[[], Any] = lambda: None,
) -> None:
    """Let queues of jqueue and an original take random turns, and assert that each payload is finished once.

    Args:
        queues: the queues of jqueue.
        theirs: the original.
        rounds: number of rounds of three turns.
        as_element: returns what the original adds for a payload.
        locks: False if the original takes no locks, so that jqueue holds no claims during its turns.
        purge: tidies up with the original.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    added: set[bytes] = set()
    done: list[bytes] = []
    held: list[Any] = []

    def take(most: int) -> list[bytes]:
        return [payload_of(content) for _, content in theirs.take(most)]

    for number in range(rounds):
        for which in chance.choices(["theirs", "ours", "take", "claim", "ack", "nack", "purge"], k=3):
            payload, queue = b"%d-%d-%d" % (number, chance.randrange(1 << 60), len(added)), chance.choice(queues)
            if which == "take" and not locks:
                while held:
                    await queue.nack(held.pop(), charge=False)
            if which == "theirs":
                theirs.add(as_element(payload))
                added.add(payload)
            elif which == "ours":
                await queue.enqueue(chance.choice(["messages", "other"]), payload)
                added.add(payload)
            elif which == "take":
                done += take(chance.randrange(3))
            elif which == "claim":
                held += await queue.dequeue(batch_size=chance.randrange(1, 4))
            elif which == "purge":
                purge()
            elif held:
                job = held.pop(chance.randrange(len(held)))
                if which == "ack":
                    await queue.ack(job)
                    done.append(job.payload)
                else:
                    await queue.nack(job, charge=chance.random() < 0.7)
    assert await queues[0].ack_many(held) == []
    done += [job.payload for job in held]
    while (await queues[0].read_state()).jobs:  # as above
        jobs = await queues[0].dequeue(batch_size=100, wait=60)
        assert await queues[0].ack_many(jobs) == []
        done += [job.payload for job in jobs]
    assert sorted(added) == sorted(done)
    assert [] == take(10)
