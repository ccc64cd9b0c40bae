"""A queue in an object of Google Cloud Storage. Its etag is the object's generation.

Needs `pip install "jqueue[gcs]"`. Credentials are Google's application default credentials. Google's client is not
asynchronous, so each call runs in a thread. Cancelling the wait for a call does not stop the call.

Three habits of that client are prevented here. It takes an answer that was cut off in its head for an empty object. It
deletes the object, whatever it is by then, if the checksum of an upload does not fit. It makes extra requests for the
bucket, again and again if the bucket does not exist.

The structure of a 404 does not show if the object or the bucket is missing, and the 404 of a download has no structure
at all. Google's own message about a missing object is believed. Other messages are not interpreted: one request for a
list of the bucket decides.

An object takes about one write a second. The queue slows down to that, and puts more into each write.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from jqueue.adapters.storage._client import Answer
from jqueue.adapters.storage._remote import WHOLE, ErrorMeaning, Found, RemoteStorage, Span, Upload
from jqueue.adapters.storage._shared import RawListed
from jqueue.domain.durations import Duration
from jqueue.domain.errors import StorageError, StorageFatalError, shown
from jqueue.runtime.threads import in_a_network_thread

try:
    import google.auth.exceptions as auth_errors
    from google.api_core import exceptions as google_errors
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from requests import exceptions as requests_errors
    from urllib3.exceptions import LocationValueError
except ImportError as _error:
    raise ImportError('GCSStorage needs google-cloud-storage: pip install "jqueue[gcs]"') from _error

UNUSABLE = (
    LocationValueError,
    requests_errors.InvalidURL,
    requests_errors.MissingSchema,
    requests_errors.InvalidSchema,
)
"""Errors that requests raises before it sends anything."""

HINTS = {
    "401": "the credentials were refused: check GOOGLE_APPLICATION_CREDENTIALS",
    "403": "access to the bucket {place!r} was refused: to {doing}, the credentials need {permissions}",
}

PERMISSIONS = {
    "read": "storage.objects.get, and storage.objects.list to learn that an object does not exist",
    "write": "storage.objects.create, storage.objects.delete (to overwrite) and storage.objects.get",
    "delete": "storage.objects.delete",
    "list": "storage.objects.list",
}


class _AbsentError(google_errors.NotFound):
    """A 404 that is about the object, and not about its bucket."""


class GCSStorage(RemoteStorage[Any]):
    """One object in a bucket.

    Args:
        bucket_name: name of the bucket, which must exist.
        blob_name: name of the object in it.
        client: a `google.cloud.storage.Client` to use, which you must close yourself; by default, one is made here.
        project: project of the client made here, if the environment does not name one.
        endpoint_url: URL of an emulator or a private endpoint. With http, no credentials are sent.
        kms_key_name: name of the key to encrypt with.
        timeout: time that one call may take: a timedelta or seconds, 15 by default.

    Raises:
        ValueError: the name of the bucket or of the object is empty.
    """

    authority_variable = "REQUESTS_CA_BUNDLE"
    meanings: Mapping[str, ErrorMeaning] = {"absent": ErrorMeaning.MISSING}
    hints: Mapping[str, str] = HINTS
    permissions: Mapping[str, str] = PERMISSIONS

    def __init__(
        self,
        bucket_name: str,
        blob_name: str,
        client: Any = None,
        *,
        project: str | None = None,
        endpoint_url: str | None = None,
        kms_key_name: str | None = None,
        timeout: Duration = 15.0,
    ) -> None:
        if not bucket_name or not blob_name:
            raise ValueError("GCSStorage needs the name of a bucket, and of an object in it")
        self.bucket_name = bucket_name
        self.blob_name = blob_name
        self.client = client
        self.project = project
        self.endpoint_url = endpoint_url
        self.kms_key_name = kms_key_name
        super().__init__(f"gs://{bucket_name}/{blob_name}", timeout)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        try:
            client = self.client or await in_a_network_thread(self._make_client)
        except (ValueError, TypeError) as error:
            what = f"the client cannot be used as it is configured ({type(error).__name__})"
            raise StorageFatalError(f"{self.url}: {what}") from None
        self._client.endpoint = getattr(client, "api_endpoint", "")
        session = getattr(client, "_http", None)
        hooks = getattr(session, "hooks", {}).get("response")
        if isinstance(hooks, list):
            hooks.append(self._note_date)
        try:
            yield _without_side_requests(client)
        finally:
            if isinstance(hooks, list):
                hooks.remove(self._note_date)
            if client is not self.client:
                client.close()

    def _make_client(self) -> Any:
        options: dict[str, Any] = {}
        if (self.endpoint_url or "").startswith("http:") or os.environ.get("STORAGE_EMULATOR_HOST"):
            options["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
            options["project"] = self.project or "none"
        if self.endpoint_url is not None:
            options["client_options"] = {"api_endpoint": self.endpoint_url}
        return storage.Client(**({"project": self.project} | options))

    async def _ask(self, client: Any, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """Return the answer to a call about the object, tried once.

        Raises:
            _AbsentError: there is no such object.
            StorageFatalError: the bucket is missing.
        """
        try:
            return await in_a_network_thread(call, *arguments, retry=None, timeout=self.timeout, **options)
        except google_errors.NotFound as error:
            if await self._is_absent(client, error):
                failure = _AbsentError(str(error), response=error.response)  # type: ignore[no-untyped-call]
                raise failure from error
            raise

    async def _get(self, client: Any, unless: str | None, span: Span = WHOLE) -> Found | None:
        blob, (start, stop) = self._blob(client), span
        options = {"if_generation_not_match": int(unless)} if unless is not None and unless.isdecimal() else {}
        if span != WHOLE:
            options["start"] = start
        if stop is not None:
            options["end"] = stop - 1
        content = await self._ask(client, blob.download_as_bytes, raw_download=False, **options)
        if blob.generation is None or blob.crc32c is None:
            raise StorageError(f"{self.url}: the answer to the read was cut off")
        return content, str(blob.generation)

    async def _put(self, client: Any, content: bytes, if_match: str | None) -> str:
        blob = self._blob(client)
        generation = 0 if if_match is None else int(if_match) if if_match.isdecimal() else 1
        upload, kind = blob.upload_from_string, self.content_type
        await self._ask(client, upload, content, content_type=kind, if_generation_match=generation, checksum=None)
        return str(blob.generation)

    async def _begin(self, client: Any) -> str:
        begin, kind = self._blob(client).create_resumable_upload_session, self.content_type
        try:
            url: str = await self._ask(client, begin, content_type=kind, if_generation_match=0, checksum=None)
        except _AbsentError as error:  # it need not exist, so the answer is not Google's
            raise error.__cause__ or error from None
        return url

    async def _send(self, client: Any, *, upload: Upload, part: bytearray, is_last: bool) -> str:
        end = upload.size + len(part)
        span = {"Content-Range": f"bytes {upload.size}-{end - 1}/{end if is_last else '*'}"}
        answer = await in_a_network_thread(client._http.put, upload.name, data=part, headers=span, timeout=self.timeout)
        if answer.status_code >= 400:
            raise google_errors.from_http_response(answer)  # type: ignore[no-untyped-call]
        is_stored = answer.headers.get("Range") == f"bytes=0-{end - 1}"
        if answer.status_code not in ((200, 201) if is_last else (308,)) or not (is_last or is_stored):
            raise StorageError(f"{self.url}: the store kept only a part of what was sent to it")
        return ""

    async def _abandon(self, client: Any, *, upload: Upload) -> None:
        await in_a_network_thread(client._http.delete, upload.name, timeout=self.timeout)

    async def _delete(self, client: Any) -> None:
        await self._ask(client, self._blob(client).delete)

    async def _list(self, client: Any, *, begins: str, page: str | None) -> tuple[list[RawListed], str | None]:
        blobs = client.list_blobs(
            self.bucket_name,
            prefix=begins,
            page_size=self.listed_at_once,
            page_token=page,
            retry=None,
            timeout=self.timeout,
        )
        try:
            listing = await in_a_network_thread(next, blobs.pages)
        except google_errors.NotFound as error:
            if (said := _message_of(error)) is not None:
                raise self._no_bucket(error, said) from error
            raise
        if listing.raw_page.get("kind") != "storage#objects":
            raise StorageError(f"{self.url}: the answer to the list is not one of Google Cloud Storage")
        return [(blob.name, blob.time_created, blob.size) for blob in listing], blobs.next_page_token

    async def _is_absent(self, client: Any, error: google_errors.NotFound) -> bool:
        """True if a 404 is about the object, False if it is not Google's.

        Raises:
            StorageFatalError: the bucket is missing.
        """
        said = _message_of(error) or _text_of(error)
        if said == f"No such object: {self.bucket_name}/{self.blob_name}":
            return True
        if said == "The specified bucket does not exist.":
            raise self._no_bucket(error, said) from error
        entries, _ = await self._list(client, begins=self.blob_name, page=None)
        return self.blob_name not in [name for name, _, _ in entries]

    def _no_bucket(self, error: google_errors.NotFound, said: str) -> StorageFatalError:
        what = f"the bucket {self.bucket_name!r} does not exist: create it, or check the name"
        failure = StorageFatalError(f"{self.url}: {what} (404, the store says {shown(said)})")
        failure.cause = error
        return failure

    def _blob(self, client: Any) -> Any:
        """Return a fresh value for the object, since Google's value of an object remembers its last read."""
        return client.bucket(self.bucket_name).blob(self.blob_name, kms_key_name=self.kms_key_name)

    def _note_date(self, answer: Any, *_: Any, **__: Any) -> None:
        self._clock.note_date(answer.headers.get("Date"))

    def _is_out_of_date(self, error: Exception) -> bool:
        refused = isinstance(error, google_errors.Unauthorized | auth_errors.RefreshError)
        return self.client is None and refused and self._meaning(error, "read")[0] is ErrorMeaning.FATAL

    def _meaning(self, error: Exception, doing: str) -> tuple[ErrorMeaning, str]:
        name = type(error).__name__
        if isinstance(error, google_errors.GoogleAPICallError) and error.code is not None:
            return self._by_code(int(error.code), "absent" if isinstance(error, _AbsentError) else "", doing)
        if isinstance(error, auth_errors.DefaultCredentialsError):
            return ErrorMeaning.FATAL, "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS"
        cut_off = isinstance(error.__cause__, auth_errors.TransportError)
        if isinstance(error, auth_errors.RefreshError) and not error.retryable and not cut_off:
            return ErrorMeaning.FATAL, f"the credentials were refused ({name}): renew them"
        if isinstance(error, auth_errors.InvalidOperation):
            hint = "set GOOGLE_APPLICATION_CREDENTIALS"
            return ErrorMeaning.FATAL, f"the store requires credentials, and there are none: {hint}"
        if isinstance(error, UNUSABLE):
            return ErrorMeaning.FATAL, f"the client cannot be used as it is configured ({name})"
        return self._no_answer(error)


def _without_side_requests(client: Any) -> Any:
    """Return the client without its cache of buckets, which makes a request for each bucket that a call names."""
    if getattr(client, "_bucket_metadata_cache", None) is None:
        return client
    view = object.__new__(type(client))
    vars(view).update(vars(client), _bucket_metadata_cache=None)
    return view


def _text_of(error: google_errors.GoogleAPICallError) -> str:
    """Return the body of the answer that an error was made from."""
    return str(getattr(error.response, "text", "")).strip()


def _message_of(error: google_errors.GoogleAPICallError) -> str | None:
    """Return the message in a structured error of the JSON API; None if the answer is not such an error.

    Google's testbench wraps the whole error, as text, into the message of another.
    """
    text = _text_of(error)
    for _ in range(2):
        try:
            said = json.loads(text)
            inner = said.get("error", said)
            first, text = (inner.get("errors") or [{}])[0], inner.get("message", "")
            if first.get("domain") == "global":
                return str(first["message"])
        except (ValueError, TypeError, AttributeError, LookupError):
            return None
    return None
