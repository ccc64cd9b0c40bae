"""A queue in an S3 bucket, or in any S3 store with conditional writes: MinIO, R2, Tigris, SeaweedFS, Ceph.

Needs `pip install "jqueue[s3]"`. Credentials come from the places where the AWS tools look for them: the environment,
the shared files, the machine's role.

A client of S3 repeats a PUT whose answer was lost, and the second PUT finds the first and is refused. It can also
report a write that landed as a failed connection. So only a clean success is certain, and after any other answer the
queue reads the object to find out. By default the client asks before each PUT if it may send the body, which would take
two round trips for every commit: here it does not ask.

Opening a client takes 150 ms, mostly to read two megabytes of models. A thread does that.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from os.path import isfile
from typing import Any

from jqueue.adapters.storage._remote import STATUSES, WHOLE, ErrorMeaning, Found, RemoteStorage, Span, Upload
from jqueue.adapters.storage._shared import RawListed
from jqueue.domain.durations import Duration
from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.runtime.threads import in_a_thread

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.httpsession import AIOHTTPSession
    from aiobotocore.session import AioSession
    from aiohttp import ClientResponseError
    from botocore import exceptions as botocore_errors
    from botocore.exceptions import BotoCoreError as BotoCoreError  # for `jqueue.connect`
    from botocore.loaders import JSONFileLoader, Loader, create_loader
    from botocore.parsers import ResponseParserError

    from jqueue.adapters.storage._lookups import LOOKUPS
except ImportError as _error:
    raise ImportError('S3Storage needs aiobotocore: pip install "jqueue[s3]"') from _error

MEANINGS: dict[str, ErrorMeaning] = {
    "PreconditionFailed": ErrorMeaning.CONFLICT,
    "ConditionalRequestConflict": ErrorMeaning.CONFLICT,
    "NoSuchKey": ErrorMeaning.MISSING,
    "NoSuchBucket": ErrorMeaning.FATAL,
    "SlowDown": ErrorMeaning.THROTTLED,
    "Throttling": ErrorMeaning.THROTTLED,
    "RequestTimeout": ErrorMeaning.TRANSIENT,
    "OperationAborted": ErrorMeaning.TRANSIENT,
    "IncompleteBody": ErrorMeaning.TRANSIENT,
    "BadDigest": ErrorMeaning.TRANSIENT,
}
"""Meanings of S3's error codes. For other codes, the HTTP status decides."""

PERMISSIONS = {
    "read": "s3:GetObject, and s3:ListBucket to learn that an object does not exist",
    "write": "s3:PutObject and s3:GetObject",
    "delete": "s3:DeleteObject",
    "list": "s3:ListBucket",
}

HINTS: dict[str, str] = {
    "NoSuchBucket": "the bucket {place!r} does not exist: create it, or check the name and the endpoint",
    "403": "access to the bucket {place!r} was refused: to {doing}, the credentials need {permissions}",
    "InvalidAccessKeyId": "the access key is not known to this store: check the credentials and the endpoint",
    "SignatureDoesNotMatch": "the secret key does not match the access key: check the credentials",
    "ExpiredToken": "the credentials have expired: renew them",
    "ExpiredTokenException": "the credentials have expired: renew them",
    "InvalidToken": "the session token of the credentials is not valid: renew them",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it",
    "PermanentRedirect": "the bucket {place!r} is in another region: give region_name",
    "AuthorizationHeaderMalformed": "the bucket {place!r} is in another region: give region_name",
    "NotImplemented": "this store has no conditional writes, and a queue is not safe without them: use another store",
    "EntityTooLarge": "the object is too large for this store: let workers catch up, or purge jobs",
}

