"""The servers start, listen only to this machine, support compare-and-set, and end with the test run."""

import asyncio
import http.client
import io
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiobotocore.session import AioSession
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceModifiedError, ResourceNotFoundError
from azure.storage.blob.aio import BlobServiceClient
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.servers.child import Child, ServerUnavailableError
from tests.servers.fixtures import groups, skip_or_fail
from tests.servers.listening import HERE, listening, needs_linux

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
SECONDS = 10
BUCKET = "jqueue"
STALE_MD5 = '"0123456789abcdef0123456789abcdef"'
STALE_AZURE = '"0x8D0000000000000"'
RACERS = 8
WRITERS, INCREMENTS = 4, 4
SLOWNESS = 0.1

SESSION = AioSession()
both_s3 = pytest.mark.parametrize("server", ["seaweedfs", "moto_s3"])


class S3:
    """One object of an S3 server."""

    def __init__(self, client, bucket=BUCKET):
        self._client = client
        self._where = {"Bucket": bucket, "Key": f"tests/{uuid.uuid4()}"}

    async def get(self):
        answer = await self._client.get_object(**self._where)
        return await answer["Body"].read(), answer["ETag"]

    async def create(self, content):
        return (await self._client.put_object(**self._where, Body=content, IfNoneMatch="*"))["ETag"]

    async def replace(self, content, etag):
        return (await self._client.put_object(**self._where, Body=content, IfMatch=etag))["ETag"]


def s3_client(server, **changed):
    options = {
        "endpoint_url": server.endpoint_url,
        "aws_access_key_id": server.access_key,
        "aws_secret_access_key": server.secret_key,
        "region_name": server.region,
        "config": Config(retries={"total_max_attempts": 1}),
        **changed,
    }
    return SESSION.create_client("s3", **options)


@pytest.fixture
async def s3(request, server):
    """A client for the server named by a parameter."""
    async with s3_client(request.getfixturevalue(server)) as client:
        with suppress(client.exceptions.BucketAlreadyOwnedByYou):
            await client.create_bucket(Bucket=BUCKET)
        yield client


def refusal(error):
    return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


async def s3_refuses(call):
    with pytest.raises(ClientError) as caught:
        await call
    return refusal(caught.value)


@both_s3
async def test_s3_refuses_a_second_creator(s3):
    thing = S3(s3)
    etag = await thing.create(b"first")
    assert (412, "PreconditionFailed") == await s3_refuses(thing.create(b"second"))
    assert (b"first", etag) == await thing.get()


@both_s3
async def test_one_of_racing_creators_wins_on_s3(s3):
    thing = S3(s3)
    contents = [b"%d" % number for number in range(RACERS)]
    answers = await asyncio.gather(*map(thing.create, contents), return_exceptions=True)
    losers = [answer for answer in answers if isinstance(answer, ClientError)]
    assert [(412, "PreconditionFailed")] * (RACERS - 1) == [refusal(error) for error in losers]
    (winner,) = (number for number, answer in enumerate(answers) if isinstance(answer, str))
    assert (contents[winner], answers[winner]) == await thing.get()


@both_s3
async def test_s3_refuses_a_stale_match_and_accepts_the_right_one(s3):
    thing = S3(s3)
    first = await thing.create(b"first")
    second = await thing.replace(b"second", first)
    for stale in (first, STALE_MD5):
        assert (412, "PreconditionFailed") == await s3_refuses(thing.replace(b"third", stale))
    assert (b"second", second) == await thing.get()


@pytest.mark.parametrize(
    ("server", "expected"), [("seaweedfs", (412, "PreconditionFailed")), ("moto_s3", (404, "NoSuchKey"))]
)
async def test_s3_refuses_a_match_on_an_absent_object(s3, expected):
    thing = S3(s3)
    assert expected == await s3_refuses(thing.replace(b"first", STALE_MD5))
    assert (404, "NoSuchKey") == await s3_refuses(thing.get())


@both_s3
async def test_s3_does_not_create_a_missing_bucket(s3):
    thing = S3(s3, "no-such-bucket")
    assert (404, "NoSuchBucket") == await s3_refuses(thing.get())
    assert (404, "NoSuchBucket") == await s3_refuses(thing.create(b"first"))


