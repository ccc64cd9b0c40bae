"""A queue in a blob of Azure Blob Storage.

Needs `pip install "jqueue[azure]"`. Azure's client repeats a write whose answer was lost, even when told not to. The
second write finds the first and is refused. So only a clean success is certain, and after any other answer the queue
reads the blob to find out.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from jqueue.adapters.storage._remote import STATUSES, WHOLE, ErrorMeaning, Found, RemoteStorage, Span, Upload
from jqueue.adapters.storage._shared import RawListed
from jqueue.domain.durations import Duration
from jqueue.domain.errors import StorageFatalError
from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.threads import in_a_network_thread

try:
    from aiohttp import ClientResponseError, ClientSession, DummyCookieJar, TCPConnector
    from azure.core import MatchConditions
    from azure.core import exceptions as azure_errors
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.storage.blob import BlobBlock
    from azure.storage.blob.aio import ContainerClient

    from jqueue.adapters.storage._lookups import LOOKUPS
except ImportError as _error:
    raise ImportError('AzureBlobStorage needs azure-storage-blob: pip install "jqueue[azure]"') from _error

CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"

LARGEST_PUT = 256 * 1024 * 1024
"""Bytes up to which a blob is written or read in one request. A condition holds for one request, not for several."""

MEANINGS: dict[str, ErrorMeaning] = {
    "BlobAlreadyExists": ErrorMeaning.CONFLICT,
    "BlobNotFound": ErrorMeaning.MISSING,
    "InvalidBlockList": ErrorMeaning.CONFLICT,  # another writer's blob has replaced these blocks
    "ContainerNotFound": ErrorMeaning.FATAL,
    "LeaseIdMissing": ErrorMeaning.FATAL,
    "ResourceNotFound": ErrorMeaning.FATAL,
    "ContainerBeingDeleted": ErrorMeaning.TRANSIENT,
}
"""Meanings of Azure's error codes. For other codes, the HTTP status decides."""

HINTS: dict[str, str] = {
    "ContainerNotFound": "the container {place!r} does not exist: create it, or check the name and the account",
    "401": "the credentials were refused: check the account's key, token or connection string",
    "AuthenticationFailed": "the credentials were refused: check the account's key, token or connection string",
    "403": "access to the container {place!r} was refused: to {doing}, the credentials need {permissions}",
    "LeaseIdMissing": "the blob has a lease, and a queue cannot write to it until you break the lease",
    "InvalidBlobType": "the object is not a block blob: choose another blob name for the queue",
}

PERMISSIONS = {
    "read": "the role Storage Blob Data Contributor, or a token with read (r)",
    "write": "the role Storage Blob Data Contributor, or a token with read, create and write (rcw)",
    "delete": "the role Storage Blob Data Contributor, or a token with delete (d)",
    "list": "the role Storage Blob Data Contributor, or a token for the container with list (l)",
}


