"""Errors of a store that refuses, is not there, or has lost the object: their texts, and how soon callers get them.

A proxy between the real client and the real server counts requests: a permanent refusal is not retried.
"""

import asyncio
import copy
import traceback

import pytest

from jqueue import (
    AzureBlobStorage,
    BrokerQueue,
    CASConflictError,
    DeadlineExceededError,
    DirectQueue,
    GCSStorage,
    S3Storage,
    StorageError,
    UnknownOutcomeError,
    connect,
)
from jqueue.domain.errors import BlobMissingError, StorageFatalError
from jqueue.operations import Ack, Enqueue
from jqueue.testing.objects_contract import pieces_of
from tests.object_stores import BUCKET, Store, behind_a_proxy, store_of
from tests.servers.fault_kinds import BlackHole, ReplaceAnswer, s3_error
from tests.servers.gcs_server import GCSServer

pytestmark = pytest.mark.wide

WRITES = {"seaweedfs": "PUT", "azurite": "PUT", "gcs_server": "POST"}
NO_BUCKET = {"seaweedfs": "bucket", "azurite": "container", "gcs_server": "bucket"}
AN_ETAG = {"seaweedfs": '"0123456789abcdef0123456789abcdef"', "azurite": '"0x8DC0000000000"', "gcs_server": "17"}
NEEDED = {"seaweedfs": "s3:PutObject", "azurite": "Storage Blob Data Contributor", "gcs_server": "objects.create"}
FORBIDDEN = {
    "seaweedfs": s3_error(403, "AccessDenied", ask=False),
    "azurite": ReplaceAnswer(403, headers=(("x-ms-error-code", "AuthorizationPermissionMismatch"),), ask=False),
    "gcs_server": ReplaceAnswer(403, ask=False),
}
REFUSED = {  # where Azurite says that the caller is not allowed to do this, Azure says that the key is wrong
    "seaweedfs": "the secret key does not match the access key: check the credentials",
    "azurite": "to read, the credentials need the role Storage Blob Data Contributor",
    "gcs_server": "to read, the credentials need storage.objects.get",
}
WRONG_SECRET = "d3JvbmcgYnV0IHNlY3JldCwgYW5kIGxvbmcgZW5vdWdoIGZvciBhIGtleQ=="

on_each_server = pytest.mark.parametrize("server", ["seaweedfs", "azurite", "gcs_server"])


def with_a_wrong_secret(store):
    """Return the same store for a client with a wrong key. For Cloud Storage, the proxy refuses."""
    stranger = copy.copy(store)
    stranger.server = copy.copy(store.server)
    if store.name == "azurite":
        text = store.server.connection_string
        stranger.server.connection_string = text.replace(store.server.account_key, WRONG_SECRET)
    elif store.name == "seaweedfs":
        stranger.server.secret_key = WRONG_SECRET
        stranger = Store(store.name, stranger.server, store.url)
    return stranger


def full_traceback(error):
    """Return an error and its causes as a log shows them."""
    return "".join(traceback.format_exception(error))


async def refused(call):
    """Return the error of a call that the store refuses."""
    with pytest.raises(StorageFatalError) as caught:
        await call
    return caught.value


@on_each_server
async def test_a_missing_bucket_is_an_error_at_the_first_request(request, server):
    async with behind_a_proxy(store_of(request, server)) as (store, proxy):
        store.bucket = "nobody-made-this"
        storage = store.open(store.new_key(), timeout=30)
        async with BrokerQueue(storage, deadline=50) as queue:
            calls = [
                queue.enqueue("work", b""),
                queue.dequeue("work"),
                queue.dequeue("work", wait=50),
                queue.read_state(),
                storage.read(),
                storage.read_if_changed(AN_ETAG[server]),
                storage.write(b""),
                storage.list_beside(".staged."),
                storage.read_object(".history/1"),
                storage.create_object(".history/1", b""),
                storage.create_object_from(".history/1", pieces_of(bytes(6_000_000), [])),
                # SeaweedFS finds out that the etag does not fit before it finds no bucket, and the queue reads again
                storage.read() if server == "seaweedfs" else storage.write(b"", AN_ETAG[server]),
            ]
            for number, call in enumerate(calls, 1):
                error = await refused(call)
                assert f"the {NO_BUCKET[server]} 'nobody-made-this' does not exist" in str(error)
                assert number == proxy.count(), "one request, and no second try"
        assert ["GET"] * 6 + [WRITES[server]] == [each.method for each in proxy.requests][:7]


@on_each_server
async def test_a_caller_without_permissions_learns_which_are_needed_and_no_secret(request, server):
    async with behind_a_proxy(with_a_wrong_secret(store_of(request, server))) as (store, proxy):
        if server == "gcs_server":
            proxy.each(FORBIDDEN[server])
        storage = store.open(store.new_key(), timeout=30)
        async with BrokerQueue(storage, deadline=50) as queue:
            for call in (queue.enqueue("work", b""), queue.dequeue("work"), queue.stats(), storage.read()):
                error = await refused(call)
                assert REFUSED[server] in str(error)
                assert WRONG_SECRET not in full_traceback(error) + repr(storage) + repr(queue)
            assert 4 == proxy.count()
            await refused(storage.write(b""))
            assert 5 == proxy.count()


