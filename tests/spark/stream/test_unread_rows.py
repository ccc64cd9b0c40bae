"""Notes of rows that tasks of a batch could not read."""

import asyncio

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import InvalidBlobError
from jqueue.spark.staging import Staging
from jqueue.spark.stream.row_outcomes import OutcomeStore
from jqueue.spark.stream.unread_rows import UnreadNotes, decode_notes, encode_notes, name_of

pytestmark = pytest.mark.wide


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "queue.json")


@pytest.fixture
def store(url):
    return OutcomeStore(LocalFileSystemStorage(url))


def test_notes_of_several_tasks_are_joined_and_repeating_one_changes_nothing(url, store):
    notes = UnreadNotes(Staging(url, 60.0, 10.0), "claim")
    for _ in range(2):
        notes.note("one", [(0, 4), (8, 12)])
        notes.note("two", [(0, 4)])
        notes.note("one", [(4, 6)])
    assert {"one": [(0, 6), (8, 12)], "two": [(0, 4)]} == asyncio.run(store.unread("claim"))
    assert {} == asyncio.run(store.unread("other"))
    asyncio.run(store.remove("claim"))
    assert {} == asyncio.run(store.unread("claim"))


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
