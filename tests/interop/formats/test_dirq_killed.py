"""jqueue and the real dirq work on one folder at the same time, in processes that are killed at random moments."""

import asyncio
import collections
import random
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from jqueue import connect
from jqueue.adapters.formats.dirq import DirqElements, DirqSimple
from tests.interop.formats.waiting import wait_until

LEAST_DONE = 20
"""So many jobs are done at the least, however slow the machine is."""

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

STUMBLES = r"^cannot rmdir\(.*\): .*Directory not empty: '.*/((temporary|obsolete)/[0-9a-f]{14}|[0-9a-f]{8})'$"
"""What `purge` of dirq says of an element that another program is adding, is removing, or died with; and of a folder
that was empty when it looked, and is not when it removes it."""

THEIRS = (
    COMMON
    + f"STUMBLES = {STUMBLES!r}"
    + r"""
import re
from dirq.QueueSimple import QueueSimple
from dirq.queue import Queue
queue = QueueSimple(folder, granularity=1) if kind == "simple" else Queue(folder, schema={"body": "binary"}, maxelts=5)
while True:
    for payload in payloads():
        note("try", payload)
        queue.add(payload if kind == "simple" else {"body": payload})
        note("added", payload)
    name, taken = queue.first(), 0
    while name and taken < 3:
        if queue.lock(name):
            taken += 1
            content = queue.get(name)
            payload = content if kind == "simple" else content["body"]
            note("finish", payload)
            queue.remove(name)
            note("done", payload)
        name = queue.next()
    queue.count()
    try:
        queue.purge()
    except OSError as error:  # it stumbles over what it left itself, being killed in an add or a remove
        if not re.search(STUMBLES, str(error)):
            raise
"""
)

KILLED = r"""
import os, signal, sys
from dirq.queue import Queue
folder, verb, event = sys.argv[1:]
queue = Queue(folder, schema={"body": "binary"})
name = queue.add({"body": b"left"})
assert queue.lock(name)

def hear(heard, arguments):
    if heard == event and folder in str(arguments[0]):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hear)
queue.remove(name) if verb == "remove" else queue.add({"body": b"left"})
"""

PURGE = r"""
import sys
from dirq.queue import Queue
queue = Queue(sys.argv[1], schema={"body": "binary"})
try:
    queue.purge()
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(("verb", "event"), [("add", "os.rename"), ("remove", "os.remove")])
def test_originals_alone_stumble_over_what_one_of_them_died_with_until_we_tidy_up(verb, event, original, tmp_path):
    dirq, folder = original("dirq"), tmp_path / "queue"
    command = dirq.command(KILLED, str(folder), verb, event)
    assert -signal.SIGKILL == subprocess.run(command, env=dirq.environment, check=False).returncode
    assert re.search(STUMBLES, dirq.run(PURGE, str(folder), folder=tmp_path).strip())
    DirqElements(folder).purge(datetime.now(UTC) + timedelta(hours=1))
    assert "" == dirq.run(PURGE, str(folder), folder=tmp_path)


PAUSED_ADD = r"""
import sys
from dirq.queue import Queue
folder = sys.argv[1]
queue = Queue(folder, schema={"body": "binary"}, maxelts=2)

def hear(heard, arguments):
    if heard == "os.rename":
        print("about to rename", flush=True)
        sys.stdin.readline()

sys.addaudithook(hear)
queue.add({"body": b"late"})
print("added", flush=True)
"""

PAUSED_PURGE = r"""
import sys
from dirq.queue import Queue
folder = sys.argv[1]
queue = Queue(folder, schema={"body": "binary"}, maxelts=2)
names = [queue.add({"body": b"1"})]
print("one is there", flush=True)
sys.stdin.readline()
names += [queue.add({"body": b"2"}), queue.add({"body": b"3"})]
for name in names[:2]:
    queue.lock(name)
    queue.remove(name)

def hear(heard, arguments):
    if heard == "os.rmdir":
        print("about to remove", flush=True)
        sys.stdin.readline()

sys.addaudithook(hear)
try:
    queue.purge()