@both_s3
async def test_s3_loses_no_increment(s3):
    thing = S3(s3)
    await thing.create(b"0")

    async def increment():
        done = 0
        while done < INCREMENTS:
            content, etag = await thing.get()
            try:
                await thing.replace(b"%d" % (int(content) + 1), etag)
                done += 1
            except ClientError as error:
                if refusal(error) != (412, "PreconditionFailed"):
                    raise

    await asyncio.gather(*(increment() for _ in range(WRITERS)))
    assert WRITERS * INCREMENTS == int((await thing.get())[0])


async def test_moto_checks_and_puts_in_one_step(moto_s3, monkeypatch):
    from moto.s3.models import S3Backend

    put = S3Backend.put_object

    def put_slowly(*arguments, **options):
        time.sleep(SLOWNESS)
        return put(*arguments, **options)

    async with s3_client(moto_s3) as client:
        await client.create_bucket(Bucket=BUCKET)
        monkeypatch.setattr(S3Backend, "put_object", put_slowly)
        thing = S3(client)
        answers = await asyncio.gather(thing.create(b"1"), thing.create(b"2"), return_exceptions=True)
    assert 1 == sum(isinstance(answer, str) for answer in answers)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"aws_secret_access_key": "wrong"}, "SignatureDoesNotMatch"),
        ({"aws_access_key_id": "who"}, "InvalidAccessKeyId"),
    ],
)
async def test_seaweedfs_refuses_wrong_keys(seaweedfs, changed, code):
    async with s3_client(seaweedfs, **changed) as client:
        thing = S3(client, seaweedfs.bucket)
        assert (403, code) == await s3_refuses(thing.get())
        assert (403, code) == await s3_refuses(thing.create(b"first"))


class Blob:
    """One blob."""

    def __init__(self, client, container=BUCKET):
        self._client = client.get_blob_client(container, f"tests/{uuid.uuid4()}")

    async def get(self):
        download = await self._client.download_blob()
        return await download.readall(), download.properties.etag

    async def create(self, content):
        return await self._put(content, match_condition=MatchConditions.IfMissing)

    async def replace(self, content, etag):
        return await self._put(content, etag=etag, match_condition=MatchConditions.IfNotModified)

    async def _put(self, content, **condition):
        return (await self._client.upload_blob(io.BytesIO(content), overwrite=True, **condition))["etag"]


@pytest.fixture
async def blobs(azurite):
    async with BlobServiceClient.from_connection_string(azurite.connection_string, retry_total=0) as client:
        with suppress(ResourceExistsError):
            await client.create_container(BUCKET)
        yield client


async def azure_refuses(call, kind=HttpResponseError):
    with pytest.raises(kind) as caught:
        await call
    return caught.value.status_code, caught.value.error_code


async def test_azurite_refuses_a_second_creator(blobs):
    blob = Blob(blobs)
    etag = await blob.create(b"first")
    assert (409, "BlobAlreadyExists") == await azure_refuses(blob.create(b"second"), ResourceExistsError)
    assert (b"first", etag) == await blob.get()


async def test_one_of_racing_creators_wins_on_azurite(blobs):
    blob = Blob(blobs)
    contents = [b"%d" % number for number in range(RACERS)]
    answers = await asyncio.gather(*map(blob.create, contents), return_exceptions=True)
    assert RACERS - 1 == sum(isinstance(answer, ResourceExistsError) for answer in answers)
    (winner,) = (number for number, answer in enumerate(answers) if isinstance(answer, str))
    assert (contents[winner], answers[winner]) == await blob.get()


async def test_azurite_refuses_a_stale_match_and_accepts_the_right_one(blobs):
    blob = Blob(blobs)
    first = await blob.create(b"same")
    second = await blob.replace(b"same", first)
    assert first != second
    for stale in (first, STALE_AZURE):
        assert (412, "ConditionNotMet") == await azure_refuses(blob.replace(b"third", stale), ResourceModifiedError)
    assert (b"same", second) == await blob.get()


async def test_azurite_refuses_a_match_on_an_absent_blob(blobs):
    blob = Blob(blobs)
    assert (412, "ConditionNotMet") == await azure_refuses(blob.replace(b"first", STALE_AZURE), ResourceModifiedError)
    assert (404, "BlobNotFound") == await azure_refuses(blob.get(), ResourceNotFoundError)


async def test_azurite_does_not_create_a_missing_container(blobs):
    blob = Blob(blobs, "no-such-container")
    assert (404, "ContainerNotFound") == await azure_refuses(blob.get(), ResourceNotFoundError)
    assert (404, "ContainerNotFound") == await azure_refuses(blob.create(b"first"), ResourceNotFoundError)