OUT_OF_DATE = {"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
"""Codes for credentials that were valid once, and may have been renewed in the place where they come from."""

TRANSPORT: tuple[type[Exception], ...] = (
    botocore_errors.ConnectionError,
    botocore_errors.HTTPClientError,
    botocore_errors.IncompleteReadError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.MetadataRetrievalError,
)
"""Errors that botocore raises when no answer came. Its other errors are mistakes in the configuration."""


QUOTED, UNQUOTED = "quoted", "unquoted"


@dataclass
class EtagStyle:
    """The style of etags that a store accepts in a condition, as learned from its answers. Calls under way share it.

    Attributes:
        next: the style to send next.
        known: True once a write in that style has succeeded, or if the user has set the style. Then neither changes.
    """

    next: str = QUOTED
    known: bool = False

    def suspect(self, style: str, *, known: bool = False) -> None:
        """Try this style next: the store refused the other one although the etag was right, or a write succeeded."""
        if not self.known:
            self.next, self.known = style, known


class _Connections(AIOHTTPSession):  # type: ignore[misc]
    """Reads certificates in our own threads. aiobotocore 3 reads them in those of the event loop."""

    async def _create_connector(self, proxy_url: str | None) -> Any:
        contexts = await in_a_thread(self._build_ssl_contexts, proxy_url)
        ready = copy.copy(self)
        ready._build_ssl_contexts = lambda _: contexts
        ready._verify = ready._cert_file = None  # so that it takes the contexts, which verify, without a thread
        return await AIOHTTPSession._create_connector(ready, None)


OWN_THREADS: dict[str, Any] = {"connector_args": {"resolver": LOOKUPS}}
"""Options of a client that waits for none of the event loop's own threads, all of which job handlers may occupy."""
if hasattr(AIOHTTPSession, "_build_ssl_contexts"):
    OWN_THREADS["http_session_cls"] = _Connections

MODELS = ("endpoints", "partitions", "sdk-default-configuration", "_retry")
MODELS_OF_S3 = ("service-2", "endpoint-rule-set-1")


class _InterruptibleModelLoader(JSONFileLoader):  # type: ignore[misc]
    """Reads the models of botocore into plain dicts, object by object, so that other threads can run in between."""

    def _load_file(self, full_path: str, open_method: Callable[[str, str], Any]) -> Any:
        if not isfile(full_path):
            return None
        with open_method(full_path, "rb") as file:
            return json.loads(file.read().decode(), object_pairs_hook=lambda pairs: dict(pairs))


@cache
def _models(data_path: str | None) -> Loader:
    """Return the models of botocore that a client of S3 needs. All sessions made here share them."""
    models = create_loader(data_path)
    models.file_loader = _InterruptibleModelLoader()
    with suppress(Exception):  # the client will raise the error
        models.list_available_services("service-2")
        for name in MODELS:
            models.load_data(name)
        for name in MODELS_OF_S3:
            models.load_service_model("s3", name)
    return models


def _remove_expect_header(request: Any, **_: Any) -> None:
    del request.headers["Expect"]


def _sign_urls_as_requests(signature_version: Any, **_: Any) -> str | None:
    """Return the version of a URL's signature. By default, botocore signs with version 2, which newer stores refuse."""
    is_url = isinstance(signature_version, str) and signature_version.endswith("-query")
    return "s3v4-query" if is_url and not signature_version.startswith(("v4a", "v4-s3express")) else None


class S3Storage(RemoteStorage[Any]):
    """One object in a bucket.

    An object from more than 5 MiB of pieces is uploaded in parts. Amazon S3, R2 and SeaweedFS create it only once. A
    store that ignores `If-None-Match` at the end of such an upload replaces an existing object.

    Args:
        bucket: name of the bucket, which must exist.
        key: name of the object in it.
        session: source of the credentials, an `AioSession` of aiobotocore or a `Session` of aioboto3; by default, a
            new one.
        region_name: region of the bucket, if the environment does not name it.
        endpoint_url: URL of a store that is not AWS.
        profile_name: profile of the AWS tools, if no session is given.
        access_key_id: access key, if no session is given; better leave it to the environment.
        secret_access_key: the secret of that key.
        server_side_encryption: S3's `ServerSideEncryption`, for example "aws:kms".
        sse_kms_key_id: the key for the encryption, if it is not the default key.
        storage_class: S3's `StorageClass`, for example "EXPRESS_ONEZONE".
        addressing_style: "path" or "virtual", if botocore guesses wrong.
        etag_style: "quoted" or "unquoted", the style of etags that the store accepts in a condition; by default, it is
            found out.
        timeout: time that one call may take: a timedelta or seconds, 15 by default.

    Raises:
        ValueError: the bucket or the key is empty, the endpoint_url holds credentials, or the etag_style is unknown.
    """

    name_field = "key"
    authority_variable = "AWS_CA_BUNDLE"
    meanings: Mapping[str, ErrorMeaning] = MEANINGS
    statuses: Mapping[int, ErrorMeaning] = STATUSES | {501: ErrorMeaning.FATAL}
    hints: Mapping[str, str] = HINTS
    permissions: Mapping[str, str] = PERMISSIONS
    malformed: tuple[type[Exception], ...] = (*RemoteStorage.malformed, ResponseParserError, ClientResponseError)

    def __init__(
        self,
        bucket: str,
        key: str,
        session: Any = None,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        *,
        profile_name: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        server_side_encryption: str | None = None,
        sse_kms_key_id: str | None = None,
        storage_class: str | None = None,
        addressing_style: str | None = None,
        etag_style: str | None = None,
        timeout: Duration = 15.0,
    ) -> None:
        if not bucket or not key:
            raise ValueError("S3Storage needs the name of a bucket, and the key of an object in it")
        if "@" in (endpoint_url or "").partition("://")[2].partition("/")[0]:
            raise ValueError("endpoint_url must not hold credentials: it is shown in errors and logs")
        if etag_style not in (None, QUOTED, UNQUOTED):
            raise ValueError(f'etag_style must be "{QUOTED}" or "{UNQUOTED}"')
        self.bucket = bucket
        self.key = key
        self.session = session
        self.region_name = region_name
        self.endpoint_url = endpoint_url
        self._profile_name = profile_name
        self._keys = (access_key_id, secret_access_key)
        self.server_side_encryption = server_side_encryption
        self.sse_kms_key_id = sse_kms_key_id
        self.storage_class = storage_class
        self.addressing_style = addressing_style
        self._style = EtagStyle() if etag_style is None else EtagStyle(etag_style, known=True)
        super().__init__(f"s3://{bucket}/{key}", timeout)

    @property
    def etag_style(self) -> str | None:
        """The style of etags in a condition, "quoted" or "unquoted"; None until a write has shown it."""
        return self._style.next if self._style.known else None

    def open_session(self) -> Any:
        """Return the source of the credentials: the session that was given, or a new one."""
        if self.session:
            return self.session
        session = AioSession(profile=self._profile_name)
        session.register_component("data_loader", _models(session.get_config_variable("data_path")))
        session.set_default_client_config(AioConfig(**OWN_THREADS))  # for clients that fetch credentials
        if any(self._keys):
            session.set_credentials(*self._keys)
        return session

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        style = {} if self.addressing_style is None else {"s3": {"addressing_style": self.addressing_style}}
        config = AioConfig(
            connect_timeout=self.timeout,
            read_timeout=self.timeout,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",  # many S3 stores do not know the newer checksums
            response_checksum_validation="when_required",
            **style,
            **OWN_THREADS,
        )
        async with AsyncExitStack() as closing:
            try:
                session = await in_a_thread(self.open_session)
                make = getattr(session, "client", None) or session.create_client  # of aioboto3, or of aiobotocore
                opened = make("s3", region_name=self.region_name, endpoint_url=self.endpoint_url, config=config)
                client = await closing.enter_async_context(opened)
                self._client.endpoint = getattr(client.meta, "endpoint_url", "")
                client.meta.events.register("choose-signer.s3.GetObject", _sign_urls_as_requests)
                for call in ("PutObject", "UploadPart"):
                    client.meta.events.register(f"request-created.s3.{call}", _remove_expect_header)
            except ValueError:  # its text may hold a secret
                raise StorageFatalError(f"{self.url}: the client cannot be used as it is configured") from None
            yield client

    async def _ask(self, call: Callable[..., Any], **options: Any) -> Any:
        """Return the answer to a call for the bucket. The call takes no option that is None."""
        arguments = {name: value for name, value in options.items() if value is not None}
        try:
            answer = await call(Bucket=self.bucket, **arguments)
        except botocore_errors.ClientError as error:
            self._note_date(error.response)
            raise
        self._note_date(answer)
        return answer

    def _note_date(self, answer: dict[str, Any]) -> None:
        self._clock.note_date(answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"))

    async def _get(self, client: Any, unless: str | None, span: Span = WHOLE) -> Found | None:
        start, stop = span
        wanted = None if span == WHOLE else f"bytes={start}-{'' if stop is None else stop - 1}"
        condition = None if unless is None else _in_style(unless, self._style.next)
        answer = await self._ask(client.get_object, Key=self.key, Range=wanted, IfNoneMatch=condition)
        async with answer["Body"] as body:
            content: bytes = await body.read()
        is_range = "ContentRange" in answer  # some stores send the whole object instead
        return content if is_range else content[start:stop], answer["ETag"]

    async def _put(self, client: Any, content: bytes, if_match: str | None) -> str:
        async def put(style: str) -> str:
            condition = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": _in_style(if_match, style)}
            answer = await self._ask(client.put_object, Body=content, **condition, **self._options_of_objects())
            if if_match is not None:
                self._style.suspect(style, known=True)
            etag: str = answer["ETag"]
            return etag

        style = self._style.next
        try:
            return await put(style)
        except botocore_errors.ClientError as error:
            if if_match is None or not await self._refused_for_its_style(client, if_match, error):
                raise
            refusal = error
        other = UNQUOTED if style == QUOTED else QUOTED
        self._style.suspect(other)
        try:
            return await put(other)
        except botocore_errors.ClientError as error:
            if _status(error) != 400:
                raise
        self._style.suspect(style)
        raise refusal  # the store rejects etags in the other style, so the first answer counts

    def _options_of_objects(self) -> dict[str, str | None]:
        """Return the name and the options with which an object is written."""
        return {
            "Key": self.key,
            "ContentType": self.content_type,
            "ServerSideEncryption": self.server_side_encryption,
            "SSEKMSKeyId": self.sse_kms_key_id,
            "StorageClass": self.storage_class,
        }

    async def _refused_for_its_style(self, client: Any, etag: str, error: Any) -> bool:
        """True if a store refuses the etag that its object has, as Ceph does if the etag has quotes.

        The store is asked only until a write has shown the style. If the client repeated a write that had landed, the
        etag has changed, and the refusal is not blamed on the style.
        """
        if _status(error) != 412 or self._style.known or not etag.startswith('"'):
            return False
        try:
            answer = await self._ask(client.head_object, Key=self.key)
        except botocore_errors.ClientError as failure:
            if self._meaning(failure, "read")[0] is ErrorMeaning.THROTTLED:
                raise
            return False
        return bool(answer["ETag"] == etag)

    async def _begin(self, client: Any) -> str:
        name: str = (await self._ask(client.create_multipart_upload, **self._options_of_objects()))["UploadId"]
        return name

    async def _send(self, client: Any, *, upload: Upload, part: bytearray, is_last: bool) -> str:
        number, body = len(upload.receipts) + 1, BytesIO(part)
        sending = self._ask(client.upload_part, Key=self.key, UploadId=upload.name, PartNumber=number, Body=body)
        etag: str = (await sending)["ETag"]
        return etag

    async def _finish(self, client: Any, *, upload: Upload) -> None:
        parts = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload.receipts, 1)]}
        options = {"UploadId": upload.name, "MultipartUpload": parts}
        # A store that does not know this condition replaces an object.
        await self._ask(client.complete_multipart_upload, Key=self.key, IfNoneMatch="*", **options)

    async def _abandon(self, client: Any, *, upload: Upload) -> None:
        await self._ask(client.abort_multipart_upload, Key=self.key, UploadId=upload.name)

    async def _delete(self, client: Any) -> None:
        await self._ask(client.delete_object, Key=self.key)

    async def _list(self, client: Any, *, begins: str, page: str | None) -> tuple[list[RawListed], str | None]:
        most = self.listed_at_once
        answer = await self._ask(client.list_objects_v2, Prefix=begins, MaxKeys=most, ContinuationToken=page)
        following = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        if "IsTruncated" not in answer or (answer["IsTruncated"] and not following):
            raise StorageError(f"{self.url}: the answer to the list was cut off, or is not one of S3")
        return [(each["Key"], each["LastModified"], each["Size"]) for each in answer.get("Contents", ())], following

    def _is_out_of_date(self, error: Exception) -> bool:
        if any(self._keys) and not self.session:
            return False  # another client would have the same keys
        code = error.response.get("Error", {}).get("Code") if isinstance(error, botocore_errors.ClientError) else ""
        return code in OUT_OF_DATE or isinstance(error, botocore_errors.NoCredentialsError)

    def _meaning(self, error: Exception, doing: str) -> tuple[ErrorMeaning, str]:
        if isinstance(error, botocore_errors.ClientError):
            return self._by_code(_status(error), str(error.response.get("Error", {}).get("Code", "")), doing)
        name = type(error).__name__
        if isinstance(error, botocore_errors.NoCredentialsError | botocore_errors.PartialCredentialsError):
            hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            return ErrorMeaning.FATAL, f"no credentials were found ({name}): {hint}"
        if isinstance(error, botocore_errors.BotoCoreError) and not isinstance(error, TRANSPORT):
            said = str(error).partition("\n")[0]
            return ErrorMeaning.FATAL, f"the client cannot be used as it is configured: {said}"
        return self._no_answer(error)


def _in_style(etag: str, style: str) -> str:
    return etag.strip('"') if style == UNQUOTED else etag


def _status(error: Any) -> int | None:
    """Return the HTTP status of the answer that an error was made from."""
    status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
