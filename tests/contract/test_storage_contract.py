"""Every storage that needs no server keeps the storage contract, and so does a storage with only two methods."""

import asyncio

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError
from jqueue.testing import StorageContract
from tests.two_methods import TwoMethods


class TestInMemoryStorage(StorageContract):
    @pytest.fixture
    def make_storage(self):
        storage = InMemoryStorage()
        return lambda: storage


class TestLocalFileSystemStorage(StorageContract):
    increments = 4

    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "folder" / "queue.json", lock_timeout=60)


class TestTwoMethods(StorageContract):
    @pytest.fixture
    def make_storage(self):
        storage = TwoMethods()

        async def open_storage():
            return storage

        return open_storage


class Careless(TwoMethods):
    """A storage with one of the faults that the contract must find."""

    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    async def read(self):
        content, etag = await super().read()
        if self.fault == "text" and content:
            return content.replace(b"\r\n", b"\n"), etag
        return content, "none" if self.fault == "absent" and etag is None else etag

    async def write(self, content, if_match=None):
        if self.fault == "torn":
            self.content = content[: len(content) // 2]
            await asyncio.sleep(0)
        if self.fault == "check, then write":
            _, etag = await self.read()
            if etag == if_match:
                await asyncio.sleep(0)
                if_match = (await self.read())[1]
        if self.fault == "overwriting create" and if_match is None:
            if_match = (await self.read())[1]
        if self.fault == "ignored etag" and if_match is not None:
            if_match = (await self.read())[1]
        if self.fault == "same etag" and content == self.content:
            return f"v{self.version}"
        etag = await super().write(content, if_match)
        return "w" + etag if self.fault == "another etag" else etag


@pytest.mark.parametrize(
    ("fault", "finder"),
    [
        ("absent", "test_an_absent_object_reads_as_nothing_without_an_etag"),
        ("another etag", "test_a_created_object_is_read_through_every_handle"),
        ("overwriting create", "test_a_second_creator_is_refused_and_changes_nothing"),
        ("ignored etag", "test_a_stale_etag_is_refused_and_changes_nothing"),
        ("check, then write", "test_racing_increments_are_all_counted"),
        ("same etag", "test_every_write_gives_a_new_etag_for_the_same_bytes_too"),
        ("text", "test_bytes_come_back_exactly"),
        ("torn", "test_a_reader_never_sees_a_torn_object"),
        ("torn", "test_a_cancelled_write_leaves_the_old_or_the_new_object"),
    ],
)
async def test_the_contract_finds_a_fault(fault, finder):
    storage = Careless(fault)
    with pytest.raises((AssertionError, CASConflictError, pytest.fail.Exception)):
        await getattr(StorageContract(), finder)(lambda: storage)
