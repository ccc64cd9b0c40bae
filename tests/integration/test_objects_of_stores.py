"""Objects beside a queue on real servers: their requests, their faults on the way, and the memory that they take."""

import asyncio
import copy
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest

from jqueue import CASConflictError, LocalFileSystemStorage, StorageError
from jqueue.domain.errors import StorageThrottledError
from jqueue.testing.objects_contract import pieces_of
from tests.object_stores import store_of
from tests.servers.fault_kinds import DropAnswer, Latency, ReplaceAnswer, TruncateAnswer
from tests.servers.fault_proxy import FaultProxy

ONE = ".history/1"
SMALL = b"0123456789" * 1000
PART = 5 * 1024 * 1024
LARGE = bytes(range(251)) * (2 * PART // 251 + 10)
"""It takes three parts."""

UPLOADS = {
    "seaweedfs": [("POST", 200), *[("PUT", 200)] * 3, ("POST", 200)],
    "azurite": [("PUT", 201)] * 4,
    "gcs_server": [("POST", 200), ("PUT", 308), ("PUT", 308), ("PUT", 200)],
}
CREATED = {"seaweedfs": ("PUT", 200), "azurite": ("PUT", 201), "gcs_server": ("POST", 200)}
REMOVED = {"seaweedfs": ("DELETE", 204), "azurite": ("DELETE", 202), "gcs_server": ("DELETE", 204)}

on_each_server = pytest.mark.parametrize(
    "server", ["seaweedfs", *(pytest.param(name, marks=pytest.mark.wide) for name in ("azurite", "gcs_server"))]
)


@asynccontextmanager
async def behind_a_proxy(request, name):
    """Return a storage for a new object behind a proxy, and the proxy."""
    honest = store_of(request, name)
    address = urlsplit(honest.address)
    assert address.hostname is not None
    assert address.port is not None
    async with asyncio.timeout(60), FaultProxy(address.hostname, address.port) as proxy:
        store = copy.copy(honest)
        store.url = proxy.url
        async with store.open(store.new_key(), timeout=30) as storage:
            yield storage, proxy


def taken(proxy):
    """Return the requests and their status since the last call."""
    requests = [(request.method, request.status) for request in proxy.requests]
    proxy.requests.clear()
    return requests


async def unfinished_uploads(request, storage, server):
    """Return the number of uploads that take room in the store, although no object will come of them."""
    if server == "gcs_server":
        return request.getfixturevalue(server).unfinished_uploads
    async with storage._client.lend() as client:
        listed = await client.list_multipart_uploads(Bucket=storage.bucket, Prefix=storage.key)
        return len(listed.get("Uploads", ()))


@on_each_server
async def test_each_call_takes_as_few_requests_as_the_store_allows(request, server):
    async with behind_a_proxy(request, server) as (storage, proxy):
        await storage.create_object(ONE, SMALL)
        assert SMALL[5:9] == await storage.read_object(ONE, 5, 9)
        assert b"" == await storage.read_object(ONE, 5, 5)
        await storage.remove_object(ONE)
        assert [CREATED[server], ("GET", 206), REMOVED[server]] == taken(proxy)
        await storage.create_object_from(".small", pieces_of(SMALL, [1, 2, 3]))
        assert [CREATED[server]] == taken(proxy), "what fits into one part needs no upload in parts"
        await storage.create_object_from(".large", pieces_of(LARGE, [1, 2, 3]))
        assert UPLOADS[server] == taken(proxy)


@on_each_server
async def test_an_answer_that_is_cut_off_is_never_taken_for_the_range(request, server):
    async with behind_a_proxy(request, server) as (storage, proxy):
        await storage.create_object(ONE, SMALL)
        for start, stop in [(0, None), (500, 9000)]:
            for fault in (TruncateAnswer(body=0.5), TruncateAnswer(head=20)):
                proxy.next(fault, method="GET")
                try:
                    found = await storage.read_object(ONE, start, stop)
                except StorageError:
                    continue
                assert SMALL[start:stop] == found, "a client may ask again, and then gets the whole range"
        assert 4 == proxy.fired[TruncateAnswer]


@on_each_server
@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
async def test_a_creation_whose_answer_is_lost_has_landed(request, server, content):
    """The client may send the last request again, which then finds the object."""
    *before, (last, _) = UPLOADS[server] if content is LARGE else [CREATED[server]]
    async with behind_a_proxy(request, server) as (storage, proxy):
        if times := [method for method, _ in before].count(last):
            proxy.next(Latency(), method=last, times=times)
        proxy.next(DropAnswer(), method=last)
        with pytest.raises((StorageError, CASConflictError)):
            await storage.create_object_from(ONE, pieces_of(content, []))
        assert content == await storage.read_object(ONE)


@on_each_server
async def test_an_upload_that_fails_is_not_repeated_and_leaves_no_parts(request, server):
    async with behind_a_proxy(request, server) as (storage, proxy):
        proxy.next(Latency(), method="PUT")
        proxy.next(ReplaceAnswer(500, ask=False), method="PUT")
        with pytest.raises(StorageError, match=r"\.history/1: the store failed \(500"):
            await storage.create_object_from(ONE, pieces_of(LARGE, []))
        assert 2 == proxy.count("PUT")
        assert [] == await storage.list_beside(".")
        if server != "azurite":  # which drops such blocks by itself
            assert 0 == await unfinished_uploads(request, storage, server)


@pytest.mark.wide
async def test_a_part_that_cloud_storage_keeps_only_in_part_is_an_error(request, gcs_server):
    async with behind_a_proxy(request, "gcs_server") as (storage, proxy):
        proxy.next(ReplaceAnswer(308, headers=(("Range", "bytes=0-262143"),)), method="PUT")
        with pytest.raises(StorageError, match="kept only a part"):
            await storage.create_object_from(ONE, pieces_of(LARGE, []))
        assert [] == await storage.list_beside(".")


@on_each_server
async def test_an_upload_whose_pieces_end_early_leaves_no_parts(request, server):
    waiting = asyncio.Event()

    async def endless():
        yield LARGE
        waiting.set()
        await asyncio.Event().wait()

    async with behind_a_proxy(request, server) as (storage, _):
        creation = asyncio.create_task(storage.create_object_from(ONE, endless()))
        await waiting.wait()
        if server != "azurite":
            assert 1 == await unfinished_uploads(request, storage, server)
        creation.cancel()
        await asyncio.wait([creation])
        if server != "azurite":
            assert 0 == await unfinished_uploads(request, storage, server)
        assert [] == await storage.list_beside(".")


async def test_a_throttled_creation_is_told_apart(request, seaweedfs):
    async with behind_a_proxy(request, "seaweedfs") as (storage, proxy):
        proxy.next(ReplaceAnswer(503, ask=False), method="PUT")
        with pytest.raises(StorageThrottledError):
            await storage.create_object(ONE, SMALL)
        assert 1 == proxy.count("PUT")


async def repeated(piece, times):
    for _ in range(times):
        yield piece


@pytest.mark.parametrize("place", ["file", "seaweedfs", pytest.param("azurite", marks=pytest.mark.wide)])
async def test_an_object_from_pieces_takes_less_memory_than_sixteen_mebibytes(request, tmp_path, place):
    piece = bytes(1_000_003)
    async with AsyncExitStack() as closing:
        if place == "file":
            storage = LocalFileSystemStorage(tmp_path / "queue.json")
        else:
            store = store_of(request, place)
            storage = await closing.enter_async_context(store.open(store.new_key(), timeout=60))
        await storage.list_beside(".")  # the client is open
        tracemalloc.start()
        closing.callback(tracemalloc.stop)
        assert 64 * len(piece) == await storage.create_object_from(ONE, repeated(piece, 64))
        assert tracemalloc.get_traced_memory()[1] <= 16 * 1024 * 1024
        assert [64 * len(piece)] == [listed.size for listed in await storage.list_beside(".")]
        await storage.remove_object(ONE)
