"""Requests to a store, counted: a store charges for each, and opening a client costs more than ten of them.

A proxy between the real client and the real server counts the requests.
"""

import asyncio
import copy
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from jqueue import BrokerQueue, DirectQueue
from tests.object_stores import store_of
from tests.servers.fault_kinds import Latency
from tests.servers.fault_proxy import FaultProxy

WRITES = {"seaweedfs": ("PUT", 200), "azurite": ("PUT", 201), "gcs_server": ("POST", 200)}
READS = {
    "seaweedfs": ("GET", 200),
    "azurite": ("GET", 206),
    "gcs_server": ("GET", 200),
}  # Azure's client requests ranges
UNCHANGED, ABSENT = ("GET", 304), ("GET", 404)

on_each_server = pytest.mark.parametrize("server", ["seaweedfs", "azurite", "gcs_server"])
of_each_kind = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


@asynccontextmanager
async def counted(request, name):
    """Return a storage for a new object behind a counting proxy, the proxy, and a storage without the proxy."""
    honest = store_of(request, name)
    address, key = urlsplit(honest.address), honest.new_key()
    assert address.hostname is not None
    assert address.port is not None
    async with asyncio.timeout(60), FaultProxy(address.hostname, address.port) as proxy:
        store = copy.copy(honest)
        store.url = proxy.url
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


def count_clients(storage):
    """Count the clients that a storage opens and closes from now on."""
    counts: Counter[str] = Counter()
    connect = storage._client._connect

    @asynccontextmanager
    async def connect_and_count():
        async with connect() as client:
            counts["opened"] += 1
            yield client
        counts["closed"] += 1

    storage._client._connect = connect_and_count
    return counts


async def everything(queue):
    """Call the verbs of a queue one after the other."""
    await queue.enqueue("work", b"")
    [job] = await queue.dequeue("work")
    await queue.heartbeat(job)
    await queue.read_state()
    await queue.ack(job)
    await queue.stats()
    assert [] == await queue.dequeue("work")


@of_each_kind
@on_each_server
async def test_a_commit_is_one_write_and_no_read(request, server, kind):
    async with counted(request, server) as (storage, proxy, _), kind(storage) as queue:
        await queue.enqueue("work", b"the first call reads what is there")
        assert [ABSENT, WRITES[server]] == taken(proxy)
        for number in range(10):
            await queue.enqueue("work", b"%d" % number)
        assert [WRITES[server]] * 10 == taken(proxy)
        jobs = [job for _ in range(3) for job in await queue.dequeue("work")]
        for job in jobs:
            await queue.heartbeat(job)
            await queue.ack(job)
        assert [WRITES[server]] * 9 == taken(proxy)


@on_each_server
async def test_a_hundred_calls_at_once_are_one_write_or_two(request, server):
    async with counted(request, server) as (storage, proxy, _), BrokerQueue(storage) as queue:
        await queue.enqueue("work", b"")
        taken(proxy)
        await asyncio.gather(*(queue.enqueue("work", b"") for _ in range(100)))
        assert taken(proxy) in ([WRITES[server]], [WRITES[server]] * 2)
        assert 101 == len((await queue.read_state()).jobs)


@of_each_kind
@on_each_server
async def test_a_poll_of_an_unchanged_object_is_one_conditional_read_without_content(request, server, kind):
    async with counted(request, server) as (storage, proxy, direct), DirectQueue(direct) as producer:
        await producer.enqueue("something else", b"")
        polls, read_if_changed = [], storage.read_if_changed

        async def read_and_note(etag):
            polls.append(await read_if_changed(etag))
            return polls[-1]

        storage.read_if_changed = read_and_note
        async with kind(storage, poll_interval=0.05) as queue, asyncio.TaskGroup() as group:
            assert [] == await queue.dequeue("work")
            assert [READS[server]] == taken(proxy)
            consumer = group.create_task(queue.dequeue("work", wait=50))
            await proxy.until(lambda: len(proxy.requests) >= 4)
            await producer.enqueue("work", b"")
            [job] = await consumer
            assert b"" == job.payload
        assert all(is_conditional(asked) for asked in proxy.requests if asked.method == "GET")
        assert [None] * (len(polls) - 1) == polls[:-1]
        assert [UNCHANGED] * (len(polls) - 1) + [READS[server], WRITES[server]] == taken(proxy)


