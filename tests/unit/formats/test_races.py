"""What another program does between jqueue's read of an older format and its write: one wins, and nothing is lost."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from jqueue import JobNotFoundError
from jqueue.formats.queue import StoreQueue
from tests.unit.formats.places import in_each_format, open_queue


class Raced:
    """A store that calls a function once, between its scan and the next changes."""

    def __init__(self, store, race):
        self._store, self._race = store, race

    def __getattr__(self, name):
        return getattr(self._store, name)

    def carry_out(self, changes, now):
        race, self._race = self._race, lambda: None
        race()
        return self._store.carry_out(changes, now)


@pytest.mark.parametrize("kind", ["simple", "elements"])
async def test_of_two_queues_that_race_for_an_element_of_dirq_one_gets_it(kind, tmp_path):
    winner, claimed = open_queue(kind, tmp_path), []
    await winner.enqueue("work", b"payload")

    def race():
        with ThreadPoolExecutor(1) as thread:
            claimed.extend(thread.submit(asyncio.run, open_queue(kind, tmp_path).dequeue()).result())

    async with StoreQueue(Raced(open_queue(kind, tmp_path).store, race)) as loser:
        assert [] == await loser.dequeue()
    [job] = claimed
    await winner.ack(job)
    assert () == (await winner.read_state()).jobs


def appended(path):
    with open(path, "ab") as file:
        file.write(b"-theirs\n")


def saved_by_an_editor(path):
    path.with_name("edited").write_bytes(b"# edited\n-theirs\n" + path.read_bytes())
    os.replace(path.with_name("edited"), path)


@pytest.mark.parametrize("edit", [appended, saved_by_an_editor])
@pytest.mark.parametrize("write", ["write", "pwrite"])
async def test_a_text_file_edited_between_the_read_and_the_write_of_a_change_loses_nothing(
    write, edit, tmp_path, monkeypatch
):
    """The write is the append of a message, or the mark of one that is done."""
    path, real, edits = tmp_path / "queue", getattr(os, write), [edit]

    def meanwhile(descriptor, *arguments):
        if edits and os.path.samestat(os.fstat(descriptor), os.stat(path)):
            edits.pop()(path)
        return real(descriptor, *arguments)

    path.write_bytes(b"-held\n-waits\n")
    async with open_queue("text", tmp_path) as queue, open_queue("text", tmp_path) as other:
        [held] = await queue.dequeue(wait=60)
        monkeypatch.setattr(os, write, meanwhile)
        await (queue.enqueue("work", b"ours") if write == "write" else queue.ack(held))
        left = [sorted(job.payload for job in (await each.read_state()).jobs) for each in (queue, other)]
    assert [] == edits
    assert [[b"held", b"ours", b"theirs", b"waits"] if write == "write" else [b"theirs", b"waits"]] * 2 == left


async def test_a_message_that_is_edited_just_before_its_mark_is_not_marked(tmp_path, monkeypatch):
    path, real = tmp_path / "queue", os.pread

    def edited(descriptor, *arguments):
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            path.write_bytes(path.read_bytes().replace(b"held", b"HELD"))
        return real(descriptor, *arguments)

    path.write_bytes(b"-held\n-waits\n")
    async with open_queue("text", tmp_path) as queue:
        [held] = await queue.dequeue(wait=60)
        monkeypatch.setattr(os, "pread", edited)
        with pytest.raises(JobNotFoundError):
            await queue.ack(held)
    assert b"-HELD\n-waits\n" == path.read_bytes()


@in_each_format
async def test_a_claim_counts_the_attempt_that_another_process_made_after_the_scan(form, tmp_path):
    async with open_queue(form, tmp_path) as other:
        await other.enqueue("work", b"payload")

        def race():
            with ThreadPoolExecutor(1) as thread:
                thread.submit(asyncio.run, claimed_and_given_back()).result()

        async def claimed_and_given_back():
            async with open_queue(form, tmp_path) as third:
                [job] = await third.dequeue()
                await third.nack(job, charge=False)

        async with StoreQueue(Raced(open_queue(form, tmp_path).store, race)) as queue:
            [job] = await queue.dequeue()
        assert 2 == job.attempt
