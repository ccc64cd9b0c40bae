"""The meaning of errors of the S3, Google and Azure clients to a queue, and the texts that people read.

The errors of the S3 and Google clients are built by hand; Azure's client makes its own from the answers of a server.
"""

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import aiohttp
import google.auth.exceptions as auth_errors
import pytest
import requests
from botocore import exceptions as botocore_errors
from google.api_core import exceptions as google_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as GoogleClient

from jqueue import AzureBlobStorage, CASConflictError, GCSStorage, S3Storage, StorageError
from jqueue.domain.errors import StorageFatalError, StorageThrottledError

CONTENT = b"the payload of a job"
SECRETS = ["payload", "StringToSign", "sIgNaTuRe", "AKIDKEY", "Ab12Secret"]
SERVER_TEXT = "StringToSign: PUT payload; Authorization: AWS4 AKIDKEY sIgNaTuRe Ab12Secret"

ABSENT = "there is no object"
"""A read returns (b"", None)."""

CONFLICT, THROTTLED, FATAL, FAILED = CASConflictError, StorageThrottledError, StorageFatalError, StorageError


async def outcome(call):
    """Return the exact class of the error and its text, or the result (`ABSENT` for a missing object)."""
    raised = None
    try:
        found = await call
    except (CASConflictError, StorageError) as error:
        raised = error
    if raised is None:
        return (ABSENT if found == (b"", None) else found), ""
    assert raised.__cause__ is not None, "the error has no cause"
    assert [] == [secret for secret in [*SECRETS, "\n"] if secret in str(raised)]
    return type(raised), str(raised)


async def outcomes(storage):
    """Return the outcomes of a read and of a write, and the texts of both."""
    async with storage:
        read, read_text = await outcome(storage.read())
        write, write_text = await outcome(storage.write(CONTENT, '"1"'))
        assert write is (await outcome(storage.write(CONTENT)))[0], "creating and overwriting fail differently"
    assert all(text.startswith(f"{storage.url}: ") for text in (read_text, write_text) if text)
    return (read, write), read_text, write_text


async def check(storage, read, write, hint):
    """Check the outcomes of a read and of a write, and that each error has the hint."""
    found, read_text, write_text = await outcomes(storage)
    assert (read, write) == found
    assert hint in write_text
    assert read is ABSENT or hint in read_text


# S3


class S3:
    """A session, and its client, whose every call ends in the same error; `calls` lists them."""

    def __init__(self, error, head=None):
        self.error, self.head, self.calls = error, head, []
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def client(self, *args, **options):
        return nullcontext(self)

    def __getattr__(self, name):
        async def call(**arguments):
            self.calls.append(name)
            if name == "head_object" and self.head is not None:
                return self.head
            if self.error is None:
                return {"ETag": '"1"'}
            raise self.error

        return call


def from_s3(status, code):
    answer = {
        "Error": {"Code": code, "Message": SERVER_TEXT, "StringToSign": SERVER_TEXT},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"x-amz-id-2": "sIgNaTuRe"}},
    }
    return botocore_errors.ClientError(answer, "PutObject")


def s3(error, **options):
    return S3Storage("the-bucket", "key", S3(error, **options))


@pytest.mark.parametrize(
    ("status", "code", "read", "write", "hint"),
    [
        (412, "PreconditionFailed", CONFLICT, CONFLICT, "another writer has changed"),
        (409, "ConditionalRequestConflict", CONFLICT, CONFLICT, "another writer has changed"),
        (409, "SomethingNew", CONFLICT, CONFLICT, ""),
        (404, "NoSuchKey", ABSENT, CONFLICT, "it does not exist"),
        (404, "NoSuchBucket", FATAL, FATAL, "'the-bucket' does not exist: create it"),
        (403, "AccessDenied", FATAL, FATAL, "the bucket 'the-bucket' was refused"),
        (403, "SignatureDoesNotMatch", FATAL, FATAL, "check the credentials"),
        (403, "RequestTimeTooSkewed", FATAL, FATAL, "the clock of this machine"),
        (400, "ExpiredToken", FATAL, FATAL, "the credentials have expired"),
        (301, "PermanentRedirect", FATAL, FATAL, "'the-bucket' is in another region: give region_name"),
        (400, "SomethingNew", FATAL, FATAL, "the store refused the request (400 SomethingNew)"),
        (400, "RequestTimeout", FAILED, FAILED, ""),
        (429, "429", THROTTLED, THROTTLED, "asks for fewer requests (429)"),
        (500, "InternalError", FAILED, FAILED, "the store failed"),
        (501, "NotImplemented", FATAL, FATAL, "no conditional writes"),
        (503, "SlowDown", THROTTLED, THROTTLED, "asks for fewer requests (503 SlowDown)"),
    ],
)
async def test_answers_of_s3_map_to_errors(status, code, read, write, hint):
    await check(s3(from_s3(status, code)), read, write, hint)


