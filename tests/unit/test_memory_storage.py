"""The storage in memory, beyond the storage contract."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError


async def test_a_store_can_start_with_content():
    content, etag = await InMemoryStorage(b"first").read()
    assert (b"first", True) == (content, bool(etag))


async def test_no_initial_content_means_no_object():
    assert (b"", None) == await InMemoryStorage(initial_content=b"").read()


async def test_an_object_of_no_bytes_exists():
    storage = InMemoryStorage()
    etag = await storage.write(b"")
    assert (b"", etag) == await storage.read()


async def test_the_repr_of_a_store_shows_no_content():
    storage = InMemoryStorage(b"secret")
    await storage.write(b"secret too", (await storage.read())[1])
    assert "secret" not in repr(storage)


async def test_written_content_does_not_change_with_its_buffer():
    storage, buffer = InMemoryStorage(), bytearray(b"first")
    content: Any = buffer
    writing = asyncio.create_task(storage.write(content))
    await asyncio.sleep(0)
    buffer[:] = b"later"
    await writing
    assert b"first" == (await storage.read())[0]


def test_the_time_of_a_store_is_that_of_its_clock():
    class Noon:
        def now(self):
            return datetime(2030, 1, 1, 12, tzinfo=UTC)

        def monotonic(self):
            return 0.0

    assert datetime(2030, 1, 1, 12, tzinfo=UTC) == InMemoryStorage(clock=Noon()).store_time()


def test_event_loops_in_several_threads_share_a_store():
    storage = InMemoryStorage()

    async def increment():
        for _ in range(200):
            while True:
                content, etag = await storage.read()
                try:
                    await storage.write(b"%d" % (int(content or b"0") + 1), etag)
                except CASConflictError:
                    continue
                break

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(asyncio.run, increment()) for _ in range(4)]:
            done.result()
    assert b"800" == asyncio.run(storage.read())[0]


async def test_a_conflict_says_which_etag_was_found():
    storage = InMemoryStorage()
    with pytest.raises(CASConflictError, match=r"no object in memory.*'7'"):
        await storage.write(b"late", "7")
    await storage.write(b"first")
    with pytest.raises(CASConflictError, match="exists already"):
        await storage.write(b"second")
    with pytest.raises(CASConflictError, match="etag '1' and not '7'"):
        await storage.write(b"late", "7")
