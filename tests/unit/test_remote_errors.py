"""The meaning of errors of the S3, Google and Azure clients to a queue, and the texts that people read.

The errors of the S3 and Google clients are built by hand; Azure's client makes its own from the answers of a server.
"""

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import aiohttp
import google.auth.exceptions as auth_errors
import pytest
import requests
from botocore import exceptions as botocore_errors
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.api_core import exceptions as google_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as GoogleClient

from jqueue import AzureBlobStorage, CASConflictError, GCSStorage, S3Storage, StorageError
from jqueue.domain.errors import StorageFatalError, StorageThrottledError
from jqueue.runtime.system import SystemClock

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
        (409, "OperationAborted", FAILED, FAILED, "the store failed"),
        (409, "SomethingNew", CONFLICT, CONFLICT, ""),
        (404, "NoSuchKey", ABSENT, CONFLICT, "it does not exist"),
        (404, "NoSuchBucket", FATAL, FATAL, "'the-bucket' does not exist: create it"),
        (404, "", FAILED, FAILED, ""),
        (403, "AccessDenied", FATAL, FATAL, "the bucket 'the-bucket' was refused"),
        (403, "AllAccessDisabled", FATAL, FATAL, "the bucket 'the-bucket' was refused"),
        (403, "SignatureDoesNotMatch", FATAL, FATAL, "check the credentials"),
        (403, "InvalidAccessKeyId", FATAL, FATAL, "check the credentials"),
        (403, "RequestTimeTooSkewed", FATAL, FATAL, "the clock of this machine"),
        (400, "ExpiredToken", FATAL, FATAL, "the credentials have expired"),
        (400, "AuthorizationHeaderMalformed", FATAL, FATAL, "'the-bucket' is in another region: give region_name"),
        (301, "PermanentRedirect", FATAL, FATAL, "'the-bucket' is in another region: give region_name"),
        (400, "SomethingNew", FATAL, FATAL, "the store refused the request (400 SomethingNew)"),
        (400, "BadDigest", FAILED, FAILED, ""),
        (400, "RequestTimeout", FAILED, FAILED, ""),
        (400, "EntityTooLarge", FATAL, FATAL, "too large for this store"),
        (408, "408", FAILED, FAILED, "the store failed (408)"),
        (429, "429", THROTTLED, THROTTLED, "asks for fewer requests (429)"),
        (500, "InternalError", FAILED, FAILED, "the store failed"),
        (501, "NotImplemented", FATAL, FATAL, "no conditional writes"),
        (503, "SlowDown", THROTTLED, THROTTLED, "asks for fewer requests (503 SlowDown)"),
        (503, "ServiceUnavailable", THROTTLED, THROTTLED, ""),
        (504, "504", FAILED, FAILED, ""),
        (None, "", FAILED, FAILED, ""),
    ],
)
async def test_answers_of_s3_map_to_errors(status, code, read, write, hint):
    found, read_text, write_text = await outcomes(s3(from_s3(status, code)))
    assert (read, write) == found
    assert hint in write_text
    assert read is ABSENT or hint in read_text


ENDPOINT = {"endpoint_url": "https://the-bucket.example.org/key", "error": SERVER_TEXT}


