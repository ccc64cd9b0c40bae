"""Notes of rows that tasks of a batch could not read."""

import asyncio
import os

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.operations import Enqueue
from jqueue.spark.staging import Staging
from jqueue.spark.stream.row_outcomes import OutcomeStore
from jqueue.spark.stream.unread_rows import UnreadNotes, decode_notes, encode_notes, name_of
from tests.tiny_segments import spilled, tiny_queue

pytestmark = pytest.mark.wide

HOLDER = "spark/query/claim"


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


@pytest.fixture
def store(url):
    return OutcomeStore(LocalFileSystemStorage(url))


def claimed(url):
    """Claim ranges of two segments for the batch `claim` of a query. Return the names of the segments."""

    async def claim():
        async with tiny_queue(LocalFileSystemStorage(url)) as queue:
            names = []
            for entrypoint in ("a", "b"):
                await queue.enqueue_many([Enqueue(entrypoint, b"")] * 12)
                await spilled(queue)
                found = await queue.claim_range(entrypoint, 12, holder=HOLDER)
                assert found is not None
                names.append(found.segment)
            return names

    return asyncio.run(claim())


def test_notes_of_several_tasks_are_joined_and_repeating_one_changes_nothing(url, store):
    one, two = claimed(url)
    notes = UnreadNotes(url, HOLDER, Staging(url, 60.0, 10.0))
    for _ in range(2):
        assert notes.note(one, [(0, 4), (8, 12)])
        assert notes.note(two, [(0, 4)])
        assert notes.note(one, [(4, 6)])
    assert {one: [(0, 6), (8, 12)], two: [(0, 4)]} == asyncio.run(store.unread("claim"))
    assert {} == asyncio.run(store.unread("other"))
    asyncio.run(store.remove("claim"))
    assert {} == asyncio.run(store.unread("claim"))


def test_nothing_is_noted_beside_a_queue_that_does_not_have_the_claim(url, store):
    """Such as the file of the same name on another machine."""
    one, _ = claimed(url)
    for holder, segment in (("spark/query/another", one), (HOLDER, "another")):
        assert not UnreadNotes(url, holder, Staging(url, 60.0, 10.0)).note(segment, [(0, 4)])
    os.unlink(url)
    assert not UnreadNotes(url, HOLDER, Staging(url, 60.0, 10.0)).note(one, [(0, 4)])
    assert {} == asyncio.run(store.unread("claim"))
    assert not os.path.exists(url)


async def test_updates_at_the_same_time_are_all_kept(url):
    async with Staging(url, 60.0, 10.0).opened() as objects:

        def adding(number):
            return lambda content: encode_notes({**decode_notes(content), f"{number}": [(number, number + 1)]})

        await asyncio.gather(*(objects.update(name_of("claim"), adding(number)) for number in range(5)))
        [content] = await objects.read([name_of("claim")])
    assert {f"{number}": [(number, number + 1)] for number in range(5)} == decode_notes(content)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"unread": [1]}', b'{"unread": {"one": [1]}}', b"\xff"])
def test_damaged_notes_are_an_error_and_no_row_counts_as_read(content):
    with pytest.raises(InvalidBlobError, match="unread rows"):
        decode_notes(content)
