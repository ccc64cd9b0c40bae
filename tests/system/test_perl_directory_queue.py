"""jqueue and Perl's Directory::Queue on one folder: the contract of Python's dirq, and behaviour of Perl alone."""

import os
import random
import re
import time

import pytest

from jqueue import connect
from jqueue.domain.errors import ClaimLostError
from tests.interop.formats.dirq_contract import DirqContract, element, of_both_kinds
from tests.interop.formats.mixed import payload_of
from tests.interop.formats.originals import SCHEMA, OriginalError
from tests.system.directory_queue import DirectoryQueue

pytestmark = pytest.mark.system

OLD = 1_000_000_000

AWKWARD = ["", " ", "\\", "\\t", "\\\\n", "\t", "\n", "\r\n", "\0", "ö", "☺", "\U0001f600", "\u2028", "\ufeff", "\x85"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "messages"


@pytest.fixture
def theirs(folder):
    opened = []

    def make(kind, *, path=folder, schema=SCHEMA, **options):
        opened.append(DirectoryQueue(path, schema if kind == "queue" else None, **options))
        return opened[-1]

    yield make
    for queue in opened:
        queue.__exit__(None, None, None)


def ours(folder, kind, **options):
    asked = "".join(f"&{name}={value}" for name, value in options.items())
    return connect(f"dirq://{folder}?kind={kind}{asked}", stale_timeout=300)


def everything_in(folder):
    """The paths in a folder of dirq, without the files of jqueue itself."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if ".jqueue" not in path.parts)


def modes(folder):
    """The modes of a folder and everything in it, by role in the format."""
    found = {"": folder.stat().st_mode & 0o7777}
    for name in everything_in(folder):
        part = re.sub(r"\b[0-9a-f]{14}\b", "element", re.sub(r"^[0-9a-f]{8}", "folder", name))
        found[part] = (folder / name).stat().st_mode & 0o7777
    return found


class TestDirectoryQueue(DirqContract):
    @pytest.fixture
    def theirs(self, theirs):
        assert theirs("simple").version().startswith("2.")
        return theirs


@of_both_kinds
async def test_elements_are_equal_after_hundreds_of_turns_in_both_directions(kind, theirs, folder):
    schema = {"body": "binary", "text": "string?", "header": "table?"}
    perl = theirs(kind, schema=schema)
    chance = random.Random(7)
    asked = {"schema": "body:binary,text:string?,header:table?"} if kind == "queue" else {}
    async with ours(folder, kind, **asked) as queue:
        for number in range(300):
            body = chance.randbytes(chance.choice([0, 1, 7, 300]))
            words = ["".join(chance.choices(AWKWARD, k=chance.randrange(4))) for _ in range(5)]
            names = words[:2] if number % 2 else [word for word in words[:2] if word and word.isprintable()]
            table = dict(zip(names, words[2:], strict=False)) if chance.random() < 0.7 else {}
            text = words[4] if chance.random() < 0.5 else None
            content = {"body": body, "header": table, "text": text}
            content = {name: value for name, value in content.items() if name == "body" or value not in (None, {})}
            if number % 2:
                name = perl.add(content if kind == "queue" else body)
                [job] = await queue.dequeue()
                assert (name, body) == (job.id, job.payload)
                if kind == "queue":
                    assert {**({} if text is None else {"text": text}), **table} == job.headers
                await queue.ack(job)
            else:
                headers = {**table, **({} if text is None else {"text": text})}
                job = await queue.enqueue("messages", body, headers=headers)
                [(name, taken)] = perl.take(5)
                assert (job.id, body) == (name, payload_of(taken))
                if kind == "queue":
                    assert content == taken
            assert 0 == perl.count()
    assert [] == [name for name in everything_in(folder) if re.search(r"[0-9a-f]{14}", name)], "something is left"


@of_both_kinds
@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
async def test_files_and_folders_have_the_same_modes_in_both_programs(kind, umask, theirs, folder, tmp_path):
    perl, beside = theirs(kind, umask=umask), tmp_path / "beside"
    assert perl.lock(perl.add(element(kind, b"payload")))
    async with ours(beside, kind, umask=f"{umask:o}") as queue:
        await queue.enqueue("messages", b"payload")
        await queue.dequeue()
    made = modes(beside)
    assert modes(folder) == {part: made[part] for part in modes(folder)}
    assert set(made) - set(modes(folder)) <= {"temporary", "obsolete"}


@of_both_kinds
async def test_both_programs_lock_an_old_element(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        for number in range(2):
            os.utime(folder / perl.add(element(kind, b"%d" % number)), (OLD, OLD))
        [first] = await queue.dequeue()
        assert [] == perl.purge()
        assert [b"1"] == [payload_of(taken) for _, taken in perl.take(2)]
        await queue.ack(first)
        assert 0 == perl.count()


@of_both_kinds
async def test_a_perl_lock_is_stale_after_the_timeout_unless_touched(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        name = perl.add(element(kind, b"payload"))
        assert perl.lock(name)
        os.utime(folder / name, (OLD, OLD))
        perl.touch(name)
        assert 0 == await queue.requeue_stale(600)
        assert [] == await queue.dequeue()
        os.utime(folder / name, (OLD, OLD))
        assert 1 == await queue.requeue_stale(600)
        [job] = await queue.dequeue()
        assert not perl.lock(name)
        await queue.ack(job)
        assert [] == perl.names()


@of_both_kinds
async def test_perl_cannot_finish_an_element_after_losing_its_lock(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        name = perl.add(element(kind, b"payload"))
        assert perl.lock(name)
        assert 1 == await queue.requeue_stale(0)
        [job] = await queue.dequeue()
        with pytest.raises(OriginalError, match=r"cannot unlink|not locked"):
            perl.remove(name)
        await queue.ack(job)
        assert [] == perl.names()


@of_both_kinds
async def test_a_claim_is_lost_when_perl_finishes_the_element_late(kind, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        name = perl.add(element(kind, b"payload"))
        assert perl.lock(name)
        os.utime(folder / name, (OLD, OLD))
        assert 1 == len(perl.purge())
        [job] = await queue.dequeue()
        perl.remove(name)
        for verb in (queue.heartbeat, queue.nack, queue.ack):
            with pytest.raises(ClaimLostError):
                await verb(job)
        assert [] == [left for left in everything_in(folder) if name[-14:] in left]


@of_both_kinds
@pytest.mark.parametrize(("age", "freed"), [(100, 0), (620, 1)])  # seconds; the simple kind of 2.2 frees after 300
async def test_the_purge_of_perl_frees_a_claim_without_heartbeats_for_minutes(kind, age, freed, theirs, folder):
    perl = theirs(kind)
    async with ours(folder, kind) as queue:
        await queue.enqueue("messages", b"payload")
        [job] = await queue.dequeue()
        os.utime(folder / job.id, (time.time() - age,) * 2)
        assert freed == len(perl.purge())
        assert freed == perl.lock(job.id)


@of_both_kinds
async def test_both_programs_make_and_remove_folders(kind, theirs, folder):
    options = {"granularity": 1} if kind == "simple" else {"maxelts": 2}
    perl = theirs(kind, **options)
    async with ours(folder, kind, **options) as queue:
        for number in range(12):
            if number % 2:
                perl.add(element(kind, b"%d" % number))
            else:
                await queue.enqueue("messages", b"%d" % number)
            if kind == "simple" and number % 4 == 3:  # as if the folder were minutes old
                last = max(name for name in everything_in(folder) if re.fullmatch("[0-9a-f]{8}", name))
                (folder / last).rename(folder / f"{int(last, 16) - 1000 + number:08x}")
        folders = [name for name in everything_in(folder) if re.fullmatch("[0-9a-f]{8}", name)]
        assert (len(folders) >= 3) if kind == "simple" else (6 == len(folders))
        assert [b"%d" % number for number in range(10)] == [payload_of(taken) for _, taken in perl.take(10)]
        perl.purge()
        kept = [name for name in everything_in(folder) if re.fullmatch("[0-9a-f]{8}", name)]
        assert folders[-1:] == kept
        await queue.enqueue("messages", b"12")
        assert [b"10", b"11", b"12"] == [job.payload for job in await queue.dequeue(batch_size=9)]
        perl.add(element(kind, b"13"))
        assert 4 == perl.count()
