"""The storage contract: tests that every storage adapter must pass, to be inherited by the adapter's own test suite.

The queue's safety rests on these properties of a store, and on no others. Test an adapter like this, with pytest
and pytest-asyncio in either mode:

    class TestMyStorage(StorageContract):
        @pytest.fixture
        def make_storage(self, tmp_path):
            return lambda: MyStorage(tmp_path / "object")

`make_storage` returns a function, plain or async, that opens one more handle on the object of this test. The object
does not exist at first. Handles that have `release` are released by the test.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jqueue.domain.errors import CASConflictError
from jqueue.ports.storage import (
    ObjectStoragePort,
    SupportsReadIfChanged,
    SupportsStoreTime,
)
from jqueue.testing._storage_handles import StorageFactory as StorageFactory
from jqueue.testing._storage_handles import StorageHandles, cancel_at, rewrite


async def count_up(storage: ObjectStoragePort, times: int) -> None:
    """Add one to the number in an object, `times` times, while other writers do the same."""
    for _ in range(times):
        await rewrite(storage, lambda content: b"%d" % (int(content or b"0") + 1))


@pytest.mark.asyncio
class StorageContract(StorageHandles):
    """Subclass it, give it a `make_storage` fixture, and set the attributes that differ for a slow or unusual store.

    Attributes:
        etag_names_the_write: False for a store whose etag is a hash of the content, such as S3.
        writers: number of writers that race each other.
        increments: number of increments that each of them makes.
        large_body: size of the largest object, in bytes.
        overwrites: number of times that an object is replaced under its readers, and that writes are cancelled.
        patience: seconds after which a test counts as hung.
    """

    etag_names_the_write = True
    writers = 20
    increments = 20
    large_body = 5 * 1024 * 1024
    overwrites = 20

    async def test_an_absent_object_reads_as_nothing_without_an_etag(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage) as [storage]:
            assert await storage.read() == (b"", None)

    async def test_a_created_object_is_read_through_every_handle(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, 2) as [creator, other]:
            etag = await creator.write(b"first")
            assert isinstance(etag, str), "an etag must be a str"
            assert etag, "an etag must not be empty, as an empty one means no etag"
            assert await creator.read() == (b"first", etag), "write must return the etag that the next read returns"
            assert await other.read() == (b"first", etag), "all handles of one object must see the same etag"

    async def test_a_matching_etag_replaces_the_object(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, 2) as [storage, other]:
            first = await storage.write(b"first")
            second = await storage.write(b"second, and longer", first)
            third = await other.write(b"3", second)
            assert len({first, second, third}) == 3, "each content must have its own etag"
            assert await storage.read() == (b"3", third)

    async def test_a_stale_etag_is_refused_and_changes_nothing(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, 2) as [storage, other]:
            first = await storage.write(b"first")
            second = await other.write(b"second", first)
            with pytest.raises(CASConflictError):
                await storage.write(b"late", first)
            assert await storage.read() == (b"second", second)

    async def test_a_second_creator_is_refused_and_changes_nothing(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, 2) as [storage, other]:
            etag = await storage.write(b"first")
            for creator in (storage, other):
                with pytest.raises(CASConflictError):
                    await creator.write(b"second")
            assert await storage.read() == (b"first", etag)

    async def test_an_etag_matches_no_absent_object(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage) as [storage]:
            with pytest.raises(CASConflictError):
                await storage.write(b"late", "0123456789abcdef0123456789abcdef")
            assert await storage.read() == (b"", None)

    async def test_of_racing_creators_exactly_one_wins(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, self.writers) as creators:
            outcomes = await asyncio.gather(
                *(creator.write(b"creator %d" % number) for number, creator in enumerate(creators)),
                return_exceptions=True,
            )
            won = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, str)]
            lost = [outcome for outcome in outcomes if isinstance(outcome, CASConflictError)]
            assert len(won) == 1, f"exactly one creator must succeed: {outcomes}"
            assert len(lost) == self.writers - 1, f"every other creator must get CASConflictError: {outcomes}"
            assert await creators[0].read() == (b"creator %d" % won[0], outcomes[won[0]])

    async def test_racing_increments_are_all_counted(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, self.writers) as writers:
            await asyncio.gather(*(count_up(writer, self.increments) for writer in writers))
            content, _ = await writers[0].read()
            assert int(content) == self.writers * self.increments, "an update was lost, or counted twice"

    async def test_every_write_gives_a_new_etag_for_the_same_bytes_too(self, make_storage: StorageFactory) -> None:
        if not self.etag_names_the_write:
            pytest.skip("the etag of this store depends on the content alone")
        async with self.handles(make_storage) as [storage]:
            etags: list[str | None] = [None]
            for _ in range(self.overwrites):
                etags.append(await storage.write(b"the same", etags[-1]))
            assert len(set(etags)) == self.overwrites + 1
            with pytest.raises(CASConflictError):
                await storage.write(b"late", etags[-2])

    async def test_bytes_come_back_exactly(self, make_storage: StorageFactory) -> None:
        texts = [b"\n", b"\r\n", b" padded \n\n", b"\0", b"\xef\xbb\xbfmarked", b"\xff\xfe"]
        every_byte = bytes(range(256))
        async with self.handles(make_storage) as [storage]:
            etag = None
            for body in [*texts, every_byte, every_byte * 999]:
                etag = await storage.write(body, etag)
                assert await storage.read() == (body, etag)

    async def test_large_objects_are_written_whole_and_replaced_by_small_ones(
        self, make_storage: StorageFactory
    ) -> None:
        large = bytes(range(251)) * (self.large_body // 251 + 1)
        async with self.handles(make_storage, 2) as [storage, other]:
            etag = await storage.write(large)
            content, etag_read = await other.read()
            assert (content == large, etag_read) == (True, etag)
            etag = await storage.write(b"small", etag)
            assert await other.read() == (b"small", etag)

    async def test_a_reader_never_sees_a_torn_object(self, make_storage: StorageFactory) -> None:
        # Each body is one byte value over and over, in a length of its own.
        lengths = [self.large_body // 8 + 4096 * number for number in range(self.overwrites)]
        seen: dict[str | None, tuple[int, ...]] = {None: ()}
        done = asyncio.Event()

        async def overwrite(storage: ObjectStoragePort) -> None:
            try:
                etag = None
                for number, length in enumerate(lengths):
                    etag = await storage.write(bytes([number]) * length, etag)
            finally:
                done.set()

        async def watch(storage: ObjectStoragePort) -> None:
            while not done.is_set():
                content, etag = await storage.read()
                summary = (content[0], len(content)) if content else ()
                assert content == b"" or content == content[:1] * lengths[content[0]], (
                    "read returned a content that was never written"
                )
                assert seen.setdefault(etag, summary) == summary, "two contents have the same etag"

        async with self.handles(make_storage, 3) as [writer, *readers]:
            await asyncio.gather(overwrite(writer), *map(watch, readers))

    async def test_a_cancelled_write_leaves_the_old_or_the_new_object(self, make_storage: StorageFactory) -> None:
        clock = asyncio.get_running_loop()
        async with self.handles(make_storage, 2) as [storage, other]:
            old = b"old" * 50_000
            began = clock.time()
            etag = await storage.write(old)
            duration = clock.time() - began

            def replacement(_: bytes) -> bytes:
                return old

            for number in range(self.overwrites):
                new = b"new %d " % number * 30_000
                write = asyncio.create_task(storage.write(new, etag))
                await cancel_at(write, number, self.overwrites, duration)
                content, _ = await other.read()
                assert content in (old, new), "a cancelled write left a part of its content"
                old = b"old %d " % number * 30_000
                etag = await rewrite(other, replacement)  # the cancelled write may still land
            assert await storage.read() == (old, etag), "a cancelled write with a stale etag landed afterwards"

    async def test_read_if_changed_agrees_with_read(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage, 2) as [storage, other]:
            if not isinstance(storage, SupportsReadIfChanged):
                pytest.skip("this store has no read_if_changed, which is optional")
            assert await storage.read_if_changed("0123456789abcdef0123456789abcdef") == (b"", None)
            first = await storage.write(b"first")
            assert await storage.read_if_changed(first) is None
            second = await other.write(b"second", first)
            assert await storage.read_if_changed(first) == (b"second", second)
            assert await storage.read_if_changed(second) is None
            assert await storage.read() == (b"second", second)

    async def test_the_time_of_the_store_says_its_zone(self, make_storage: StorageFactory) -> None:
        async with self.handles(make_storage) as [storage]:
            if not isinstance(storage, SupportsStoreTime):
                pytest.skip("this store has no store_time, which is optional")
            await storage.write(b"first")
            await storage.read()
            now = storage.store_time()
            assert now is None or now.utcoffset() == timedelta(0), "store_time must return a time with time zone UTC"
