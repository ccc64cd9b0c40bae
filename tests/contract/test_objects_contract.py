"""Memory and files keep the contract of objects beside a queue, and the contract finds storages that do not."""

import asyncio
import inspect
from datetime import timedelta

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, JQueueError, ObjectMissingError
from jqueue.ports.storage import Listed
from jqueue.testing import ObjectsContract
from jqueue.testing.faults import FaultyObjects


class TestObjectsInMemory(ObjectsContract):
    @pytest.fixture
    def make_storage(self):
        storage = InMemoryStorage()
        return lambda: storage


class TestObjectsInFiles(ObjectsContract):
    @pytest.fixture
    def make_storage(self, tmp_path):
        return lambda: LocalFileSystemStorage(tmp_path / "folder" / "queue.json", lock_timeout=60)


class TestObjectsBehindFaults(ObjectsContract):
    @pytest.fixture
    def make_storage(self):
        storage = InMemoryStorage()
        return lambda: FaultyObjects(storage)


class Careless(InMemoryStorage):
    """A storage whose objects have one of the faults that the contract must find."""

    fault = ""

    async def create_object(self, suffix, content):
        if self.fault == "check, then create":
            if any(each.suffix == suffix for each in await self.list_beside(suffix)):
                raise CASConflictError("it exists")
            await asyncio.sleep(0)
        if self.fault in ("overwriting", "check, then create"):
            await self.remove_object(suffix)
        await super().create_object(suffix, content)

    async def create_object_from(self, suffix, pieces):
        if self.fault == "visible too early":
            content = b""
            async for piece in pieces:
                await self.remove_object(suffix)
                content += piece
                await super().create_object(suffix, content)
            return len(content)
        if self.fault == "keeps a part":
            content = b""
            try:
                async for piece in pieces:
                    content += piece
            finally:
                await self.create_object(suffix, content)
            return len(content)
        return await super().create_object_from(suffix, pieces)

    async def read_object(self, suffix, start=0, stop=None):
        if self.fault == "last byte too" and stop is not None and stop > start:
            stop += 1
        try:
            content = await super().read_object(suffix)
        except ObjectMissingError:
            if self.fault == "missing is empty":
                return b""
            raise
        if start < 0 or (stop is not None and stop < start):
            return await super().read_object(suffix, start, stop)
        return content[start:stop]

    async def remove_object(self, suffix):
        if self.fault != "removes nothing":
            await super().remove_object(suffix)

    async def list_beside(self, prefix):
        found = await super().list_beside(prefix)
        if self.fault == "no folders":
            found = [each for each in found if "/" not in each.suffix]
        if self.fault == "first page only":
            found = found[:2]
        if self.fault == "wrong time":
            found = [each._replace(modified=each.modified - timedelta(hours=1)) for each in found]
        if self.fault == "neighbours":
            found = [Listed(name.lstrip("2"), self.store_time(), 1) for name in self._all if prefix in name]
        return found


@pytest.mark.parametrize(
    ("fault", "finder"),
    [
        ("overwriting", "test_an_object_is_created_only_once"),
        ("check, then create", "test_of_racing_creators_exactly_one_wins"),
        ("visible too early", "test_a_large_object_is_whole_and_appears_after_its_last_piece"),
        ("keeps a part", "test_pieces_that_fail_leave_nothing"),
        ("last byte too", "test_a_range_ends_before_its_stop_or_with_the_object"),
        ("missing is empty", "test_the_error_for_a_missing_object_names_it"),
        ("removes nothing", "test_a_removed_object_is_missing_and_can_be_removed_again"),
        ("no folders", "test_objects_are_listed_by_the_beginning_of_their_suffix"),
        ("first page only", "test_objects_are_listed_by_the_beginning_of_their_suffix"),
        ("wrong time", "test_objects_are_listed_by_the_beginning_of_their_suffix"),
        ("neighbours", "test_queues_side_by_side_do_not_see_each_others_objects"),
    ],
)
async def test_the_contract_finds_a_fault(fault, finder):
    test = getattr(ObjectsContract(), finder)
    sizes = {"size": 10} if "size" in inspect.signature(test).parameters else {}
    healthy, storage = Careless(), Careless()
    await test(lambda: healthy, **sizes)
    storage.fault = fault
    with pytest.raises((AssertionError, JQueueError, pytest.fail.Exception)):
        await test(lambda: storage, **sizes)
