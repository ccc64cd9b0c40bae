"""A missing object or bucket on Cloud Storage is told by the structure of the error or by one more request.

The wording does not matter: Google's testbench words its errors differently, and nests one error in another.
"""

import asyncio
import threading
from collections import Counter
from urllib.parse import urlsplit

import pytest

from jqueue import CASConflictError, DirectQueue, GCSStorage, StorageError
from jqueue.domain.errors import StorageFatalError
from tests.object_stores import BUCKET
from tests.servers.fault_kinds import ReplaceAnswer
from tests.servers.fault_proxy import FaultProxy
from tests.servers.gcs_server import GCSServer

DOWNLOAD, UPLOAD, LIST = ("GET", "download"), ("POST", "upload"), ("GET", "list")
SAID = {"google": "The specified bucket does not exist.", "testbench": "Bucket nobody-made-this does not exist."}

in_each_wording = pytest.mark.parametrize("wording", ["google", "testbench"])


@pytest.fixture
def server(request):
    with GCSServer() as server:
        server.create_bucket(BUCKET)
        if "wording" in request.fixturenames:
            server.wording = request.getfixturevalue("wording")
        yield server


def open_storage(server, bucket=BUCKET, **options):
    return GCSStorage(bucket, "queue.json", endpoint_url=server.url, **options)


@in_each_wording
async def test_creating_a_queue_costs_an_extra_request_only_if_the_error_is_worded_differently(server, wording):
    async with asyncio.timeout(30), DirectQueue(open_storage(server), deadline=20) as queue:
        job = await queue.enqueue("work", b"payload")
        assert {DOWNLOAD: 1, UPLOAD: 1} | ({LIST: 1} if wording == "testbench" else {}) == server.requests
        [claimed] = await queue.dequeue("work")
        await queue.ack(claimed)
        assert job.id == claimed.id
        assert {DOWNLOAD: 1, UPLOAD: 3} | ({LIST: 1} if wording == "testbench" else {}) == server.requests


@in_each_wording
async def test_a_missing_object_can_be_read_and_removed_and_conflicts_with_an_overwrite(server, wording):
    async with asyncio.timeout(30), open_storage(server) as storage:
        assert (b"", None) == await storage.read()
        assert (b"", None) == await storage.read_if_changed("17")
        await storage.remove()
        with pytest.raises(CASConflictError):
            await storage.write(b"1", "17")
        assert wording == "google" or 3 == server.requests[LIST]


@in_each_wording
async def test_a_missing_bucket_is_an_error_at_once_with_the_text_of_the_server(server, wording):
    storage = open_storage(server, "nobody-made-this")
    async with asyncio.timeout(30), storage:
        for call, asked in [
            (storage.read, DOWNLOAD),
            (lambda: storage.write(b"1"), UPLOAD),
            (lambda: storage.write(b"1", "17"), UPLOAD),
            (storage.remove, ("DELETE", "delete")),
            (lambda: storage.list_beside(".staged."), LIST),
        ]:
            server.requests.clear()
            with pytest.raises(StorageFatalError, match="'nobody-made-this' does not exist: create it") as caught:
                await call()
            assert SAID[wording] in str(caught.value)
            assert Counter([asked] if wording == "google" or asked == LIST else [asked, LIST]) == server.requests


async def test_a_404_from_a_gateway_is_not_taken_for_a_missing_object(server):
    """A gateway answers with its own page: the queue must not be taken for empty, or its bucket for missing."""
    address = urlsplit(server.url)
    async with asyncio.timeout(30), FaultProxy(address.hostname, address.port) as proxy:
        proxy.every(1, ReplaceAnswer(404, b"<html>No such object here</html>", ask=False))
        async with GCSStorage(BUCKET, "queue.json", endpoint_url=proxy.url) as storage:
            for call in (storage.read, lambda: storage.write(b"1"), storage.remove):
                with pytest.raises(StorageError, match=r"the store failed \(404\)") as caught:
                    await call()
                assert StorageError is type(caught.value)


async def test_a_client_of_the_user_requests_only_the_object(server):
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    options = {"api_endpoint": server.url}
    with Client(project="mine", credentials=AnonymousCredentials(), client_options=options) as client:
        cache = client._bucket_metadata_cache
        async with asyncio.timeout(30), GCSStorage(BUCKET, "queue.json", client) as storage:
            await storage.read_if_changed(await storage.write(b"1"))
            await storage.read()
            await storage.remove()
        for thread in threading.enumerate():
            if "_fetch_background" in thread.name:
                thread.join()
        assert {UPLOAD: 1, DOWNLOAD: 2, ("DELETE", "delete"): 1} == server.requests
        assert cache is client._bucket_metadata_cache, "the user's client stays unchanged"