def is_conditional(asked):
    """Return True if a request is a conditional read."""
    return "if-none-match" in asked.headers or "ifGenerationNotMatch=" in asked.path


@on_each_server
async def test_an_empty_dequeue_without_a_wait_is_one_conditional_read(request, server):
    async with counted(request, server) as (storage, proxy, _), BrokerQueue(storage) as queue:
        await queue.enqueue("something else", b"")
        taken(proxy)
        for _ in range(3):
            assert [] == await queue.dequeue("work")
        assert [UNCHANGED] * 3 == taken(proxy)


@of_each_kind
@on_each_server
async def test_only_the_object_is_requested(request, server, kind):
    """The queue requests no bucket, list or metadata, and uses one connection."""
    async with counted(request, server) as (storage, proxy, _):
        async with kind(storage) as queue:
            for _ in range(2):
                await everything(queue)
            await storage.remove()
        asked = Counter((each.method, urlsplit(each.path).path) for each in proxy.requests)
        by_method = Counter(method for method, _ in asked.elements())
        assert {"GET": 1 + 2 * 3, WRITES[server][0]: 2 * 4, "DELETE": 1} == by_method
        assert 3 == len(asked), "the object has one address for each method"
        assert 1 == proxy.connections


@of_each_kind
@on_each_server
async def test_a_client_is_opened_once_and_closed_when_the_queue_is_left(request, server, kind):
    async with counted(request, server) as (storage, _, _):
        clients = count_clients(storage)
        async with kind(storage) as queue:
            assert {} == clients, "nothing was asked yet"
            await everything(queue)
            await everything(queue)
            assert (1, {"opened": 1}) == (storage._client.opened, clients)
        assert {"opened": 1, "closed": 1} == clients
        async with kind(storage) as queue:
            await everything(queue)
            assert (2, {"opened": 2, "closed": 1}) == (storage._client.opened, clients)
        assert {"opened": 2, "closed": 2} == clients


@on_each_server
async def test_concurrent_calls_open_one_client(request, server):
    async with counted(request, server) as (storage, _, _), storage, DirectQueue(storage) as queue:
        await asyncio.gather(*(storage.read() for _ in range(5)), *(queue.enqueue("work", b"") for _ in range(5)))
        await asyncio.gather(*(queue.read_state() for _ in range(5)), queue.dequeue("work"))
        assert 1 == storage._client.opened


@on_each_server
async def test_a_queue_can_be_closed_while_another_shares_its_storage(request, server):
    async with counted(request, server) as (storage, _, _):
        clients = count_clients(storage)
        async with BrokerQueue(storage) as staying:
            async with BrokerQueue(storage) as leaving:
                await leaving.enqueue("work", b"")
                await staying.enqueue("work", b"")
                assert {"opened": 1} == clients
            assert {"opened": 1, "closed": 1} == clients
            assert 2 == len(await staying.dequeue("work", batch_size=2))
            await staying.stats()
            assert {"opened": 2, "closed": 1} == clients
        assert {"opened": 2, "closed": 2} == clients


@on_each_server
async def test_a_call_under_way_keeps_the_client_that_another_queue_gives_up(request, server):
    method = WRITES[server][0]
    async with counted(request, server) as (storage, proxy, _):
        clients = count_clients(storage)
        async with BrokerQueue(storage) as staying, asyncio.TaskGroup() as group:
            await staying.enqueue("work", b"")
            async with BrokerQueue(storage) as leaving:
                await leaving.stats()
                taken(proxy)
                proxy.next(Latency(back=0.3), method=method)
                call = group.create_task(staying.enqueue("work", b""))
                await proxy.until(lambda: proxy.count(method))
            await call
            assert [WRITES[server]] == taken(proxy), "it was not sent again"
            assert {"opened": 1, "closed": 1} == clients
            assert 2 == len((await staying.read_state()).jobs)
        assert {"opened": 2, "closed": 2} == clients


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