ENDPOINT = {"endpoint_url": "https://the-bucket.example.org/key", "error": SERVER_TEXT}


def untrusted():
    """Return the error of aiobotocore for a certificate that no authority has signed."""
    refusal = ssl.SSLCertVerificationError(1, SERVER_TEXT)
    refusal.verify_message = "self-signed certificate"
    error = botocore_errors.SSLError(**ENDPOINT)
    error.__cause__ = refusal
    return error


@pytest.mark.parametrize(
    ("error", "meaning", "hint"),
    [
        (
            botocore_errors.EndpointConnectionError(**ENDPOINT),
            FAILED,
            "the-bucket.example.org did not answer (EndpointConnectionError)",
        ),
        (untrusted(), FATAL, "the certificate of the-bucket.example.org was not accepted (self-signed"),
        (aiohttp.ClientPayloadError(SERVER_TEXT), FAILED, "the store did not answer (ClientPayloadError)"),
        (TimeoutError(), FAILED, "no answer within 15 s"),
        (botocore_errors.NoCredentialsError(), FATAL, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (
            botocore_errors.ParamValidationError(report=f"Invalid type for parameter Body, value: {CONTENT!r}"),
            FATAL,
            "as it is configured",
        ),
        (
            ValueError("Invalid endpoint: https://AKIDKEY:Ab12Secret@host name"),
            FAILED,
            "the store did not answer (ValueError)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_failures_without_an_answer_of_s3_map_to_errors(error, meaning, hint):
    await check(s3(error), meaning, meaning, hint)


async def test_the_error_for_a_client_that_cannot_be_made_does_not_show_its_settings():
    for made in (
        S3Storage("the-bucket", "key", endpoint_url="no endpoint", region_name="eu-west-1"),
        AzureBlobStorage("the-container", "blob", connection_string="no=connection"),
    ):
        with pytest.raises(StorageFatalError, match=r"(as it is configured|cannot be used)") as raised:
            await made.read()
        assert raised.value.__cause__ is None
        assert not any(part in str(raised.value) for part in ("no endpoint", "no=connection"))


# Google


class Google:
    """A client of Google, whose every call ends in the same error."""

    def __init__(self, error):
        self.error = error

    def bucket(self, name):
        return self

    def blob(self, name, **options):
        return self

    def fail(self, *args, **options):
        raise self.error

    def close(self):
        pass

    download_as_bytes = upload_from_string = delete = fail

    def list_blobs(self, *args, **options):
        return SimpleNamespace(pages=map(self.fail, [()]))


def from_google(status, text=SERVER_TEXT):
    response = SimpleNamespace(status_code=status, headers={}, text=text)
    return google_errors.from_http_status(status, text, response=response)


def not_found(message):
    """A 404 of the JSON API."""
    return from_google(404, json.dumps({"error": {"errors": [{"domain": "global", "message": message}]}}))


STRANGE = r"create it, or check the name (404, the store says 'Le seau \x1b[31m\nmanque."


def refresh_error_of_an_unreachable_metadata_server():
    error = auth_errors.RefreshError(SERVER_TEXT)  # as google.auth.compute_engine raises it
    error.__cause__ = auth_errors.TransportError(SERVER_TEXT)
    return error


@pytest.mark.parametrize(
    ("error", "read", "write", "hint"),
    [
        (from_google(412), CONFLICT, CONFLICT, "another writer has changed"),
        (from_google(404, "No such object: the-bucket/key"), ABSENT, CONFLICT, "it does not exist"),
        (from_google(404, "The specified bucket does not exist."), FATAL, FATAL, "'the-bucket' does not exist: create"),
        (not_found("No such object: the-bucket/key"), ABSENT, CONFLICT, "it does not exist"),
        (not_found("Le seau \x1b[31m\nmanque."), FATAL, FATAL, STRANGE),
        (from_google(404), FAILED, FAILED, "the store failed (404)"),
        (from_google(403), FATAL, FATAL, "'the-bucket' was refused"),
        (from_google(401), FATAL, FATAL, "GOOGLE_APPLICATION_CREDENTIALS"),
        (from_google(400), FATAL, FATAL, "the store refused the request (400)"),
        (from_google(429), THROTTLED, THROTTLED, "fewer requests (429)"),
        (from_google(500), FAILED, FAILED, ""),
        (auth_errors.DefaultCredentialsError(SERVER_TEXT), FATAL, FATAL, "set GOOGLE_APPLICATION_CREDENTIALS"),
        (auth_errors.RefreshError(SERVER_TEXT), FATAL, FATAL, "renew them"),
        (auth_errors.RefreshError(SERVER_TEXT, retryable=True), FAILED, FAILED, "did not answer (RefreshError)"),
        (refresh_error_of_an_unreachable_metadata_server(), FAILED, FAILED, ""),
        (requests.ConnectionError(SERVER_TEXT), FAILED, FAILED, "the store did not answer (ConnectionError)"),
        (requests.exceptions.JSONDecodeError("", CONTENT.decode(), 0), FATAL, FATAL, "of store (JSONDecodeError)"),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else None,
)
async def test_errors_of_the_google_client_map_to_errors(error, read, write, hint):
    await check(GCSStorage("the-bucket", "key", Google(error)), read, write, hint)


@pytest.mark.parametrize(
    ("open_storage", "read", "write", "listing"),
    [
        (
            lambda: s3(from_s3(403, "AccessDenied")),
            "s3:GetObject, and s3:ListBucket",
            "s3:PutObject and s3:GetObject",
            "s3:ListBucket",
        ),
        (
            lambda: GCSStorage("the-bucket", "key", Google(from_google(403))),
            "storage.objects.get, and storage.objects.list",
            "storage.objects.create, storage.objects.delete",
            "storage.objects.list",
        ),
    ],
    ids=["s3", "gcs"],
)
async def test_a_refusal_names_the_permissions_for_the_call(open_storage, read, write, listing):
    _, read_text, write_text = await outcomes(open_storage())
    assert f"to read, the credentials need {read}" in read_text
    assert f"to write, the credentials need {write}" in write_text
    with pytest.raises(StorageFatalError, match=f"to list, the credentials need {listing}"):
        await open_storage().list_beside(".staged.")


# Azure


@asynccontextmanager
async def answering(status, code, **headers):
    """The URL of a server that gives every request the same answer."""
    said = f"<Message>m</Message><AuthenticationErrorDetail>{SERVER_TEXT}</AuthenticationErrorDetail>"
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code>{said}</Error>".encode() if code else b"<html>sorry</html>"
    headers |= {"Content-Type": "application/xml" if code else "text/html", "Content-Length": len(body)}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connections: list[Any] = []

    async def serve(reader, writer):
        connections.append(asyncio.current_task())
        while request := await reader.readline():
            length = 0
            while line := (await reader.readline()).lower().strip():
                length = int(line.partition(b":")[2]) if line.startswith(b"content-length") else length
            await reader.readexactly(length)
            writer.write(f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body * (not request.startswith(b"HEAD")))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/devstore"
    await asyncio.gather(*connections)


def azure(url):
    return AzureBlobStorage("the-container", "blob", account_url=url, credential="QWIxMlNlY3JldAAA")


@pytest.mark.parametrize(
    ("status", "code", "read", "write", "hint"),
    [
        (412, "ConditionNotMet", CONFLICT, CONFLICT, "another writer has changed"),
        (412, "LeaseIdMissing", FATAL, FATAL, "the blob has a lease"),
        (409, "BlobAlreadyExists", CONFLICT, CONFLICT, "another writer has changed"),
        (409, "InvalidBlobType", FATAL, FATAL, "not a block blob"),
        (404, "BlobNotFound", ABSENT, CONFLICT, "it does not exist"),
        (404, "ContainerNotFound", FATAL, FATAL, "'the-container' does not exist: create it"),
        (404, "", FAILED, FAILED, ""),
        (403, "AuthorizationPermissionMismatch", FATAL, FATAL, "the container 'the-container' was refused"),
        (403, "AuthenticationFailed", FATAL, FATAL, "check the account's key"),
        (400, "InvalidHeaderValue", FATAL, FATAL, "the store refused"),
        (429, "TooManyRequests", THROTTLED, THROTTLED, "fewer requests (429 TooManyRequests)"),
        (500, "InternalError", FAILED, FAILED, ""),
        (503, "ServerBusy", THROTTLED, THROTTLED, "fewer requests (503 ServerBusy)"),
        (200, "", FATAL, FATAL, "is not one of this kind of store (ValueError): check the endpoint"),
    ],
)
async def test_answers_of_azure_map_to_errors(status, code, read, write, hint):
    headers = {"x-ms-error-code": code} if code else {}
    async with answering(status, code, **headers) as url:
        await check(azure(url), read, write, hint)


# Lists


class Listing:
    """A session, and its client, with these answers to lists; the last one is repeated."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.meta = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))

    def client(self, *args, **options):
        return nullcontext(self)

    async def list_objects_v2(self, **arguments):
        self.asked.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def listed(storage):
    async with storage:
        return [each.suffix for each in await storage.list_beside(".staged.")]


@pytest.mark.parametrize(
    ("answers", "hint"),
    [
        ([{}], "was cut"),
        ([{"IsTruncated": True}], "was cut"),
        ([{"IsTruncated": True, "NextContinuationToken": "a"}], "again and again"),
        ([{"IsTruncated": True, "NextContinuationToken": "a"}, from_s3(500, "InternalError")], "the store failed"),
    ],
)
async def test_a_list_that_cannot_be_read_to_its_end_is_a_failure(answers, hint):
    with pytest.raises(StorageError, match=hint):
        await listed(S3Storage("the-bucket", "key", Listing(*answers)))


# Endpoints that are wrong


@asynccontextmanager
async def saying(answer):
    """Return the address of a server that answers every request with these bytes."""

    async def serve(reader, writer):
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"


def s3_at(url):
    return S3Storage("box", "key", None, "us-east-1", url, access_key_id="a", secret_access_key="b")


def google_at(url):
    credentials, options = AnonymousCredentials(), {"api_endpoint": url}
    return GCSStorage("box", "key", GoogleClient(project="p", credentials=credentials, client_options=options))


def azure_at(url):
    return azure(f"{url}/account")


PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>"
OTHER = b"SSH-2.0-OpenSSH_9.9\r\n"


@pytest.mark.parametrize("open_at", [s3_at, google_at, azure_at])
async def test_the_first_call_to_an_endpoint_that_is_no_store_names_the_host_and_the_reason(open_at):
    for scheme, answer, reason in [
        ("https", OTHER, "{} does not speak TLS (WRONG_VERSION_NUMBER): check if the endpoint begins with http"),
        ("http", OTHER, "the answer of {} is not one of this kind of store"),
        *([("http", PAGE, "the answer of {} is not one of this kind of store")] if open_at != google_at else []),
    ]:
        async with saying(answer) as address, open_at(f"{scheme}://{address}") as storage:
            raised, text = await outcome(storage.read())
            assert (FATAL, True) == (raised, reason.format(address) in text), text


def unknown_host(number=socket.EAI_NONAME):
    """Return the error of aiohttp for a lookup that has failed."""
    error = aiohttp.ClientConnectorDNSError(
        SimpleNamespace(host="the-bucket.example.org", port=443, is_ssl=True, ssl=True),  # type: ignore[arg-type]
        socket.gaierror(number, "said the system"),
    )
    error.__cause__ = error.os_error
    return error


async def test_an_unknown_host_is_fatal_until_a_call_has_succeeded():
    botocore_error = botocore_errors.EndpointConnectionError(**ENDPOINT)
    botocore_error.__cause__ = unknown_host()
    for made in (s3(botocore_error), GCSStorage("the-bucket", "key", Google(unknown_host()))):
        for call in (made.read, lambda made=made: made.write(CONTENT)):
            raised, text = await outcome(call())
            assert raised is FATAL
            assert "the host the-bucket.example.org" in text
            assert "is not known: check the endpoint" in text
    session = S3(None)
    storage = S3Storage("the-bucket", "key", session)
    await storage.write(CONTENT)
    session.error = botocore_error
    raised, text = await outcome(storage.beside(".other").read())
    assert (FAILED, True) == (raised, "is not known" in text)
    botocore_error.__cause__ = unknown_host(socket.EAI_AGAIN)
    assert FAILED is (await outcome(s3(botocore_error).read()))[0], "no answer of the DNS"


async def test_a_call_with_refused_credentials_is_made_again_only_if_they_had_been_accepted():
    session = S3(from_s3(400, "ExpiredToken"))
    storage = S3Storage("the-bucket", "key", session)
    assert FATAL is (await outcome(storage.read()))[0]
    assert ["get_object"] == session.calls
    session.error = None
    await storage.write(CONTENT)
    session.error = from_s3(400, "ExpiredToken")
    assert FATAL is (await outcome(storage.read()))[0]
    assert ["get_object", "put_object", "get_object", "get_object"] == session.calls
