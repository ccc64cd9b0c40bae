"""The contract of jqueue and dirq, in Python or Perl, on one folder: each reads the other's elements and locks."""

import os

import pytest

from jqueue import ClaimLostError, connect
from tests.interop.formats.mixed import payload_of, take_turns

of_both_kinds = pytest.mark.parametrize("kind", ["simple", "queue"])


def element(kind, payload):
    return payload if kind == "simple" else {"body": payload}


class DirqContract:
    """A subclass has a fixture `theirs`: a function of a kind and options, which opens a queue of the original.

    Attributes:
        counted_dead: number by which a dead job of jqueue raises `count` of the original's kind `queue`.
    """

    counted_dead = 0

    @pytest.fixture
    def folder(self, tmp_path):
        return tmp_path / "messages"

    @pytest.fixture
    def ours(self, folder):
        def make(kind, **options):
            asked = "".join(f"&{name}={value}" for name, value in options.items())
            return connect(f"dirq://{folder}?kind={kind}{asked}", stale_timeout=300)

        return make

    @of_both_kinds
    async def test_elements_of_the_original_are_served_even_if_jobs_of_jqueue_are_always_ready(
        self, kind, ours, theirs
    ):
        original = theirs(kind)
        async with ours(kind) as queue:
            for _ in range(2):
                await queue.enqueue("messages", b"ours")
            await queue.nack((await queue.dequeue())[0])
            original.add(element(kind, b"theirs"))
            assert 3 == (await queue.stats()).depth
            for _ in range(500):
                [job] = await queue.dequeue()
                if job.payload == b"theirs":
                    break
                await queue.nack(job, error="it failed")
            assert b"theirs" == job.payload

    @of_both_kinds
    async def test_neither_program_takes_an_element_of_the_other_until_its_lock_is_old(
        self, kind, ours, theirs, folder
    ):
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
            os.utime(folder / names[2], (1, 1))
            original.purge(300, 600)
            assert original.lock(names[2])
            for verb in (queue.heartbeat, queue.ack, queue.nack):
                with pytest.raises(ClaimLostError):
                    await verb(third)
            assert b"2" == payload_of(original.get(names[2]))
            original.remove(names[2])
            assert await queue.ack_many([first, second]) == []
            assert 0 == original.count()

    @of_both_kinds
    async def test_the_original_lists_counts_and_purges_a_folder_with_jobs_of_every_state(
        self, kind, ours, theirs, folder
    ):
        original = theirs(kind)
        async with ours(kind) as queue:
            for number in range(8):
                await queue.enqueue("other" if number % 2 else "messages", b"%d" % number, headers={"a": "b" * 2000})
            dead, again, held, acked = await queue.dequeue(batch_size=4)
            await queue.nack(dead, dead=True, error="it failed")
            await queue.nack(again, error="not yet")
            await queue.ack(acked)
            for ages in ((300, 600), (0, 0), (1, 100)):
                original.purge(*ages)
                assert 6 == len(original.names())
            dead_ones = self.counted_dead if kind == "queue" else 0
            assert 6 + dead_ones == original.count()
            assert await queue.redrive() == 1
            original.purge()
            await queue.heartbeat(held)
            left = [payload_of(content) for _, content in original.take(10)]
            assert [b"4", b"5", b"6", b"7", b"1", b"0"] == left
            await queue.ack(held)
            original.purge()
            assert 0 == original.count()

    @of_both_kinds
    async def test_headers_payloads_and_attempts_survive_a_lock_by_the_original(self, kind, ours, theirs):
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

    @of_both_kinds
    @pytest.mark.parametrize("rounds", [40, pytest.param(600, marks=pytest.mark.full)])
    async def test_random_turns_of_both_programs_lose_nothing_and_do_nothing_twice(self, kind, ours, theirs, rounds):
        options = {"maxelts": 7} if kind == "queue" else {}
        original = theirs(kind, **options)
        async with ours(kind, **options) as queue, ours(kind, **options) as other:
            await take_turns(
                [queue, other],
                original,
                rounds,
                as_element=lambda payload: element(kind, payload),
                purge=original.purge,
            )
