"""jqueue and the real dirq on one folder: each reads what the other wrote, and heeds what it has locked."""

import asyncio
import os
import random

import pytest

from jqueue import connect
from tests.interop.formats.dirq_original import SCHEMA, Dirq

KINDS = {"simple": None, "queue": SCHEMA}

of_both_kinds = pytest.mark.parametrize("kind", KINDS)


def payload_of(content):
    return content["body"] if isinstance(content, dict) else content


def element(kind, payload):
    return payload if kind == "simple" else {"body": payload}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "messages"


@pytest.fixture
def ours(folder):
    def make(kind, **options):
        asked = "".join(f"&{name}={value}" for name, value in options.items())
        return connect(f"dirq://{folder}?kind={kind}&fsync=false{asked}", stale_timeout=300)

    return make


@pytest.fixture
def theirs(original, folder):
    opened = []

    def make(kind, **options):
        dirq = Dirq(original("dirq"), folder, KINDS[kind], **options)
        opened.append(dirq)
        return dirq

    yield make
    for dirq in opened:
        dirq.__exit__(None, None, None)


@of_both_kinds
async def test_each_takes_what_the_other_added_in_its_order(kind, ours, theirs):
    original = theirs(kind)
    async with ours(kind) as queue:
        for number in range(20):
            if number % 2:
                await queue.enqueue("messages", b"%d" % number)
            else:
                original.add(element(kind, b"%d" % number))
        for number in range(0, 20, 4):
            assert [b"%d" % number, b"%d" % (number + 1)] == [payload_of(got) for _, got in original.take(2)]
            jobs = await queue.dequeue(batch_size=2)
            assert [b"%d" % (number + 2), b"%d" % (number + 3)] == [job.payload for job in jobs]
            assert await queue.ack_many(jobs) == []
        assert 0 == original.count()
        assert () == (await queue.read_state()).jobs


@of_both_kinds
async def test_neither_takes_what_the_other_has_locked(kind, ours, theirs):
    original = theirs(kind)
    async with ours(kind) as queue:
        names = [original.add(element(kind, b"%d" % number)) for number in range(3)]
        assert original.lock(names[1])
        [first, third] = await queue.dequeue(batch_size=10)
        assert [b"0", b"2"] == [first.payload, third.payload]
        assert not any(original.lock(name) for name in names)
        assert names == original.names()
        await queue.heartbeat(first)
        original.unlock(names[1])
        [second] = await queue.dequeue()
        assert (names[1], b"1") == (second.id, second.payload)
        await queue.nack(third, charge=False)
        assert original.lock(names[2])
        assert b"2" == payload_of(original.get(names[2]))
        original.remove(names[2])
        assert await queue.ack_many([first, second]) == []
        assert 0 == original.count()


@of_both_kinds
async def test_the_original_walks_counts_and_purges_among_jobs_of_every_state(kind, ours, theirs, folder):
    original = theirs(kind)
    async with ours(kind) as queue:
        for number in range(8):
            await queue.enqueue("other" if number % 2 else "messages", b"%d" % number, headers={"a": "b" * 2000})
        dead, again, held, acked = await queue.dequeue(batch_size=4)
        await queue.nack(dead, dead=True, error="it failed")
        await queue.nack(again, error="not yet")
        await queue.ack(acked)
        for ages in ((300, 600), (0, 0), (1, 1)):
            original.purge(*ages)
            assert 6 == len(original.names())
        assert (6 if kind == "simple" else 7) == original.count(), "a dead job is a folder, which it counts"
        assert await queue.redrive() == 1
        original.purge()
        await queue.heartbeat(held)
        left = [payload_of(content) for _, content in original.take(10)]
        assert [b"4", b"5", b"6", b"7", b"1", b"0"] == left
        await queue.ack(held)
        original.purge()
        assert 0 == original.count()


@of_both_kinds
async def test_a_claim_that_the_original_revoked_and_took_is_lost(kind, ours, theirs, folder):
    original = theirs(kind)
    async with ours(kind) as queue:
        name = original.add(element(kind, b"payload"))
        [job] = await queue.dequeue()
        os.utime(folder / name, (1, 1))
        original.purge(300, 600)
        with pytest.raises(Exception, match="claim"):
            await queue.heartbeat(job)
        assert original.lock(name)
        for verb in (queue.ack, queue.nack, queue.heartbeat):
            with pytest.raises(Exception, match="claim"):
                await verb(job)
        assert b"payload" == payload_of(original.get(name))
        original.remove(name)
        assert 0 == original.count()