EXPIRED = {
    "seaweedfs": s3_error(400, "ExpiredToken", ask=False),
    "azurite": ReplaceAnswer(403, headers=(("x-ms-error-code", "AuthenticationFailed"),), ask=False),
}


@pytest.mark.parametrize("server", EXPIRED)  # an endpoint of Google without TLS is called without credentials
async def test_renewed_credentials_are_used_by_the_call_that_finds_the_old_ones_refused(
    request, server, tmp_path, monkeypatch
):
    async with behind_a_proxy(store_of(request, server)) as (store, proxy):
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

        def keep(secret):
            text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
            (tmp_path / "credentials").write_text(text, encoding="utf-8")

        storage, key = without_fixed_credentials(store), "AKIDOLD"
        if server == "seaweedfs":
            keep(WRONG_SECRET)
            assert "the access key is not known" in str(await refused(storage.read()))
            assert 1 == proxy.count(), "credentials that were just read are not read again"
            key = store.server.access_key
            keep(store.server.secret_key)
        else:
            monkeypatch.setenv("AZURE_STORAGE_KEY", store.server.account_key)
        async with storage:
            etag = await storage.write(b"1")
            for call, answer in [(storage.read, (b"1", etag)), (lambda: storage.read_if_changed(etag), None)]:
                proxy.next(EXPIRED[server])
                assert answer == await call()
            proxy.requests.clear()
            proxy.each(EXPIRED[server])
            await refused(storage.read())
            assert 2 == proxy.count(), "one request with the new credentials, and no third one"


def without_fixed_credentials(store):
    """Return a storage that finds its credentials itself."""
    if store.name == "azurite":
        url = f"{store.url}/{store.server.account_name}"
        return AzureBlobStorage(BUCKET, store.new_key(), account_url=url)
    return S3Storage(BUCKET, store.new_key(), None, store.server.region, store.url)


@on_each_server
async def test_a_caller_with_read_permission_only_learns_which_are_needed(request, server):
    """A refused write costs one read, as does any write that did not clearly succeed."""
    async with (
        behind_a_proxy(store_of(request, server)) as (store, proxy),
        BrokerQueue(store.open(store.new_key(), timeout=30), deadline=50) as queue,
    ):
        job = await queue.enqueue("work", b"")
        proxy.each(FORBIDDEN[server], method=WRITES[server])
        for call in (lambda: queue.enqueue("work", b""), lambda: queue.dequeue("work", wait=50)):
            proxy.requests.clear()
            assert NEEDED[server] in str(await refused(call()))
            assert [WRITES[server], "GET"] == [each.method for each in proxy.requests]
        assert (job,) == (await queue.read_state()).jobs
        proxy.clear()
        assert [job.id] == [claimed.id for claimed in await queue.dequeue("work")]


@on_each_server
async def test_calls_to_a_store_that_never_answers_end_by_their_deadline(request, server):
    async with behind_a_proxy(store_of(request, server)) as (store, proxy):
        key = store.new_key()
        async with (
            BrokerQueue(store.open(key, timeout=30), deadline=30) as patient,
            BrokerQueue(store.open(key, timeout=0.2), call_timeout=0.2, deadline=0.7) as queue,
        ):
            await patient.enqueue("work", b"")  # opening the first client of a process takes long
            sent = proxy.count() - proxy.count("GET")
            proxy.each(BlackHole())
            calls = [queue.enqueue("work", b""), queue.dequeue("work"), queue.read_state(), queue.storage.read()]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [DeadlineExceededError] * 3 + [StorageError] == [type(error) for error in outcomes]
            assert "no answer within 0.2 s to the read" in str(outcomes[-1])
            assert sent == proxy.count() - proxy.count("GET"), "nothing was written"
            proxy.clear()
            proxy.each(BlackHole(), method=WRITES[server])
            with pytest.raises(UnknownOutcomeError):
                await queue.enqueue("work", b"", deadline=3)
            proxy.clear()
            assert 1 == len((await patient.read_state()).jobs)


@on_each_server
async def test_calls_outlast_a_server_that_is_down(request, server):
    """The server comes back on the same port. Callers notice only that their calls take longer."""
    async with (
        behind_a_proxy(store_of(request, server)) as (store, proxy),
        BrokerQueue(store.open(store.new_key(), timeout=30), deadline=50) as queue,
        asyncio.TaskGroup() as group,
    ):
        await proxy.stop()
        calls = [group.create_task(queue.enqueue("work", b"%d" % number)) for number in range(3)]
        await asyncio.sleep(0)
        waiting = group.create_task(queue.dequeue("other", wait=40))
        await proxy.start()
        assert {(await call).id for call in calls} == {job.id for job in (await queue.read_state()).jobs}
        await proxy.stop()
        await proxy.start()
        await queue.enqueue("other", b"for the waiting dequeue")
        assert [b"for the waiting dequeue"] == [each.payload for each in await waiting]