class _Transport(AioHttpTransport):  # type: ignore[misc]
    """Sends requests without waiting for the event loop's own threads, all of which job handlers may occupy.

    aiohttp looks up the environment's proxies in such a thread, at each request. Here they are looked up once a host.

    Args:
        note_date: called with the date of each answer.
        options: of azure-core's transport.
    """

    def __init__(self, note_date: Callable[[str | None], None] = lambda _: None, **options: Any) -> None:
        super().__init__(**options)
        self._note_date = note_date
        self.session: Any = None
        self._proxies: dict[str, dict[str, str]] = {}

    async def open(self) -> None:
        """Open the connections, unless they are open."""
        if self.session is None:
            self.session = ClientSession(
                connector=TCPConnector(resolver=LOOKUPS), cookie_jar=DummyCookieJar(), auto_decompress=False
            )
        await super().open()

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request, through the proxy of the environment if it has one for the host."""
        host = urlsplit(request.url).hostname or ""
        if host not in self._proxies:
            self._proxies[host] = await in_a_network_thread(lambda: {} if proxy_bypass(host) else getproxies())
        answer = await super().send(request, **({"proxies": self._proxies[host]} | options))
        self._note_date(answer.headers.get("Date"))
        return answer


class AzureBlobStorage(RemoteStorage[Any]):
    """One block blob in a container.

    If the creation of an object from pieces fails, its name may be taken for a week: use another name.

    Args:
        container: name of the container, which must exist.
        blob_name: name of the blob in it.
        connection_string: connection string of the account; by default, the environment's
            AZURE_STORAGE_CONNECTION_STRING.
        account_url: URL of the account instead of a connection string, as `https://<account>.blob.core.windows.net`.
        credential: credential for the account_url: a key, a token, or any credential of `azure-identity`. By default,
            AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; without these, `azure.identity.aio.DefaultAzureCredential`.
        encryption_scope: the encryption scope to write with.
        standard_blob_tier: the access tier to write with, for example "Hot".
        timeout: time that one call may take: a timedelta or seconds, 15 by default.

    Raises:
        ValueError: the name of the container or of the blob is empty, or no account is named.
    """

    statuses: dict[int, ErrorMeaning] = STATUSES | {409: ErrorMeaning.FATAL}
    meanings: Mapping[str, ErrorMeaning] = MEANINGS
    hints: Mapping[str, str] = HINTS
    permissions: Mapping[str, str] = PERMISSIONS
    malformed: tuple[type[Exception], ...] = (*RemoteStorage.malformed, ValueError, ClientResponseError)

    def __init__(
        self,
        container: str,
        blob_name: str,
        *,
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: Any = None,
        encryption_scope: str | None = None,
        standard_blob_tier: str | None = None,
        timeout: Duration = 15.0,
    ) -> None:
        if not container or not blob_name:
            raise ValueError("AzureBlobStorage needs the name of a container, and of a blob in it")
        self.container = container
        self.blob_name = blob_name
        self.account_url = account_url
        self.encryption_scope = encryption_scope
        self.standard_blob_tier = standard_blob_tier
        self._credential = credential
        self._connection_string = connection_string
        self._is_from_environment = account_url is None and connection_string is None
        if self._is_from_environment:
            self._connection_string = os.environ.get(CONNECTION_STRING)
            if self._connection_string is None:
                raise ValueError(
                    "AzureBlobStorage needs an account: set AZURE_STORAGE_CONNECTION_STRING, or give account_url"
                )
        super().__init__(f"az://{container}/{blob_name}", timeout)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ContainerClient]:
        timeouts = dict.fromkeys(("connection_timeout", "read_timeout"), self.timeout)
        options: dict[str, Any] = {
            "transport": _Transport(self._clock.note_date, **timeouts),
            **timeouts,
            **dict.fromkeys(("retry_total", "retry_connect", "retry_read", "retry_status"), 0),
            "max_single_put_size": LARGEST_PUT,
            "max_single_get_size": LARGEST_PUT,
        }
        if self._is_from_environment:
            self._connection_string = os.environ.get(CONNECTION_STRING, self._connection_string)
        credential: Any
        credential, own = (None, False) if self._connection_string else self._find_credential()
        try:
            try:
                opened = (
                    ContainerClient.from_connection_string(self._connection_string, self.container, **options)
                    if self._connection_string
                    else ContainerClient(self.account_url or "", self.container, credential=credential, **options)
                )
            except (ValueError, TypeError) as error:  # its text may hold a secret
                what = f"the account_url, credential or connection string cannot be used ({type(error).__name__})"
                raise StorageFatalError(f"{self.url}: {what}") from None
            self._client.endpoint = opened.url
            async with opened as client:
                yield client
        finally:
            if own:
                await credential.close()

    def _find_credential(self) -> tuple[Any, bool]:
        """Return the credential, and True if we made it and must close it."""
        assert self.account_url is not None
        secret = self._credential or os.environ.get("AZURE_STORAGE_KEY") or os.environ.get("AZURE_STORAGE_SAS_TOKEN")
        if secret or "?" in self.account_url:
            return secret, False
        try:
            from azure.identity.aio import DefaultAzureCredential
        except ImportError:
            what = "no credential was given, and azure-identity, which would look for one, is not installed"
            raise StorageFatalError(f"{self.url}: {what}: pip install azure-identity") from None
        return DefaultAzureCredential(transport=_Transport()), True

    async def _get(self, client: ContainerClient, unless: str | None, span: Span = WHOLE) -> Found | None:
        options: dict[str, Any] = {}
        if unless is not None:
            options = {"etag": unless, "match_condition": MatchConditions.IfModified}
        if span != WHOLE:
            start, stop = span
            options |= {"offset": start, "length": None if stop is None else stop - start}
        blob = client.get_blob_client(self.blob_name)
        stream = await blob.download_blob(max_concurrency=1, **options)
        content = await stream.readall()
        return content, stream.properties.etag

    async def _put(self, client: ContainerClient, content: bytes, if_match: str | None) -> str:
        options = self._options_of_blobs()
        if if_match is not None:
            options |= {"etag": if_match, "match_condition": MatchConditions.IfNotModified}
        blob, create_only = client.get_blob_client(self.blob_name), if_match is None
        answer: Mapping[str, Any] = await blob.upload_blob(
            content, overwrite=not create_only, max_concurrency=1, validate_content=False, **options
        )
        etag: str = answer["etag"]
        return etag

    def _options_of_blobs(self) -> dict[str, Any]:
        """Return the options with which a blob is written."""
        options = {"encryption_scope": self.encryption_scope, "standard_blob_tier": self.standard_blob_tier}
        return {name: value for name, value in options.items() if value is not None}

    async def _begin(self, client: ContainerClient) -> str:
        return SystemEntropy().new_id()  # for the store, the upload begins with its first block

    async def _send(self, client: ContainerClient, *, upload: Upload, part: bytearray, is_last: bool) -> str:
        block = f"{upload.name}-{len(upload.receipts):05d}"  # Azure takes 50,000 blocks, with names of one length
        await client.get_blob_client(self.blob_name).stage_block(
            block, BytesIO(part), len(part), encryption_scope=self.encryption_scope, validate_content=False
        )
        return block

    async def _finish(self, client: ContainerClient, *, upload: Upload) -> None:
        await client.get_blob_client(self.blob_name).commit_block_list(
            [BlobBlock(block_id=block) for block in upload.receipts],
            match_condition=MatchConditions.IfMissing,
            **self._options_of_blobs(),
        )

    async def _delete(self, client: ContainerClient) -> None:
        await client.get_blob_client(self.blob_name).delete_blob()

    async def _list(
        self, client: ContainerClient, *, begins: str, page: str | None
    ) -> tuple[list[RawListed], str | None]:
        blobs = client.list_blobs(name_starts_with=begins, results_per_page=self.listed_at_once)
        pages: Any = blobs.by_page(page)
        entries = [(blob.name, blob.last_modified, blob.size) async for blob in await anext(pages)]
        return entries, pages.continuation_token

    def _is_out_of_date(self, error: Exception) -> bool:
        if self._credential is not None or not (self._is_from_environment or self.account_url):
            return False  # another client would have the same credentials
        code = getattr(error, "error_code", None)
        return isinstance(error, azure_errors.ClientAuthenticationError) or code == "AuthenticationFailed"

    def _meaning(self, error: Exception, doing: str) -> tuple[ErrorMeaning, str]:
        name = type(error).__name__
        if isinstance(error, azure_errors.HttpResponseError) and 200 <= (error.status_code or 0) < 300:
            return self._no_answer(ValueError(error.status_code))
        if isinstance(error, azure_errors.HttpResponseError) and error.status_code is not None:
            said = getattr(error, "error_code", None)  # an enum, mostly
            return self._by_code(error.status_code, str(getattr(said, "value", said) or ""), doing)
        if isinstance(error, azure_errors.ClientAuthenticationError):
            hint = "see AzureBlobStorage(credential=)"
            return ErrorMeaning.FATAL, f"no credentials were found or accepted ({name}): {hint}"
        return self._no_answer(error)