async def test_azurite_refuses_a_wrong_key(azurite):
    async with BlobServiceClient(azurite.account_url, credential="d3Jvbmc=", retry_total=0) as client:
        assert (403, "AuthorizationFailure") == await azure_refuses(Blob(client).get())
        assert (403, "AuthorizationFailure") == await azure_refuses(Blob(client).create(b"first"))


def test_the_gcs_server_answers(gcs_server):
    connection = http.client.HTTPConnection(urlsplit(gcs_server.url).netloc, timeout=SECONDS)
    try:
        connection.request("GET", "/storage/v1/b/no-such-bucket")
        assert 404 == connection.getresponse().status
    finally:
        connection.close()


@needs_linux
@pytest.mark.parametrize(("server", "ports"), [("seaweedfs", 10), ("azurite", 1)])
def test_a_server_listens_only_to_this_machine(request, server, ports):
    pid = request.getfixturevalue(server).pid
    assert [HERE] * ports == list(listening(pid))


PARENT = """
import sys, time
from tests.servers.child import Child
child = Child(["sleep", "60"])
child.wait_until(lambda: (child.folder / "pid").exists(), 10)
print(child.pid, child.folder, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_its_parent(number):
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert is_alive(int(pid))
        parent.send_signal(number)
    give_up = time.monotonic() + SECONDS
    while (is_alive(int(pid)) or Path(folder).exists()) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not is_alive(int(pid))
    assert not Path(folder).exists()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_child_that_ignores_sigterm_is_killed():
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(60)"
    )
    child = Child([sys.executable, "-c", program], patience=0.1)
    child.wait_until(lambda: "on" in child.output(), SECONDS)
    pid = child.pid
    child.stop()
    child.stop()
    assert not is_alive(pid)
    assert not child.folder.exists()


def test_a_child_that_ends_too_early_gives_an_error_with_its_output(tmp_path):
    leftover = tmp_path / "left over"
    leftover.touch()
    child = Child([sys.executable, "-c", "raise SystemExit('there is no more')"], leftovers=[str(leftover)])
    with pytest.raises(ServerUnavailableError, match=r"(?s)ended with status 1; .*there is no more"):
        child.wait_until(lambda: False, SECONDS)
    child.stop()
    assert not leftover.exists()


def test_a_child_that_ended_unnoticed_raises_an_error_when_stopped():
    child = Child([sys.executable, "-c", "print('goodbye')"])
    give_up = time.monotonic() + SECONDS
    while not child.has_ended and time.monotonic() < give_up:
        time.sleep(0.02)
    with pytest.raises(RuntimeError, match=r"(?s)ended by itself, with status 0; .*goodbye"):
        child.stop()


def test_a_child_that_is_not_ready_in_time_gives_an_error():
    child = Child(["sleep", "60"])
    with pytest.raises(ServerUnavailableError, match=r"sleep was not ready in 0\.1 s"):
        child.wait_until(lambda: False, 0.1)
    child.stop()


@pytest.mark.parametrize("settings", [{"CI": "true"}, {"JQUEUE_TEST_SERVERS": "required"}])
def test_a_missing_server_is_an_error_where_servers_are_required(monkeypatch, settings):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("JQUEUE_TEST_SERVERS", "")
    with pytest.raises(pytest.skip.Exception, match="it is gone"):
        skip_or_fail("it is gone")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(pytest.fail.Exception, match="it is gone"):
        skip_or_fail("it is gone")


@both_s3
def test_a_test_that_names_a_server_is_in_its_group(request, server):
    group = request.node.get_closest_marker("xdist_group").args[0]
    assert server in group.split("+")
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith(f"@{group}"), "pytest-xdist has not been told"


def test_servers_used_by_the_same_test_form_one_group():
    none, s3, azure, moto = (frozenset(names.split()) for names in ("", "seaweedfs", "azurite", "moto_s3"))
    assert "azurite" == groups([none, s3, azure, moto])["azurite"]
    group_of = groups([s3, s3 | azure, moto, azure | moto])
    assert {"azurite+moto_s3+seaweedfs"} == {group_of[name] for name in ("azurite", "moto_s3", "seaweedfs")}
    assert "gcs_server" == group_of["gcs_server"]