except OSError as error:
    print(error, flush=True)
"""


def test_originals_alone_stumble_over_a_folder_into_which_one_of_them_adds_late(original, tmp_path):
    dirq, folder = original("dirq"), tmp_path / "queue"
    with ExitStack() as stack:

        def start(program):
            command = dirq.command(program, str(folder))
            process = subprocess.Popen(
                command, env=dirq.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        def says(process, go_on=False):
            if go_on:
                process.stdin.write("\n")
                process.stdin.flush()
            return process.stdout.readline().strip()

        purging = start(PAUSED_PURGE)
        assert "one is there" == says(purging)
        adding = start(PAUSED_ADD)
        assert "about to rename" == says(adding)
        assert "about to remove" == says(purging, go_on=True)
        assert "added" == says(adding, go_on=True)
        assert re.search(STUMBLES, says(purging, go_on=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.full)])
def test_nothing_is_lost_or_finished_twice_however_often_they_are_killed(kind, seconds, original, ours, tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    folder, journals = tmp_path / "queue", tmp_path / "journals"
    journals.mkdir()
    url = f"dirq://{folder}?kind={kind}&fsync=false" + ("&granularity=1" if kind == "simple" else "&schema=body:binary")
    running: list[subprocess.Popen[str] | None] = [None] * 4
    kills = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until or kills < 4 or _done(journals) <= LEAST_DONE:
        place = chance.randrange(4)
        process = running[place]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate(timeout=30)
            assert -signal.SIGKILL == process.returncode, errors
            kills += 1
        interpreter, program = (original("dirq"), THEIRS) if place == 0 else (ours, OURS)
        journal = journals / f"{len(list(journals.iterdir()))}-{place}"
        journal.touch()
        arguments = [url, str(folder), kind, str(journal), str(chance.randrange(1 << 60))]
        process = running[place] = subprocess.Popen(
            interpreter.command(program, *arguments), env=interpreter.environment, stderr=subprocess.PIPE, text=True
        )
        wait_until("it has begun", partial(_has_begun, journal), [process])
        time.sleep(chance.uniform(0.1, min(1.5, seconds / 4)))
    for process in running:
        if process is not None:
            process.send_signal(signal.SIGKILL)
            _, errors = process.communicate(timeout=30)
            assert -signal.SIGKILL == process.returncode, errors
    _audit(asyncio.run(_drain(url, KINDS[kind](folder))), journals)


def _has_begun(journal):
    return journal.stat().st_size > 0


def _done(journals):
    return sum(journal.read_text().count("done ") for journal in journals.iterdir())


async def _drain(url, store):
    """What is left, once all that is held is free again."""
    store.purge(datetime.now(UTC) + timedelta(hours=1))
    left = []
    async with connect(url) as queue:
        await queue.requeue_stale(0)
        while jobs := await queue.dequeue(batch_size=100):
            left += [job.payload.decode() for job in jobs]
            assert await queue.ack_many(jobs) == []
        assert () == (await queue.read_state()).jobs
    return left


def _audit(left, journals):
    said = collections.defaultdict(list)
    unsure = set()
    for journal in journals.iterdir():
        of_it = collections.defaultdict(list)
        for line in journal.read_text().splitlines():
            what, _, payload = line.partition(" ")
            of_it[what].append(payload)
            said[what].append(payload)
        unsure |= set(of_it["finish"]) - set(of_it["done"])
    added, done = set(said["added"]), said["done"]
    assert len(done) > LEAST_DONE, "it was to be proved on jobs"
    assert [] == [payload for payload, times in collections.Counter(done).items() if times > 1], "finished twice"
    assert set() == set(done) & set(left), "finished, and there again"
    assert [] == [payload for payload, times in collections.Counter(left).items() if times > 1], "there twice"
    assert set() == added - set(done) - set(left) - unsure, "lost"
    assert set(done) | set(left) <= set(said["try"]), "nobody added it"
    print(f"{len(added)} added, {len(done)} done, {len(left)} left, {len(unsure)} unsure")
