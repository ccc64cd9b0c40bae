"""jqueue and the real textqueue 1.0 and 1.1 from PyPI on one file: in turns and at the same time."""

import asyncio
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from tests.interop.environments import Interpreter
from tests.interop.formats.textqueue_programs import APPENDER, ENDLESS_READER, OURS, READ_ALL, READER
from tests.interop.formats.waiting import wait_until
from tests.unit.formats.test_textqueue_files import MESSAGES, messages

pytestmark = pytest.mark.wide

SECONDS = 60


def read_by(interpreter: Interpreter, *paths: Path) -> list[tuple[list[str], int]]:
    """The messages that an original finds queued in each file, and the number of lines that it cannot read."""
    printed = interpreter.run(READ_ALL, *map(str, paths), folder=paths[0].parent)
    return [(found, errors) for found, errors in map(json.loads, printed.splitlines())]


def queue_on(path: Path, **options: Any) -> StoreQueue:
    return StoreQueue(TextQueueFile(path, **{"fsync": False, "settle": 0.0, **options}))


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"-{text}\n")


def test_jqueue_and_1_1_find_the_same_messages_in_a_file(original, tmp_path):
    contents = [content for content in MESSAGES if b"\xff" not in content and b"\x85" not in content]
    paths = [tmp_path / f"{number}.tq" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    for content, (found, _) in zip(contents, read_by(original("textqueue-1.1"), *paths), strict=True):
        assert MESSAGES[content] == [text.encode() for text in found], content


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_file_of_textqueue_is_read_and_finished_as_textqueue_does(unpacked, original, version):
    after = (unpacked("textqueue-1.1") / "after.tq").read_bytes()
    path = unpacked(f"textqueue-{version}") / "before.tq"
    os.utime(path, (0, 0))
    expected = [b"first\ntwo lines", b"  padded  ", "größe".encode(), b"", b"last without newline"]
    assert expected == [payload for _, payload in asyncio.run(messages(path))]

    async def finish() -> None:
        async with queue_on(path) as queue:
            first, second = await queue.dequeue(batch_size=2)
            await queue.ack(first)
            await queue.nack(second, dead=True)

    asyncio.run(finish())
    assert after == path.read_bytes()
    assert read_by(original("textqueue-1.1"), path) == [([text.decode() for text in expected[2:]], 0)]


@pytest.mark.parametrize("single_lines", [False, True])
def test_a_file_written_by_jqueue_is_read_by_the_originals(original, tmp_path, single_lines):
    path = tmp_path / "queue.tq"
    texts = ["one", "", "  two  ", "-three", "grüß\u2028e\x00", *(["four\n\n five\n"] if not single_lines else [])]

    async def write() -> None:
        async with queue_on(path, single_lines=single_lines) as queue:
            for text in texts:
                await queue.enqueue("work", text.encode(), headers={"ü": "\n"})
            await queue.ack((await queue.dequeue())[0])

    asyncio.run(write())
    assert read_by(original("textqueue-1.1"), path) == [(texts[1:], 0)]
    if single_lines:
        assert read_by(original("textqueue-1.0"), path) == [([f"{text}\n" for text in texts[1:]], 0)]


class Reader:
    """A process of 1.1 that keeps the file open."""

    def __init__(self, interpreter: Interpreter, path: Path) -> None:
        self.process = subprocess.Popen(
            interpreter.command(READER, str(path)),
            env=interpreter.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self, count: int) -> list[str]:
        """Read and finish up to `count` messages."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        found: list[str] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        """End the process, and assert that it exits with 0."""
        self.process.communicate(timeout=SECONDS)
        assert self.process.returncode == 0


@contextmanager
def reader_on(interpreter: Interpreter, path: Path) -> Iterator[Reader]:
    reader = Reader(interpreter, path)
    try:
        yield reader
        reader.close()
    finally:
        reader.process.kill()
        reader.process.wait()
        for pipe in (reader.process.stdin, reader.process.stdout):
            assert pipe is not None
            pipe.close()


async def in_turns(path: Path, reader: Reader, turns: int, seed: int) -> None:
    """Both programs append, read and finish messages: each message is finished once, and none is lost."""
    dice = random.Random(seed)
    added: list[str] = []
    finished: Counter[str] = Counter()
    failed: set[str] = set()
    queue = queue_on(path, single_lines=True)
    for _ in range(turns):
        for _ in range(dice.randint(0, 3)):
            added.append(f"theirs {len(added)} ü" if dice.random() < 0.8 else "the same again")
            append(path, added[-1])
        new = [f"ours {len(added) + more} ü" for more in range(dice.randint(0, 3))]
        added += new
        await asyncio.gather(*(queue.enqueue("work", text.encode()) for text in new))
        for text in reader.take(dice.randint(0, 2)):
            finished[text] += 1
        for job in await queue.dequeue(batch_size=dice.randint(1, 3)):
            text = job.payload.decode()
            what = dice.random()
            if what < 0.7:
                await queue.ack(job)
                finished[text] += 1
            elif what < 0.8:
                await queue.nack(job, dead=True)
                failed.add(job.id)
            else:
                await queue.nack(job, error="again")
        if dice.random() < 0.1:
            await queue.aclose()
            queue = queue_on(path, single_lines=True)
        if dice.random() < 0.1:
            await queue.redrive()
    await queue.redrive()
    while jobs := await queue.dequeue(batch_size=2):
        await asyncio.gather(*map(queue.ack, jobs))
        finished.update(job.payload.decode() for job in jobs)
    await queue.aclose()
    assert Counter(added) == finished
    assert reader.take(1) == []


@pytest.mark.parametrize(
    ("turns", "seed"),
    [(60, 1), *(pytest.param(600, seed, marks=pytest.mark.full) for seed in (2, 3))],
)
def test_each_message_is_finished_once_in_turns_with_1_1(original, tmp_path, turns, seed):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"# by hand\n\n=done\n")
    with reader_on(original("textqueue-1.1"), path) as reader:
        asyncio.run(in_turns(path, reader, turns, seed))
    assert path.read_bytes().startswith(b"# by hand\n\n=done\n")
    for version in ("1.0", "1.1"):
        assert read_by(original(f"textqueue-{version}"), path) == [([], 0)]


class Worker:
    """A process that is killed at any moment."""

    def __init__(self, command: list[str], environment: dict[str, str], out: IO[bytes]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.PIPE)

    def kill(self) -> str:
        """Kill the process and return its error output."""
        self.process.kill()
        _, errors = self.process.communicate(timeout=SECONDS)
        return errors.decode()


def killed_at_random(path: Path, ours: Interpreter, theirs: Interpreter, kills: int, seed: int) -> list[list[str]]:
    """Run programs of both sides at once, and kill and restart each repeatedly. Returns the lines that they wrote."""
    dice = random.Random(seed)
    url = f"textq://{path}?fsync=false&settle=0.05"
    said = path.with_name("said")
    programs = {
        "producer": lambda name: (ours.command(OURS, url, "producer", name), ours.environment),
        "consumer": lambda name: (ours.command(OURS, url, "consumer", name), ours.environment),
        "another consumer": lambda name: (ours.command(OURS, url, "consumer", name), ours.environment),
        "appender": lambda name: (theirs.command(APPENDER, str(path), name), theirs.environment),
        "reader": lambda name: (theirs.command(ENDLESS_READER, str(path), name), theirs.environment),
    }
    errors = []
    with ExitStack() as stack, said.open("ab") as out:
        running: dict[str, Worker] = {}
        stack.callback(lambda: [worker.kill() for worker in running.values()])

        def start(role: str, number: int) -> None:
            command, environment = programs[role](f"{role}-{seed}-{number}")
            running[role] = Worker(command, environment, out)

        def wait_for(what: str, count: int) -> None:
            processes = [worker.process for worker in running.values()]
            wait_until(what, lambda: count <= said.read_bytes().count(f'["{what}"'.encode()), processes)

        for role in programs:
            start(role, 0)
        wait_for("begun", len(programs))
        for number in range(1, kills + 1):
            time.sleep(dice.uniform(0.05, 0.5))
            role = dice.choice(list(programs))
            errors.append(running.pop(role).kill())
            start(role, number)
        wait_for("marked", 1)
        for role in list(programs):
            errors.append(running.pop(role).kill())
    assert not any(errors), "\n".join(errors)
    return [json.loads(line) for line in said.read_bytes().splitlines()]


async def drain(path: Path) -> list[str]:
    """The texts of the remaining jobs, which are acked."""
    async with queue_on(path) as queue:
        await queue.requeue_stale(0)
        left: list[str] = []
        while jobs := await queue.dequeue(batch_size=100):
            left += [job.payload.decode() for job in jobs]
            await queue.ack_many(jobs)
    return left


@pytest.mark.parametrize(
    ("kills", "seed"), [(6, 1), *(pytest.param(120, seed, marks=pytest.mark.full) for seed in (2, 3))]
)
def test_no_message_is_lost_when_jqueue_and_1_1_run_at_once_and_are_killed(original, ours, tmp_path, kills, seed):
    path = tmp_path / "queue.tq"
    path.write_bytes(b"# begun by hand\n")
    said = killed_at_random(path, ours, original("textqueue-1.1"), kills, seed)
    added, read = ({text for what, text, *_ in said if what == wanted} for wanted in ("added", "read"))
    marked = Counter(text for what, text, *_ in said if what == "marked")
    left = asyncio.run(drain(path))
    done = read | set(left)
    assert added <= done, f"lost: {sorted(added - done)}"
    assert len(left) == len(set(left))
    assert not set(left) & set(marked), "a finished message came back"
    in_file = Counter(line[1:].decode() for line in path.read_bytes().splitlines() if line.startswith(b"="))
    assert set(in_file) == done | set(marked)
    assert max(in_file.values()) == 1
    assert max(marked.values()) <= 2, "at most once by the reader, which takes no lock, and once by jqueue"
    assert marked, "nothing was done at all"
    for version in ("1.0", "1.1"):
        assert read_by(original(f"textqueue-{version}"), path) == [([], 0)]