@pytest.mark.parametrize(
    ("error", "meaning", "hint"),
    [
        (
            botocore_errors.EndpointConnectionError(**ENDPOINT),
            FAILED,
            "the-bucket.example.org did not answer (EndpointConnectionError)",
        ),
        (
            botocore_errors.ReadTimeoutError(**ENDPOINT),
            FAILED,
            "the-bucket.example.org did not answer (Read",
        ),
        (botocore_errors.ConnectTimeoutError(**ENDPOINT), FAILED, "did not answer"),
        (botocore_errors.ConnectionClosedError(**ENDPOINT), FAILED, "did not answer"),
        (botocore_errors.SSLError(**ENDPOINT), FAILED, "SSLError"),
        (botocore_errors.ResponseStreamingError(error=SERVER_TEXT), FAILED, "did not answer"),
        (botocore_errors.HTTPClientError(error=SERVER_TEXT), FAILED, "did not answer"),
        (botocore_errors.IncompleteReadError(actual_bytes=1, expected_bytes=2), FAILED, "did not answer"),
        (botocore_errors.CredentialRetrievalError(provider="role", error_msg=SERVER_TEXT), FAILED, "Credential"),
        (aiohttp.ClientPayloadError(SERVER_TEXT), FAILED, "the store did not answer (ClientPayloadError)"),
        (aiohttp.ServerDisconnectedError(SERVER_TEXT), FAILED, "did not answer"),
        (OSError(SERVER_TEXT), FAILED, "the store did not answer (OSError)"),
        (TimeoutError(), FAILED, "no answer within 15 s"),
        (botocore_errors.NoCredentialsError(), FATAL, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (botocore_errors.PartialCredentialsError(provider="env", cred_var="a"), FATAL, "no credentials were found"),
        (botocore_errors.NoRegionError(), FATAL, "as it is configured"),
        (botocore_errors.ProfileNotFound(profile="mine"), FATAL, "as it is configured"),
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
    found, *texts = await outcomes(s3(error))
    assert (meaning, meaning) == found
    assert all(hint in text for text in texts)


async def test_the_error_for_a_client_that_cannot_be_made_does_not_show_its_settings():
    for made in (
        S3Storage("the-bucket", "key", endpoint_url="no endpoint", region_name="eu-west-1"),
        AzureBlobStorage("the-container", "blob", connection_string="no=connection"),
    ):
        with pytest.raises(StorageFatalError, match=r"(as it is configured|cannot be used)") as raised:
            await made.read()
        assert raised.value.__cause__ is None
        assert not any(part in str(raised.value) for part in ("no endpoint", "no=connection"))


def test_an_endpoint_with_credentials_is_refused():
    with pytest.raises(ValueError, match="must not hold credentials"):
        S3Storage("the-bucket", "key", endpoint_url="http://AKIDKEY:Ab12Secret@host")


async def test_a_refusal_of_s3_names_the_permissions_for_the_call():
    _, read, write = await outcomes(s3(from_s3(403, "AccessDenied")))
    assert "to read, the credentials need s3:GetObject, and s3:ListBucket" in read
    assert "to write, the credentials need s3:PutObject and s3:GetObject" in write
    with pytest.raises(StorageFatalError, match="to delete, the credentials need s3:DeleteObject"):
        await s3(from_s3(403, "AccessDenied")).remove()


async def test_the_other_etag_style_is_tried_only_after_a_failed_precondition():
    for status, code, calls in [
        (412, "PreconditionFailed", ["put_object", "head_object", "put_object"]),
        (403, "AccessDenied", ["put_object"]),
    ]:
        storage = s3(from_s3(status, code), head={"ETag": '"1"'})
        await outcome(storage.write(CONTENT, '"1"'))
        assert calls == storage.session.calls


@pytest.mark.parametrize(("status", "code"), [(409, "ConditionalRequestConflict"), (404, "NoSuchKey")])
async def test_other_conflicts_of_s3_are_not_retried(status, code):
    storage = s3(from_s3(status, code), head={"ETag": '"1"'})
    await outcome(storage.write(CONTENT, '"1"'))
    assert ["put_object"] == storage.session.calls


async def test_the_error_of_the_client_is_the_cause():
    error = from_s3(500, "InternalError")
    with pytest.raises(StorageError) as raised:
        await s3(error).read()
    assert error is raised.value.__cause__ is raised.value.cause


async def test_removing_a_missing_object_succeeds():
    await s3(from_s3(404, "NoSuchKey")).remove()


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


def refresh_error_of_an_unreachable_metadata_server():
    error = auth_errors.RefreshError(SERVER_TEXT)  # as google.auth.compute_engine raises it
    error.__cause__ = auth_errors.TransportError(SERVER_TEXT)
    return error


@pytest.mark.parametrize(
    ("error", "read", "write", "hint"),
    [
        (from_google(412), CONFLICT, CONFLICT, "another writer has changed"),
        (from_google(409), CONFLICT, CONFLICT, ""),
        (from_google(404, "No such object: the-bucket/key"), ABSENT, CONFLICT, "it does not exist"),
        (from_google(404, "The specified bucket does not exist."), FATAL, FATAL, "'the-bucket' does not exist: create"),
        (not_found("No such object: the-bucket/key"), ABSENT, CONFLICT, "it does not exist"),
        (
            not_found("Le seau \x1b[31m\nn'existe pas."),
            FATAL,
            FATAL,
            r"create it, or check the name (404, the store says",
        ),
        (not_found("Le seau \x1b[31m\nn'existe pas."), FATAL, FATAL, r"\x1b[31m\nn'existe pas."),
        (from_google(404), FAILED, FAILED, "the store failed (404)"),
        (from_google(404, '{"code": 404, "message": ["{"]}'), FAILED, FAILED, "the store failed (404)"),
        (from_google(404, "[]"), FAILED, FAILED, "the store failed (404)"),
        (from_google(403), FATAL, FATAL, "'the-bucket' was refused"),
        (from_google(401), FATAL, FATAL, "GOOGLE_APPLICATION_CREDENTIALS"),
        (from_google(400), FATAL, FATAL, "the store refused the request (400)"),
        (from_google(413), FATAL, FATAL, ""),
        (from_google(408), FAILED, FAILED, ""),
        (from_google(429), THROTTLED, THROTTLED, "fewer requests (429)"),
        (from_google(500), FAILED, FAILED, ""),
        (from_google(502), FAILED, FAILED, ""),
        (from_google(503), THROTTLED, THROTTLED, ""),
        (from_google(504), FAILED, FAILED, ""),
        (auth_errors.DefaultCredentialsError(SERVER_TEXT), FATAL, FATAL, "set GOOGLE_APPLICATION_CREDENTIALS"),
        (auth_errors.RefreshError(SERVER_TEXT), FATAL, FATAL, "renew them"),
        (
            auth_errors.RefreshError(SERVER_TEXT, retryable=True),
            FAILED,
            FAILED,
            "the store did not answer (RefreshError)",
        ),
        (refresh_error_of_an_unreachable_metadata_server(), FAILED, FAILED, ""),
        (auth_errors.TransportError(SERVER_TEXT), FAILED, FAILED, "the store did not answer (TransportError)"),
        (requests.ConnectionError(SERVER_TEXT), FAILED, FAILED, "the store did not answer (ConnectionError)"),
        (requests.Timeout(SERVER_TEXT), FAILED, FAILED, "the store did not answer (Timeout)"),
        (requests.exceptions.ChunkedEncodingError(SERVER_TEXT), FAILED, FAILED, ""),
        (requests.exceptions.InvalidURL(SERVER_TEXT), FATAL, FATAL, "as it is configured (InvalidURL)"),
        (
            requests.exceptions.JSONDecodeError("Expecting value", CONTENT.decode(), 0),
            FATAL,
            FATAL,
            "is not one of this kind of store (JSONDecodeError)",
        ),
        (OSError(SERVER_TEXT), FAILED, FAILED, "the store did not answer (OSError)"),
    ],
    ids=lambda value: f"{type(value).__name__}" if isinstance(value, Exception) else None,
)
async def test_errors_of_the_google_client_map_to_errors(error, read, write, hint):
    found, read_text, write_text = await outcomes(GCSStorage("the-bucket", "key", Google(error)))
    assert (read, write) == found
    assert hint in write_text
    assert read is ABSENT or hint in read_text


async def test_a_refusal_of_google_names_the_permissions_for_the_call():
    _, read, write = await outcomes(GCSStorage("the-bucket", "key", Google(from_google(403))))
    assert "to read, the credentials need storage.objects.get, and storage.objects.list" in read
    assert "to write, the credentials need storage.objects.create, storage.objects.delete" in write
    await GCSStorage("the-bucket", "key", Google(from_google(404, "No such object: the-bucket/key"))).remove()


@pytest.mark.parametrize("refusal", [from_google(401), auth_errors.RefreshError(SERVER_TEXT)])
async def test_another_client_of_google_is_made_when_the_credentials_are_refused(refusal):
    storage, clients = GCSStorage("the-bucket", "key"), []

    def make():
        clients.append(Google(from_google(404, "No such object: the-bucket/key")))
        return clients[-1]

    storage._make_client = make  # type: ignore[method-assign]
    assert ABSENT == (await outcome(storage.read()))[0]
    clients[0].error = refusal
    assert ABSENT == (await outcome(storage.read()))[0]
    assert 2 == len(clients)
    mine = GCSStorage("the-bucket", "key", Google(refusal))
    for _ in range(2):
        assert FATAL is (await outcome(mine.read()))[0]


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
        (409, "ContainerBeingDeleted", FAILED, FAILED, ""),
        (409, "InvalidBlobType", FATAL, FATAL, "not a block blob"),
        (404, "BlobNotFound", ABSENT, CONFLICT, "it does not exist"),
        (404, "ContainerNotFound", FATAL, FATAL, "'the-container' does not exist: create it"),
        (404, "ResourceNotFound", FATAL, FATAL, ""),
        (404, "", FAILED, FAILED, ""),
        (403, "AuthorizationPermissionMismatch", FATAL, FATAL, "the container 'the-container' was refused"),
        (403, "AuthorizationFailure", FATAL, FATAL, "the container 'the-container' was refused"),
        (403, "AuthenticationFailed", FATAL, FATAL, "check the account's key"),
        (401, "InvalidAuthenticationInfo", FATAL, FATAL, "credentials were refused"),
        (400, "InvalidHeaderValue", FATAL, FATAL, "the store refused"),
        (429, "TooManyRequests", THROTTLED, THROTTLED, "fewer requests (429 TooManyRequests)"),
        (500, "OperationTimedOut", FAILED, FAILED, ""),
        (500, "InternalError", FAILED, FAILED, ""),
        (503, "ServerBusy", THROTTLED, THROTTLED, "fewer requests (503 ServerBusy)"),
        (502, "", FAILED, FAILED, "the store failed (502)"),
        (200, "", FATAL, FATAL, "is not one of this kind of store (ValueError): check the endpoint"),
    ],
)
async def test_answers_of_azure_map_to_errors(status, code, read, write, hint):
    headers = {"x-ms-error-code": code} if code else {}
    async with answering(status, code, **headers) as url:
        found, read_text, write_text = await outcomes(azure(url))
    assert (read, write) == found
    assert hint in write_text
    assert read is ABSENT or hint in read_text


# Endpoints that are wrong


def with_a_certificate_of_its_own(folder):
    """Return the TLS context of a server named localhost, whose certificate no authority has signed."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    day, now = timedelta(days=1), SystemClock().now()
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / "server.pem").write_bytes(secret + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context


@asynccontextmanager
async def saying(answer, context=None):
    """Return the address of a server that answers every request with these bytes."""

    async def serve(reader, writer):
        await reader.read(100)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
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
async def test_the_first_call_to_an_endpoint_that_is_no_store_names_the_host_and_the_reason(open_at, tmp_path):
    for scheme, answer, context, reason in [
        ("https", PAGE, with_a_certificate_of_its_own(tmp_path), "the certificate of {} was not accepted (self-signed"),
        ("https", OTHER, None, "{} does not speak TLS (WRONG_VERSION_NUMBER): check if the endpoint begins with http"),
        ("http", OTHER, None, "the answer of {} is not one of this kind of store"),
        *([("http", PAGE, None, "the answer of {} is not one of this kind of store")] if open_at != google_at else []),
    ]:
        async with saying(answer, context) as address, open_at(f"{scheme}://{address}") as storage:
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