@on_each_server
async def test_a_removed_object_is_never_taken_for_an_empty_queue(request, server):
    async with behind_a_proxy(store_of(request, server)) as (store, _):
        key = store.new_key()
        async with store.open(key) as witness, BrokerQueue(store.open(key), deadline=50, poll_interval=0.05) as queue:
            for number in range(3):
                await queue.enqueue("work", b"%d" % number)
            [job] = await queue.dequeue("work")
            content, _ = await witness.read()
            waiting = asyncio.create_task(queue.dequeue("something else", wait=50))
            await queue.heartbeat(job)
            await witness.remove()
            with pytest.raises(BlobMissingError, match="has disappeared"):
                await waiting
            with pytest.raises(
                UnknownOutcomeError, match="has disappeared"
            ) as caught:  # it was sent, and may have been done
                await queue.enqueue("work", b"")
            assert BlobMissingError is type(caught.value.cause)
            for call in (
                lambda: queue.enqueue("work", b""),
                lambda: queue.dequeue("work"),
                lambda: queue.dequeue("something else", wait=50),
                lambda: queue.heartbeat(job),
                lambda: queue.ack(job),
                lambda: queue.apply(Ack(job), Enqueue("work", b"")),
                queue.read_state,
                queue.stats,
            ):
                with pytest.raises(BlobMissingError, match="has disappeared"):
                    await call()
            assert (b"", None) == await witness.read()
            await witness.write(content)
            assert 3 == len((await queue.read_state()).jobs), "it was restored, and the queue goes on"
            await queue.ack(job)
            assert 2 == len(await queue.dequeue("work", batch_size=3))


# A missing object or bucket on Cloud Storage is told by the structure of the error or by one more request: the wording
# does not matter. Google's testbench words its errors differently, and nests one error in another.

DOWNLOAD, UPLOAD, LIST = ("GET", "download"), ("POST", "upload"), ("GET", "list")


@pytest.fixture(params=["google", "testbench"])
def worded(request):
    with GCSServer() as server:
        server.create_bucket(BUCKET)
        server.wording = request.param
        yield server


async def test_a_missing_object_or_bucket_costs_a_request_more_only_if_the_error_is_worded_differently(worded):
    more = {LIST: 1} if worded.wording == "testbench" else {}
    async with GCSStorage(BUCKET, "queue.json", endpoint_url=worded.url) as storage:
        await DirectQueue(storage).enqueue("work", b"payload")
        looks = {LIST: 1 + more.get(LIST, 0)}  # before a queue is created, for what is left of another one
        assert {DOWNLOAD: 1, UPLOAD: 1} | looks == worded.requests
        await storage.remove()
        assert (b"", None) == await storage.read()
        with pytest.raises(CASConflictError):
            await storage.write(b"1", "17")
    async with GCSStorage("nobody-made-this", "queue.json", endpoint_url=worded.url) as storage:
        for call, asked in [(storage.read, DOWNLOAD), (lambda: storage.write(b"1"), UPLOAD)]:
            worded.requests.clear()
            with pytest.raises(StorageFatalError, match="'nobody-made-this' does not exist: create it"):
                await call()
            assert {asked: 1} | more == worded.requests


async def test_a_404_from_a_gateway_is_not_taken_for_a_missing_object(request, gcs_server):
    async with behind_a_proxy(store_of(request, "gcs_server")) as (store, proxy):
        proxy.each(ReplaceAnswer(404, b"<html>No such object here</html>", ask=False))
        async with store.open(store.new_key()) as storage:
            for call in (storage.read, lambda: storage.write(b"1"), storage.remove):
                with pytest.raises(StorageError, match=r"the store failed \(404\)") as caught:
                    await call()
                assert StorageError is type(caught.value)


async def test_thirty_calls_at_once_on_a_store_that_takes_one_write_a_second_succeed_and_are_committed_together():
    with GCSServer(writes_per_second=1.0) as server:
        server.create_bucket(BUCKET)
        storage = GCSStorage(BUCKET, "queue.json", endpoint_url=server.url)
        async with BrokerQueue(storage, deadline=60) as queue:
            first = await queue.enqueue("work", b"the next write comes too soon")
            jobs = await asyncio.gather(*(queue.enqueue("work", b"%d" % number) for number in range(30)))
            state = await queue.read_state()
            assert {first, *jobs} == set(state.jobs)
        assert 3 >= state.version
        assert state.version < server.requests[UPLOAD] <= 9 * state.version, "refusals are not repeated at once"


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
async def test_a_url_without_an_endpoint_takes_that_of_the_environment(request, monkeypatch, variable):
    store = store_of(request, "seaweedfs")
    for name, value in store.environment(variable).items():
        monkeypatch.setenv(name, value)
    key = f"endpoint-of-{variable}.json"
    async with connect(f"s3://{BUCKET}/{key}", DirectQueue, deadline=40) as queue:
        job = await queue.enqueue("work", b"payload")
    async with store.open(key) as witness:
        assert job.id.encode() in (await witness.read())[0]
