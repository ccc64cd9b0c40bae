"""One client for each event loop: opened once, lent to all calls, closed after its last use."""

import asyncio
import copy
import gc
import logging
import pickle
import threading
import weakref
from contextlib import asynccontextmanager

import pytest

from jqueue import S3Storage, StorageError
from jqueue.adapters.storage._client import SharedClient
from jqueue.adapters.storage._remote import WHOLE, ErrorMeaning, RemoteStorage


class Client:
    """Something that is open, until it is closed."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.closed = 0


class Store:
    """Opens clients, and keeps all of them.

    Attributes:
        clients: every client that was opened.
        gates: events; each opening waits for the next one, if any is left.
        failures: errors; each opening fails with the next one, if any is left.
        may_close: event that each closing waits for.
    """

    def __init__(self):
        self.clients = []
        self.gates = []
        self.failures = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    @asynccontextmanager
    async def __call__(self):
        if self.gates:
            await self.gates.pop(0).wait()
        if self.failures:
            raise self.failures.pop(0)
        client = Client()
        self.clients.append(client)
        try:
            yield client
        finally:
            await self.may_close.wait()
            client.closed += 1

    @property
    def closed(self):
        return [client.closed for client in self.clients]


class Storage(RemoteStorage):
    """An object in that store."""

    def __init__(self, store):
        super().__init__("fake://object", 5)
        self.store, self.name, self.used = store, "object", []

    @property
    def _name(self):
        return self.name

    def _connect(self):
        return self.store()

    def _rename(self, suffix):
        self.name += suffix

    async def _get(self, client, unless, span=WHOLE):
        self.used.append(client)
        return self.name.encode(), "etag"

    async def _put(self, client, content, if_match):
        raise NotImplementedError

    async def _delete(self, client):
        raise NotImplementedError

    async def _list(self, client, *, begins, page):
        raise NotImplementedError

    async def _not_used(self, client, **_):
        raise NotImplementedError

    _begin = _send = _finish = _abandon = _sign_url = _not_used

    def _meaning(self, error, doing):
        return ErrorMeaning.TRANSIENT, "failed"


@pytest.fixture
def store():
    return Store()


@pytest.fixture
async def shared(store):
    shared = SharedClient(store)
    yield shared
    await shared.release()


async def use(shared):
    async with shared.lend() as client:
        await asyncio.sleep(0)
        assert not client.closed
        return client


async def use_and_release(shared):
    await use(shared)
    await shared.release()


async def until_nothing_moves():
    for _ in range(20):
        await asyncio.sleep(0)


# Opening


async def test_nothing_is_opened_before_the_first_call(shared, store):
    await shared.release()
    assert ([], 0) == (store.clients, shared.opened)


async def test_first_calls_at_the_same_time_open_one_client(shared, store):
    gate = asyncio.Event()
    store.gates.append(gate)
    calls = [asyncio.create_task(use(shared)) for _ in range(50)]
    await until_nothing_moves()
    gate.set()
    assert 1 == len(set(await asyncio.gather(*calls)))
    assert (1, 1) == (len(store.clients), shared.opened)
    assert store.clients[0] is await use(shared)


async def test_a_failed_opening_fails_its_own_call_and_no_other(shared, store):
    gate = asyncio.Event()
    store.gates.append(gate)
    store.failures.append(OSError("no route"))
    calls = [asyncio.create_task(use(shared)) for _ in range(3)]
    await until_nothing_moves()
    gate.set()
    first, *others = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, OSError)
    assert [store.clients[0]] * 2 == others
    assert 1 == shared.opened


async def test_a_cancelled_opening_leaves_the_next_call_to_open(shared, store):
    store.gates.append(asyncio.Event())
    first = asyncio.create_task(use(shared))
    await until_nothing_moves()
    second = asyncio.create_task(use(shared))
    await until_nothing_moves()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert [await second] == store.clients


async def test_a_cancelled_waiter_does_not_disturb_the_other_calls(shared, store):
    gate = asyncio.Event()
    store.gates.append(gate)
    calls = [asyncio.create_task(use(shared)) for _ in range(3)]
    await until_nothing_moves()
    calls[1].cancel()
    gate.set()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [Client, asyncio.CancelledError, Client] == [type(each) for each in done]
    assert 1 == len(store.clients)


async def test_an_opening_is_within_the_deadline_of_the_call():
    store = Store()
    store.gates.append(asyncio.Event())
    storage = Storage(store)
    storage.timeout = 0.01
    with pytest.raises(StorageError, match=r"no answer within 0\.01 s to the read"):
        await storage.read()
    storage.timeout = 5
    assert (b"object", "etag") == await storage.read()
    await storage.release()
    assert [1] == store.closed


async def test_a_call_that_is_cancelled_is_cancelled_and_no_error_of_the_store(store):
    storage = Storage(store)
    store.gates.append(asyncio.Event())
    call = asyncio.create_task(storage.read())
    await until_nothing_moves()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


# Closing


async def test_release_closes_and_the_next_call_opens_another(shared, store):
    first = await use(shared)
    await shared.release()
    await shared.release()
    assert [1] == store.closed
    assert first is not await use(shared)
    assert 2 == shared.opened
    await shared.release()
    assert [1, 1] == store.closed


async def test_release_waits_for_no_call_and_the_last_one_closes(shared, store):
    async with shared.lend() as one:
        async with shared.lend() as two:
            assert one is two
            await shared.release()
            assert [0] == store.closed
            newer = await use(shared)
            assert newer is not one
        assert [0, 0] == store.closed
    assert [1, 0] == store.closed


async def test_a_client_that_is_released_while_it_is_opened_is_closed_when_its_calls_have_ended(shared, store):
    gate = asyncio.Event()
    store.gates.append(gate)
    calls = [asyncio.create_task(use(shared)) for _ in range(2)]
    await until_nothing_moves()
    await shared.release()
    gate.set()
    await asyncio.gather(*calls)
    assert [1] == store.closed


async def test_the_call_that_is_last_closes_even_if_it_fails(shared, store):
    with pytest.raises(ZeroDivisionError):
        async with shared.lend():
            await shared.release()
            raise ZeroDivisionError
    assert [1] == store.closed


async def test_a_client_is_closed_completely_although_the_last_call_is_cancelled(shared, store):
    async def use_for_ever():
        async with shared.lend():
            await asyncio.Event().wait()

    call = asyncio.create_task(use_for_ever())
    await until_nothing_moves()
    await shared.release()
    store.may_close.clear()
    for _ in range(2):
        call.cancel()
        await until_nothing_moves()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [0] == store.closed
    store.may_close.set()
    await until_nothing_moves()
    assert [1] == store.closed


async def test_a_client_that_cannot_be_closed_does_not_fail_the_call(caplog):
    @asynccontextmanager
    async def connect():
        yield "client"
        raise OSError("a text with a secret")

    shared = SharedClient(connect)
    async with shared.lend() as client:
        await shared.release()
    assert "client" == client
    assert [("jqueue", logging.WARNING)] == [record[:2] for record in caplog.record_tuples]
    assert "OSError" in caplog.text
    assert "secret" not in caplog.text


async def test_a_call_that_was_under_way_at_a_fork_closes_nothing_in_the_child(store):
    shared = SharedClient(store)
    async with shared.lend():
        await shared.release()
        other = asyncio.create_task(use(shared))
        await until_nothing_moves()
        shared.leave_to_parent()
    await other
    assert [0, 0] == store.closed
    await use_and_release(shared)
    assert ([0, 0, 1], 1) == (store.closed, shared.opened)


# Event loops, threads


def test_each_loop_has_its_own_client_and_a_loop_that_ends_closes_it(store):
    shared = SharedClient(store)
    clients = [asyncio.run(use(shared)) for _ in range(3)]
    assert 3 == len(set(clients)) == shared.opened
    assert [1, 1, 1] == store.closed


def test_a_closed_loop_is_not_kept_in_memory(store):
    shared = SharedClient(store)
    loops = []

    async def call():
        client = await use(shared)
        loops.append(weakref.ref(client.loop))
        store.clients.clear()

    for _ in range(2):
        asyncio.run(call())
        gc.collect()
    assert loops[0]() is None
    assert 1 == len(shared._leases)


def test_threads_with_loops_of_their_own_have_clients_of_their_own(store):
    shared = SharedClient(store)
    barrier = threading.Barrier(4)
    found = []

    async def call():
        barrier.wait()
        clients = {await use(shared) for _ in range(50)}
        assert {asyncio.get_running_loop()} == {client.loop for client in clients}
        found.append(clients)
        await shared.release()

    threads = [threading.Thread(target=asyncio.run, args=[call()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [1, 1, 1, 1] == [len(clients) for clients in found]
    assert [1, 1, 1, 1] == store.closed
    assert {} == shared._leases


# Storages


async def test_a_storage_beside_shares_the_client_and_nothing_else(store):
    storage = Storage(store)
    other = storage.beside(".scratch")
    assert (b"object", b"object.scratch") == ((await storage.read())[0], (await other.read())[0])
    assert ("fake://object", "fake://object.scratch") == (storage.url, other.url)
    assert 1 == len(store.clients)
    await other.release()
    assert [1] == store.closed


@pytest.mark.parametrize("copied", [copy.copy, lambda storage: pickle.loads(pickle.dumps(storage))])
async def test_a_copy_of_a_storage_has_a_client_of_its_own(copied, tmp_path):
    storage = S3Storage("bucket", "key", endpoint_url="http://127.0.0.1:1", timeout=3)
    with pytest.raises(StorageError):
        await storage.read()
    twin = copied(storage)
    assert (0, 1) == (twin._client.opened, storage._client.opened)
    assert (repr(storage), 3, None) == (repr(twin), twin.timeout, twin.store_time())
    assert storage._client is not twin._client
    await twin.release()
    await storage.release()
