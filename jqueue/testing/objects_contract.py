"""The contract of objects beside a queue: tests that every storage with `SupportsObjects` must pass.

Use it as `StorageContract`, with the same fixture:

    class TestObjectsOfMyStorage(ObjectsContract):
        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

There is nothing beside the object of the test at first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from jqueue.domain.errors import CASConflictError, ObjectMissingError
from jqueue.ports.storage import SupportsObjects, SupportsScratch, SupportsStoreTime
from jqueue.testing._storage_handles import StorageFactory, StorageHandles

EVERY_BYTE = bytes(range(256))


async def pieces_of(content: bytes, sizes: Iterable[int]) -> AsyncIterator[bytes]:
    """Yield a content in pieces of these sizes, and then its rest."""
    for size in sizes:
        yield content[:size]
        content = content[size:]
    yield content


@pytest.mark.asyncio
class ObjectsContract(StorageHandles):
    """Subclass it, give it a `make_storage` fixture, and set the attributes that differ for a slow or unusual store.

    Attributes:
        creators: number of callers that create the same object at once.
        created: number of objects that are created under their readers.
        large_object: size of the largest object, in bytes. It must take several requests.
        large_objects_are_created_once: False for a store that replaces an existing object by one from pieces.
        failed_names_are_free: False for a store that keeps the name of an object whose creation from pieces has failed.
    """

    creators = 10
    created = 10
    large_object = 11 * 1024 * 1024 + 7
    large_objects_are_created_once = True
    failed_names_are_free = True

    @asynccontextmanager
    async def objects(self, make_storage: StorageFactory, count: int = 1) -> AsyncIterator[list[SupportsObjects]]:
        """Open `count` handles, as `handles` does, which must support objects."""
        async with self.handles(make_storage, count) as opened:
            supported: list[SupportsObjects] = [each for each in opened if isinstance(each, SupportsObjects)]
            assert len(supported) == count, "the storage must have all methods of SupportsObjects"
            yield supported

    async def assert_nothing_is_beside(self, storage: SupportsObjects, suffix: str) -> None:
        """Check that there is no object with this suffix, nor any other."""
        assert await storage.list_beside(".") == [], "an object that was not created must not be listed"
        with pytest.raises(ObjectMissingError):
            await storage.read_object(suffix)

    async def test_a_created_object_is_read_through_every_handle(self, make_storage: StorageFactory) -> None:
        contents = {".a": b"", ".b": b"\n \r\n\0\xff", ".folder/c": EVERY_BYTE, ".folder/deep.er/d": EVERY_BYTE * 999}
        async with self.objects(make_storage, 2) as [creator, other]:
            for suffix, content in contents.items():
                await creator.create_object(suffix, content)
            for storage in (creator, other):
                assert {suffix: await storage.read_object(suffix) for suffix in contents} == contents

    async def test_an_object_is_created_only_once(self, make_storage: StorageFactory) -> None:
        async with self.objects(make_storage, 2) as [storage, other]:
            await storage.create_object(".history/1", b"first")
            for creator in (storage, other):
                with pytest.raises(CASConflictError):
                    await creator.create_object(".history/1", b"first")
                with pytest.raises(CASConflictError):
                    await creator.create_object_from(".history/1", pieces_of(b"second", [3]))
            if self.large_objects_are_created_once:
                with pytest.raises(CASConflictError):
                    await other.create_object_from(".history/1", pieces_of(bytes(self.large_object), []))
            assert await storage.read_object(".history/1") == b"first"

    async def test_of_racing_creators_exactly_one_wins(self, make_storage: StorageFactory) -> None:
        contents = [b"creator %d " % number * 1000 for number in range(self.creators)]
        async with self.objects(make_storage, self.creators) as creators:
            outcomes = await asyncio.gather(
                *(
                    creator.create_object_from(".raced/1", pieces_of(content, [7]))
                    if number % 2
                    else creator.create_object(".raced/1", content)
                    for number, (creator, content) in enumerate(zip(creators, contents, strict=True))
                ),
                return_exceptions=True,
            )
            won = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
            lost = [outcome for outcome in outcomes if isinstance(outcome, CASConflictError)]
            assert len(won) == 1, f"exactly one creator must succeed: {outcomes}"
            assert len(lost) == self.creators - 1, f"every other creator must get CASConflictError: {outcomes}"
            assert await creators[won[0] - 1].read_object(".raced/1") == contents[won[0]]

    async def test_a_range_ends_before_its_stop_or_with_the_object(self, make_storage: StorageFactory) -> None:
        ranges = [(0, None), (0, 5), (3, 7), (9, 10), (3, None), (5, 5), (8, 99), (10, 11), (10, None), (99, 200)]
        async with self.objects(make_storage) as [storage]:
            await storage.create_object(".ten", b"0123456789")
            for start, stop in ranges:
                part = await storage.read_object(".ten", start, stop)
                assert part == b"0123456789"[start:stop], f"a wrong range from {start} to {stop}"
            await storage.create_object(".none", b"")
            for start, stop in [(0, None), (0, 1), (1, None)]:
                assert await storage.read_object(".none", start, stop) == b""
            for start, stop in [(-1, None), (0, -1), (3, 2)]:
                with pytest.raises(ValueError, match="range"):
                    await storage.read_object(".ten", start, stop)

    async def test_pieces_of_any_sizes_become_one_object(self, make_storage: StorageFactory) -> None:
        async with self.objects(make_storage, 2) as [storage, other]:
            for number, sizes in enumerate([[], [0, 1, 0, 254], [256, 0], [1] * 255]):
                suffix = f".pieces/{number}"
                assert await storage.create_object_from(suffix, pieces_of(EVERY_BYTE, sizes)) == 256
                assert await other.read_object(suffix) == EVERY_BYTE
            assert await storage.create_object_from(".pieces/none", pieces_of(b"", [])) == 0
            assert await other.read_object(".pieces/none") == b""

    async def test_a_large_object_is_whole_and_appears_after_its_last_piece(self, make_storage: StorageFactory) -> None:
        content = bytes(range(251)) * (self.large_object // 251 + 1)
        async with self.objects(make_storage, 2) as [storage, other]:

            async def watched() -> AsyncIterator[bytes]:
                async for piece in pieces_of(content, [1, 3_000_000, 77, 2**20]):
                    yield piece
                    await self.assert_nothing_is_beside(other, ".large/1")

            assert await storage.create_object_from(".large/1", watched()) == len(content)
            assert await other.read_object(".large/1") == content
            middle = len(content) // 2
            assert await other.read_object(".large/1", middle, middle + 1000) == content[middle : middle + 1000]
            assert [(each.suffix, each.size) for each in await other.list_beside(".large")] == [
                (".large/1", len(content))
            ]

    @pytest.mark.parametrize("size", [10, None], ids=["small", "large"])
    async def test_pieces_that_fail_leave_nothing(self, make_storage: StorageFactory, size: int | None) -> None:
        async def failing() -> AsyncIterator[bytes]:
            yield bytes(self.large_object if size is None else size)
            raise LookupError("no more pieces")

        async with self.objects(make_storage) as [storage]:
            with pytest.raises(LookupError, match="no more pieces"):
                await storage.create_object_from(".failed/1", failing())
            await self.assert_nothing_is_beside(storage, ".failed/1")
            if self.failed_names_are_free:
                await storage.create_object(".failed/1", b"the name is still free")

    @pytest.mark.parametrize("size", [10, None], ids=["small", "large"])
    async def test_a_cancelled_caller_leaves_nothing(self, make_storage: StorageFactory, size: int | None) -> None:
        waiting = asyncio.Event()

        async def endless() -> AsyncIterator[bytes]:
            yield bytes(self.large_object if size is None else size)
            waiting.set()
            await asyncio.Event().wait()

        async with self.objects(make_storage) as [storage]:
            creation = asyncio.create_task(storage.create_object_from(".left/1", endless()))
            await waiting.wait()
            creation.cancel()
            await asyncio.wait([creation])
            assert creation.cancelled()
            await self.assert_nothing_is_beside(storage, ".left/1")
            if self.failed_names_are_free:
                await storage.create_object(".left/1", b"the name is still free")

    async def test_a_reader_finds_a_whole_object_or_none(self, make_storage: StorageFactory) -> None:
        contents = {f".watched/{number}": b"%03d," % number * 50_000 for number in range(self.created)}
        done = asyncio.Event()

        async def create(storage: SupportsObjects) -> None:
            try:
                for number, (suffix, content) in enumerate(contents.items()):
                    if number % 2:
                        await storage.create_object(suffix, content)
                    else:
                        await storage.create_object_from(suffix, pieces_of(content, [99_999]))
            finally:
                done.set()

        async def watch(storage: SupportsObjects) -> None:
            while not done.is_set():
                for listed in await storage.list_beside(".watched/"):
                    assert listed.size == len(contents[listed.suffix]), "an object was listed before it was whole"
                for suffix, content in contents.items():
                    try:
                        seen = await storage.read_object(suffix)
                    except ObjectMissingError:
                        break
                    assert seen == content, "a reader found a part of an object"

        async with self.objects(make_storage, 3) as [creator, *readers]:
            await asyncio.gather(create(creator), *map(watch, readers))
            assert [each.suffix for each in await creator.list_beside(".")] == sorted(contents)

    async def test_objects_are_listed_by_the_beginning_of_their_suffix(self, make_storage: StorageFactory) -> None:
        suffixes = [".history-2/1", ".history/000001", ".history/000002", ".history/1/2.3", ".histories", ".other/1"]
        async with self.objects(make_storage) as [storage]:
            assert await storage.list_beside(".history/") == []
            before = storage.store_time() if isinstance(storage, SupportsStoreTime) else None
            for size, suffix in enumerate(suffixes):
                await storage.create_object(suffix, bytes(size))
            for prefix in (".", ".hist", ".history", ".history/", ".history/0", ".history/1/2", ".other/1", ".x"):
                objects = await storage.list_beside(prefix)
                assert [(each.suffix, each.size) for each in objects] == sorted(
                    (suffix, size) for size, suffix in enumerate(suffixes) if suffix.startswith(prefix)
                ), f"a wrong listing of {prefix}"
                assert all(each.modified.utcoffset() == timedelta(0) for each in objects), "modified must be in UTC"
            after = storage.store_time() if isinstance(storage, SupportsStoreTime) else None
            if before is not None and after is not None:  # stores tell whole seconds, and so does HTTP
                [listed] = await storage.list_beside(".other/1")
                assert before - timedelta(seconds=5) <= listed.modified <= after + timedelta(seconds=5)

    async def test_a_removed_object_is_missing_and_can_be_removed_again(self, make_storage: StorageFactory) -> None:
        async with self.objects(make_storage, 2) as [storage, other]:
            for suffix in (".old/1", ".old/2"):
                await storage.create_object(suffix, b"x")
            for remover in (other, storage):
                await remover.remove_object(".old/1")
            await storage.remove_object(".never/1")
            with pytest.raises(ObjectMissingError):
                await storage.read_object(".old/1")
            assert [each.suffix for each in await storage.list_beside(".")] == [".old/2"]

    async def test_the_error_for_a_missing_object_names_it(self, make_storage: StorageFactory) -> None:
        async with self.objects(make_storage) as [storage]:
            await storage.create_object(".history/1", b"x")
            for suffix in (".history/2", ".histor", ".history/1-2", ".none/1"):
                for start, stop in [(0, None), (5, 9)]:
                    with pytest.raises(ObjectMissingError) as raised:
                        await storage.read_object(suffix, start, stop)
                    assert raised.value.name.endswith(suffix)
                    assert raised.value.name in str(raised.value)

    async def test_queues_side_by_side_do_not_see_each_others_objects(self, make_storage: StorageFactory) -> None:
        async with self.objects(make_storage) as [storage]:
            if not isinstance(storage, SupportsScratch):
                pytest.skip("this store has no `beside`, which opens the second queue")
            other = storage.beside("2")
            assert isinstance(other, SupportsObjects)
            await storage.create_object(".history/1", b"of the first")
            await other.create_object(".history/1", b"of the second")
            await other.create_object(".history/2", b"of the second")
            assert await storage.read_object(".history/1") == b"of the first"
            assert [each.suffix for each in await storage.list_beside(".")] == [".history/1"]
            assert [each.suffix for each in await other.list_beside(".")] == [".history/1", ".history/2"]
            await storage.remove_object(".history/2")
            assert await other.read_object(".history/2") == b"of the second"

    async def test_objects_and_the_queue_leave_each_other_alone(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage) as [storage]:
            assert isinstance(storage, SupportsObjects)
            await storage.create_object(".history/1", b"before the queue")
            assert await storage.read() == (b"", None)
            etag = await storage.write(b"the queue")
            await storage.create_object(".history/2", b"after the queue")
            assert await storage.read() == (b"the queue", etag)
            await storage.write(b"the queue, changed", etag)
            assert [each.suffix for each in await storage.list_beside(".")] == [".history/1", ".history/2"]
            assert await storage.read_object(".history/1") == b"before the queue"

    @pytest.mark.parametrize(
        "suffix", ["", "a", "/a", ".", "..", "./a", ".a/", ".a//b", ".a/../b", ".a/.b", ".a b", ".ä", ".lock", ".a.tmp"]
    )
    async def test_other_suffixes_are_refused(self, make_storage: StorageFactory, suffix: str) -> None:
        async with self.objects(make_storage) as [storage]:
            for call in (
                storage.create_object(suffix, b"x"),
                storage.create_object_from(suffix, pieces_of(b"x", [])),
                storage.read_object(suffix),
                storage.remove_object(suffix),
            ):
                with pytest.raises(ValueError, match="suffix"):
                    await call
