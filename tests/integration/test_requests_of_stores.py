"""Requests to a store, counted by a proxy between the real client and the real server: a store charges for each."""

import asyncio
import copy
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from jqueue import BrokerQueue, CASConflictError, DirectQueue, LocalFileSystemStorage, StorageError
from jqueue.testing.objects_contract import pieces_of
from tests.object_stores import behind_a_proxy, store_of
from tests.servers.fault_kinds import DropAnswer, ReplaceAnswer, TruncateAnswer

WRITES = {"seaweedfs": ("PUT", 200), "azurite": ("PUT", 201), "gcs_server": ("POST", 200)}
READS = {
    "seaweedfs": ("GET", 200),
    "azurite": ("GET", 206),
    "gcs_server": ("GET", 200),
}  # Azure's client requests ranges
UNCHANGED, ABSENT = ("GET", 304), ("GET", 404)
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
REMOVED = {"seaweedfs": ("DELETE", 204), "azurite": ("DELETE", 202), "gcs_server": ("DELETE", 204)}

on_each_server = pytest.mark.parametrize(
    "server", ["seaweedfs", *(pytest.param(name, marks=pytest.mark.wide) for name in ("azurite", "gcs_server"))]
)


@asynccontextmanager
async def counted(request, name):
    """Return a storage for a new object behind a counting proxy, the proxy, and a storage without the proxy."""
    honest = store_of(request, name)
    async with behind_a_proxy(honest) as (store, proxy):
        key = honest.new_key()
        async with honest.open(key, timeout=30) as direct:
            yield store.open(key, timeout=30), proxy, direct


class CountingThreads(ThreadPoolExecutor):
    """One thread, which a handler of the program occupies, and the number of calls that were given to it."""

    def __init__(self):
        super().__init__(1)
        self.over, self.calls = threading.Event(), -1
        self.submit(self.over.wait)

    def submit(self, *arguments, **options):
        self.calls += 1
        return super().submit(*arguments, **options)


def taken(proxy):
    """Return the requests and their status since the last call."""
    requests = [(request.method, request.status) for request in proxy.requests]
    proxy.requests.clear()
    return requests


@on_each_server
async def test_a_commit_is_one_write_and_no_read_and_an_empty_dequeue_is_one_conditional_read(request, server):
    async with counted(request, server) as (storage, proxy, _), DirectQueue(storage) as queue:
        await queue.enqueue("work", b"the first call reads what is there")
        assert [ABSENT, ("GET", 200), WRITES[server]] == taken(proxy), "a look for what is left of another queue"
        for number in range(10):
            await queue.enqueue("work", b"%d" % number)
        assert [WRITES[server]] * 10 == taken(proxy)
        jobs = [job for _ in range(3) for job in await queue.dequeue("work")]
        for job in jobs:
            await queue.heartbeat(job)
            await queue.ack(job)
        assert [WRITES[server]] * 9 == taken(proxy)
        for _ in range(3):
            assert [] == await queue.dequeue("something else")
        assert [UNCHANGED] * 3 == taken(proxy), "a conditional read, without content"
        assert 1 == proxy.connections


@on_each_server
async def test_a_hundred_calls_at_once_are_one_write_or_two(request, server):
    async with counted(request, server) as (storage, proxy, _), BrokerQueue(storage) as queue:
        await queue.enqueue("work", b"")
        taken(proxy)
        await asyncio.gather(*(queue.enqueue("work", b"") for _ in range(100)))
        assert taken(proxy) in ([WRITES[server]], [WRITES[server]] * 2)
        assert 101 == len((await queue.read_state()).jobs)


async def in_pieces(count):
    """Yield pieces of an object of 100,000 bytes each."""
    for number in range(count):
        yield bytes([number]) * 100_000


@on_each_server
async def test_no_call_to_a_store_with_a_host_name_waits_for_the_threads_of_the_program(request, server):
    async with counted(request, server) as (storage, proxy, _):
        store = copy.copy(store_of(request, server))
        store.url = proxy.url.replace("127.0.0.1", "localhost")
        threads = CountingThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        try:
            async with store.open(store.new_key()) as storage:
                etag = await storage.write(b"content")
                assert (b"content", etag) == await storage.read()
                assert None is await storage.read_if_changed(etag)
                await storage.create_object_from(".history/1", in_pieces(60))
                assert bytes(10) == await storage.read_object(".history/1", 0, 10)
                assert 1 == len(await storage.list_beside(".history/"))
                await storage.remove_object(".history/1")
            assert 0 == threads.calls
            assert {"localhost"} == {each.headers["host"].partition(":")[0] for each in proxy.requests}
        finally:
            threads.over.set()


@on_each_server
async def test_each_call_takes_as_few_requests_as_the_store_allows(request, server):
    async with counted(request, server) as (storage, proxy, _), storage:
        await storage.create_object(ONE, SMALL)
        assert SMALL[5:9] == await storage.read_object(ONE, 5, 9)
        assert b"" == await storage.read_object(ONE, 5, 5)
        await storage.remove_object(ONE)
        assert [WRITES[server], ("GET", 206), REMOVED[server]] == taken(proxy)
        await storage.create_object_from(".small", pieces_of(SMALL, [1, 2, 3]))
        assert [WRITES[server]] == taken(proxy), "what fits into one part needs no upload in parts"
        await storage.create_object_from(".large", pieces_of(LARGE, [1, 2, 3]))
        assert UPLOADS[server] == taken(proxy)


@on_each_server
async def test_an_answer_that_is_cut_off_is_never_taken_for_the_range(request, server):
    async with counted(request, server) as (storage, proxy, _), storage:
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
    *before, (last, _) = UPLOADS[server] if content is LARGE else [WRITES[server]]
    async with counted(request, server) as (storage, proxy, _), storage:
        proxy.next(DropAnswer(), method=last, after=[method for method, _ in before].count(last))
        with pytest.raises((StorageError, CASConflictError)):
            await storage.create_object_from(ONE, pieces_of(content, []))
        assert content == await storage.read_object(ONE)


@on_each_server
async def test_an_upload_that_fails_is_not_repeated_and_leaves_no_parts(request, server):
    async with counted(request, server) as (storage, proxy, _), storage:
        proxy.next(ReplaceAnswer(500, ask=False), method="PUT", after=1)
        with pytest.raises(StorageError, match=r"\.history/1: the store failed \(500"):
            await storage.create_object_from(ONE, pieces_of(LARGE, []))
        assert 2 == proxy.count("PUT")
        assert [] == await storage.list_beside(".")
        if server == "gcs_server":
            assert 0 == request.getfixturevalue(server).unfinished_uploads


@on_each_server
async def test_an_upload_whose_pieces_end_early_leaves_no_parts(request, server):
    waiting = asyncio.Event()

    async def endless():
        yield LARGE
        waiting.set()
        await asyncio.Event().wait()

    async with counted(request, server) as (storage, _, _), storage:
        creation = asyncio.create_task(storage.create_object_from(ONE, endless()))
        await waiting.wait()
        creation.cancel()
        await asyncio.wait([creation])
        if server == "gcs_server":
            assert 0 == request.getfixturevalue(server).unfinished_uploads
        assert [] == await storage.list_beside(".")


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