@of_both_kinds
async def test_headers_payloads_and_attempts_outlast_a_turn_at_the_original(kind, ours, theirs):
    original = theirs(kind)
    async with ours(kind) as queue:
        sent = await queue.enqueue("work", b"\x00\xff\r\n", headers={"back\\key": "line\n\\t"}, max_attempts=5)
        await queue.nack((await queue.dequeue())[0])
        [name] = original.names()
        assert original.lock(name)
        content = original.get(name)
        assert b"\x00\xff\r\n" == payload_of(content)
        if kind == "queue":
            assert {"back\\key": "line\n\\t"} == content["header"]
        original.unlock(name)
        [job] = await queue.dequeue("work")
        assert (sent.id, 2, 2, 5) == (job.id, job.attempt, job.failures, job.max_attempts)
        assert (sent.payload, sent.headers) == (job.payload, job.headers)


def test_what_the_original_made_is_read(unpacked):
    async def read(url):
        async with connect(url) as queue:
            state = await queue.read_state()
            return [(job.payload, str(job.status), dict(job.headers)) for job in state.queued_jobs()], [
                job.payload for job in state.in_progress_jobs()
            ]

    simple, elements = unpacked("dirq-1.8-simple"), unpacked("dirq-1.8-queue")
    waiting, locked = asyncio.run(read(f"dirq://{simple}/queue"))
    texts = [b"first", b"", b"two\nlines\r\n", bytes(range(256)), "größe".encode(), "größe".encode()]
    assert [(text, "queued", {}) for text in texts] == waiting
    assert [b"locked", b"stale lock"] == locked
    assert ([(b"hourly", "queued", {})], []) == asyncio.run(read(f"dirq://{simple}/hourly?granularity=3600"))
    schema = "schema=body:binary,text:string?,header:table?"
    waiting, locked = asyncio.run(read(f"dirq://{elements}/queue?{schema}"))
    assert [b"first", b"", bytes(range(256)), b"next dir"] == [payload for payload, _, _ in waiting]
    assert {"text": ""} == waiting[1][2]
    table = {"a": "1", "tab\tkey": "line\nvalue", "back\\slash": "\\t not a tab", "": "empty", "z": ""}
    assert {**table, "text": "größe\r\n☺\0"} == waiting[2][2]
    assert [b"locked", b"stale"] == locked
    waiting, _ = asyncio.run(read(f"dirq://{elements}/strings?schema=body:string,header:table"))
    assert [(b"text", "queued", {"k": "v"})] == waiting


@of_both_kinds
@pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=pytest.mark.full)])
async def test_taking_turns_at_random_nothing_is_lost_or_done_twice(kind, ours, theirs, rounds, tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    original = theirs(kind, **({"maxelts": 7} if kind == "queue" else {}))
    added: set[bytes] = set()
    done: list[bytes] = []
    options = {"maxelts": 7} if kind == "queue" else {}
    async with ours(kind, **options) as queue, ours(kind, **options) as other:
        held = []
        for number in range(rounds):
            for which in chance.choices(["theirs", "ours", "take", "claim", "ack", "nack", "purge"], k=3):
                payload = b"%d-%d-%d" % (number, chance.randrange(1 << 60), len(added))
                if which == "theirs":
                    original.add(element(kind, payload))
                    added.add(payload)
                elif which == "ours":
                    await chance.choice([queue, other]).enqueue(chance.choice(["messages", "other"]), payload)
                    added.add(payload)
                elif which == "take":
                    done += [payload_of(content) for _, content in original.take(chance.randrange(3))]
                elif which == "claim":
                    held += await chance.choice([queue, other]).dequeue(batch_size=chance.randrange(1, 4))
                elif which == "purge":
                    original.purge()
                elif held:
                    job = held.pop(chance.randrange(len(held)))
                    if which == "ack":
                        await chance.choice([queue, other]).ack(job)
                        done.append(job.payload)
                    else:
                        await chance.choice([queue, other]).nack(job, charge=chance.random() < 0.7)
        done += [job.payload for job in held]
        assert await queue.ack_many(held) == []
        done += [payload_of(content) for _, content in original.take(10**6)]
    assert sorted(added) == sorted(done)
