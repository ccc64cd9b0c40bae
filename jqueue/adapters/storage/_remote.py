"""Common base of the stores across a network: one client, one try per call, a deadline for it, errors by meaning.

An adapter gets, puts, deletes and lists objects with its client, and says what the errors of the client mean. Only the
queue knows if a write may be sent again, as it looks for its commit id. A client that retries hides lost answers.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlsplit

from jqueue.adapters.storage._client import Client, SharedClient
from jqueue.adapters.storage._shared import NoQueue, RawListed, check_prefix, check_range, check_suffix, in_parts
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import (
    CASConflictError,
    JQueueError,
    ObjectMissingError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.ports.sharing import DialURL
from jqueue.ports.storage import Listed
from jqueue.runtime.system import SystemClock

Answer = TypeVar("Answer")

Found = tuple[bytes, str | None]
"""The content of an object and its etag; (b"", None) if there is none."""

ABSENT: Found = (b"", None)

PAST_END: Found = (b"", "")
"""Content and etag of a range that begins at the end of its object, or behind it."""

Span = tuple[int, int | None]
"""A range of an object: its start, and its stop, or None for the end of the object."""

WHOLE: Span = (0, None)

PART_BYTES = 5 * 1024 * 1024
"""Bytes of an object in each request of an upload: the fewest that S3 takes. Two copies of them may be in memory."""

ABANDONING = 2.0
"""Seconds for which a failed or cancelled upload delays its caller, to remove what was sent."""

UNKNOWN_HOST = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
"""Errors of a lookup that say that there is no such host."""

NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
"""Reasons of OpenSSL for an answer that is not TLS."""


ANSWERS_KEPT = 16
"""Number of answers from whose dates the store's time is estimated."""

MIN_STEP_BACK = timedelta(seconds=2)
"""Bound on the difference between two estimates of the store's time."""

_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Bounds of a valid date. A date beyond them is an error, and too close to the ends of `datetime` to calculate with."""


@dataclass
class Upload:
    """An object that is being uploaded in parts.

    Attributes:
        name: the name that the store knows the upload by.
        size: number of bytes sent so far.
        receipts: the answer to each part sent so far, as the store needs it to make the object.
    """

    name: str
    size: int = 0
    receipts: list[str] = field(default_factory=list)


class ErrorMeaning(Enum):
    """The meaning of an unsuccessful answer to the queue."""

    CONFLICT = "another writer has changed the object, or it does not exist"
    MISSING = "the object does not exist"
    UNCHANGED = "the object has not changed"
    PAST_END = "the object ends before the range"
    THROTTLED = "the store asks for fewer requests"
    TRANSIENT = "the store failed"
    FATAL = "the store refused the request"


ERRORS: dict[ErrorMeaning, type[JQueueError]] = {
    ErrorMeaning.CONFLICT: CASConflictError,
    ErrorMeaning.THROTTLED: StorageThrottledError,
    ErrorMeaning.FATAL: StorageFatalError,
}
"""The error class for a meaning. The other meanings become `StorageError`, unless a call handles them itself."""

FOUND: dict[ErrorMeaning, Found | None] = {
    ErrorMeaning.UNCHANGED: None,
    ErrorMeaning.MISSING: ABSENT,
    ErrorMeaning.PAST_END: PAST_END,
}
"""The result of a read for a meaning."""

STATUSES: dict[int, ErrorMeaning] = {
    304: ErrorMeaning.UNCHANGED,
    404: ErrorMeaning.TRANSIENT,  # without the store's own code, a proxy answers, and no queue must be taken for empty
    408: ErrorMeaning.TRANSIENT,
    409: ErrorMeaning.CONFLICT,
    412: ErrorMeaning.CONFLICT,
    416: ErrorMeaning.PAST_END,
    429: ErrorMeaning.THROTTLED,
    503: ErrorMeaning.THROTTLED,
}
"""Meanings of HTTP statuses. Of the others, 300 to 499 are fatal, and the rest are transient."""


class RemoteStorage(NoQueue, ABC, Generic[Client]):
    """One object in a store across a network, with the methods of `jqueue.ports.storage`.

    Args:
        url: name of the object in errors, without secrets.
        timeout: time that one call may take, whatever the client does meanwhile.

    Attributes:
        listed_at_once: largest number of objects in one answer of the store to `list_beside`.
        content_type: the content type to write with.
        dial_url: makes connections to brokers whose URL stands in the queue; None: they are not used.
        name_field: the attribute that holds the object's name in its bucket.
        authority_variable: the environment variable that names a file of certificates for the client.
        meanings: meanings of the store's error codes. For other codes, the HTTP status decides.
        statuses: meanings of HTTP statuses.
        hints: texts for the store's error codes and for HTTP statuses.
        permissions: what the credentials need for a call.
        malformed: the client's errors for an answer that is not one of this kind of store.
    """

    name_field = "blob_name"
    authority_variable = "SSL_CERT_FILE"
    meanings: Mapping[str, ErrorMeaning] = {}
    statuses: Mapping[int, ErrorMeaning] = STATUSES
    hints: Mapping[str, str] = {}
    permissions: Mapping[str, str] = {}
    malformed: tuple[type[Exception], ...] = (KeyError, json.JSONDecodeError, http.client.BadStatusLine)
    listed_at_once = 1000
    content_type = "application/json"
    dial_url: DialURL | None = None

    def __init__(self, url: str, timeout: Duration) -> None:
        self.url = url
        self.timeout: float = to_seconds("timeout", timeout)
        self._client = SharedClient(self._open)
        self._clock = StoreClock()

    @property
    def name(self) -> str:
        """The name of the object, as users know it."""
        return self.url

    # Methods that a queue calls

    async def read(self) -> Found:
        """Return (content, etag), or (b"", None) when there is no such object.

        Raises:
            StorageError: the store failed; the subclass says how.
        """
        return await self._call("read", lambda client: self._look(client, None)) or ABSENT

    async def read_if_changed(self, etag: str) -> Found | None:
        """Return None while the object's etag is still `etag`, and otherwise the same as `read`.

        Raises:
            StorageError: the store failed; the subclass says how.
        """
        snapshot = await self._call("read", lambda client: self._look(client, etag))
        return None if snapshot is None or snapshot[1] == etag else snapshot

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write the object if its etag is still `if_match`, and return its new etag.

        Args:
            content: the whole new content.
            if_match: the etag that the object must have now; None means that the object must not exist yet.

        Raises:
            CASConflictError: the condition did not hold. Or it held, and a second try of the client itself found the
                write of the first.
            StorageError: the store failed; the subclass says how. The write may have landed, or may land later.
        """
        if if_match == "":
            raise CASConflictError(f"{self.url}: an empty etag matches nothing")  # some stores treat it as no condition
        return await self._call("write", lambda client: self._put(client, content, if_match))

    def store_time(self) -> datetime | None:
        """Return the store's time, UTC, estimated from the dates of its answers; None before the first answer."""
        return self._clock.now()

    async def release(self) -> None:
        """Close the client once the calls under way have ended. The next call opens another."""
        await self._client.release()

    # Methods that users and tools call

    async def aclose(self) -> None:
        """Do the same as `release`."""
        await self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def remove(self) -> None:
        """Delete the object, whatever its content. It need not exist. Never called by a queue.

        Raises:
            StorageError: the store failed; the subclass says how.
        """
        with suppress(ObjectMissingError):
            await self._call("delete", self._delete)

    def beside(self, suffix: str) -> Self:
        """Return the object of the same store whose name is this object's with the suffix. It shares the client."""
        return self._named(self._name + suffix)

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the objects whose name is this object's plus a suffix that begins with `prefix`.

        One request lists a thousand objects, and each request has the whole timeout. Never called by a queue.

        Raises:
            ValueError: the prefix is empty.
            StorageError: the store failed; the subclass says how.
        """
        check_prefix(prefix)
        objects = await self._all(self._name + prefix)
        return [Listed(name.removeprefix(self._name), *about) for name, about in objects.items()]

    async def list_bucket(self, prefix: str) -> dict[str, Self]:
        """Return the objects of the whole bucket whose names begin with `prefix`, by name. They share the client.

        Raises:
            StorageError: the store failed; the subclass says how.
        """
        return {name: self._named(name) for name in await self._all(prefix)}

    def _named(self, name: str) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        setattr(other, self.name_field, name)
        other.url = self.url.removesuffix(self._name) + name
        return other

    async def _all(self, begins: str) -> dict[str, tuple[datetime, int]]:
        """Return the objects of the bucket whose names begin with this, in order, each with its time and its size."""
        objects: dict[str, tuple[datetime, int]] = {}
        page: str | None = None
        while True:
            entries, following = await self._call("list", partial(self._list, begins=begins, page=page))
            for name, modified, size in entries:
                if name.startswith(begins):  # a store may ignore the prefix, and a tool may remove what is listed
                    objects[name] = modified.astimezone(UTC), size
            if following is None:
                return dict(sorted(objects.items()))
            if following == page:
                raise StorageError(f"{self.url}: the store returns the same page of its list again and again")
            page = following

    # Methods for the objects beside the queue's

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object in one request, as in `SupportsObjects`.

        Raises:
            CASConflictError: the object exists.
            StorageError: the store failed; the subclass says how. The object may exist, or may appear later.
            ValueError: the suffix is not one of an object.
        """
        other = self._object(suffix)
        await other._call("write", lambda client: other._put(client, content, None))

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object from pieces, as in `SupportsObjects`.

        It takes a request for each 5 MiB, and each request has the whole timeout.

        Raises:
            CASConflictError: the object exists.
            StorageError: the store failed; the subclass says how. The object may exist, or may appear later.
            ValueError: the suffix is not one of an object.
        """
        other = self._object(suffix)
        upload: Upload | None = None
        try:
            async with aclosing(in_parts(pieces, PART_BYTES)) as parts:
                async for part, is_last in parts:
                    if upload is None and is_last:
                        await self.create_object(suffix, bytes(part))
                        return len(part)
                    if upload is None:
                        upload = Upload(await other._call("write", other._begin))
                    sending = partial(other._send, upload=upload, part=part, is_last=is_last)
                    upload.receipts.append(await other._call("write", sending))
                    upload.size += len(part)
            assert upload is not None
            await other._call("write", partial(other._finish, upload=upload))
        except BaseException:
            if upload is not None:
                with suppress(Exception):  # the caller gets the first error
                    async with asyncio.timeout(ABANDONING):
                        await other._call("write", partial(other._abandon, upload=upload))
            raise
        return upload.size

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a range of an object, as in `SupportsObjects`. It is one request, which must end within the timeout.

        Raises:
            ObjectMissingError: the object does not exist.
            StorageError: the store failed; the subclass says how.
            ValueError: the suffix is not one of an object, or the range is none.
        """
        other = self._object(suffix)
        check_range(start, stop)
        if start == stop:
            return b""
        snapshot = await other._call("read", lambda client: other._look(client, None, (start, stop)))
        if snapshot is None or snapshot[1] is None:
            raise ObjectMissingError(other.url)
        return snapshot[0]

    async def remove_object(self, suffix: str) -> None:
        """Delete an object, which need not exist.

        Raises:
            StorageError: the store failed; the subclass says how.
            ValueError: the suffix is not one of an object.
        """
        await self._object(suffix).remove()

    def _object(self, suffix: str) -> Self:
        check_suffix(suffix)
        other = self.beside(suffix)
        other.content_type = "application/octet-stream"
        return other

    # Methods of an adapter

    @property
    def _name(self) -> str:
        """The name of the object in its bucket."""
        return str(getattr(self, self.name_field))

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[Client]:
        """Open a client."""

    @abstractmethod
    async def _get(self, client: Client, unless: str | None, span: Span = WHOLE) -> Found | None:
        """Return the object or a range of it, or None if it still has the etag `unless`."""

    @abstractmethod
    async def _put(self, client: Client, content: bytes, if_match: str | None) -> str:
        """Write the object if its etag is `if_match`; None: if there is no object. Return the new etag."""

    @abstractmethod
    async def _begin(self, client: Client) -> str:
        """Begin to upload the object in parts, and return the name of the upload."""

    @abstractmethod
    async def _send(self, client: Client, *, upload: Upload, part: bytearray, is_last: bool) -> str:
        """Send one part, and return its receipt. All parts but the last have `PART_BYTES` bytes."""

    async def _finish(self, client: Client, *, upload: Upload) -> None:
        """Make the object of its parts, if there is none. By default, the last part has made it."""

    async def _abandon(self, client: Client, *, upload: Upload) -> None:
        """Remove the parts of an upload that will not be finished. By default, the store does that after a while."""

    @abstractmethod
    async def _delete(self, client: Client) -> None:
        """Delete the object."""

    @abstractmethod
    async def _list(self, client: Client, *, begins: str, page: str | None) -> tuple[list[RawListed], str | None]:
        """Return a page of the objects whose names begin with `begins`, and the next page.

        None is the first page as an argument, and means in the result that there are no more pages.
        """

    def _is_out_of_date(self, error: Exception) -> bool:
        """Return True if the credentials were refused, and another client would read them anew."""
        return False

    @abstractmethod
    def _meaning(self, error: Exception, doing: str) -> tuple[ErrorMeaning, str]:
        """Return the meaning of a client's error for a call (read, write, delete or list), and a text with a hint."""

    async def _call(self, doing: str, work: Callable[[Client], Awaitable[Answer]]) -> Answer:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._client.call(work, self._is_out_of_date)
        except JQueueError:
            raise
        except TimeoutError as error:
            what = f"no answer within {self.timeout:g} s to the {doing} at {self._host()}"
            raise StorageError(f"{self.url}: {what}") from error
        except Exception as error:
            meaning, what = self._meaning(error, doing)
            if meaning is ErrorMeaning.MISSING and doing == "delete":
                raise ObjectMissingError(self.url) from error
            failure = ERRORS.get(meaning, StorageError)(f"{self.url}: {what}")
            if isinstance(failure, StorageError):
                failure.cause = error  # not in the text, which is in our own words
            raise failure from error

    async def _look(self, client: Client, unless: str | None, span: Span = WHOLE) -> Found | None:
        try:
            return await self._get(client, unless, span)
        except Exception as error:
            meaning, _ = self._meaning(error, "read")
            if meaning not in FOUND:
                raise
            return FOUND[meaning]

    def _by_code(self, status: int | None, code: str, doing: str) -> tuple[ErrorMeaning, str]:
        """Return the meaning of an unsuccessful answer, and a text with a hint, its status and its code."""
        by_status = ErrorMeaning.FATAL if 300 <= (status or 0) < 500 else ErrorMeaning.TRANSIENT
        meaning = self.meanings.get(code) or self.statuses.get(status or 0, by_status)
        if meaning is ErrorMeaning.MISSING and doing == "write":
            meaning = ErrorMeaning.CONFLICT  # the answer of S3 and Azure to an If-Match if there is no object
        hint = self.hints.get(code) or self.hints.get(str(status)) or meaning.value
        what = hint.format(place=self.url.split("/")[2], doing=doing, permissions=self.permissions[doing])
        numbers = " ".join(dict.fromkeys(str(part) for part in (status, code) if part))
        return meaning, f"{what} ({numbers})" if numbers else what

    def _no_answer(self, error: Exception) -> tuple[ErrorMeaning, str]:
        """Return the meaning of an error that came instead of an answer, and a text with the host, reason and hint.

        Until a call has succeeded, it is fatal if the host is not known or is no store: the endpoint is wrong then.
        """
        chain = _causes(error)
        host = next(filter(None, map(_host_in, chain)), self._host())
        at_first = ErrorMeaning.TRANSIENT if self._client.served else ErrorMeaning.FATAL
        for cause in chain:
            if isinstance(cause, ssl.SSLCertVerificationError):
                reason = next((each.verify_message for each in chain if hasattr(each, "verify_message")), "invalid")
                hint = f"check the endpoint, or name the file of its authority in {self.authority_variable}"
                return ErrorMeaning.FATAL, f"the certificate of {host} was not accepted ({reason.rstrip('.')}): {hint}"
            if isinstance(cause, ssl.SSLError) and getattr(cause, "reason", None) in NOT_TLS:  # aiohttp's has none
                hint = "check if the endpoint begins with http:// or https://"
                return at_first, f"{host} does not speak TLS ({cause.reason}): {hint}"
            if isinstance(cause, socket.gaierror) and cause.errno in UNKNOWN_HOST:
                return at_first, f"the host {host} is not known: check the endpoint, and the DNS of this machine"
            if isinstance(cause, self.malformed) and not isinstance(cause, ConnectionError):
                hint = f"({type(cause).__name__}): check the endpoint, and look for a proxy that changes answers"
                return at_first, f"the answer of {host} is not one of this kind of store {hint}"
        numbers = [each.errno for each in chain if isinstance(each, OSError) and each.errno and each.errno > 0]
        reason = type(error).__name__ + (f": {os.strerror(numbers[-1])}" if numbers else "")
        return ErrorMeaning.TRANSIENT, f"{host} did not answer ({reason})"

    def _host(self) -> str:
        """Return the host of the store, and its port if it is an unusual one."""
        return _host_of(self._client.endpoint) or "the store"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the client and the clock: a copy in another process makes its own."""
        return {name: value for name, value in vars(self).items() if name not in ("_client", "_clock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._client, self._clock = SharedClient(self._open), StoreClock()


class StoreClock:
    """Estimates the store's current time. Dates may be noted in any thread.

    The date of an answer is cut to a whole second, and the answer took some time to arrive. So each estimate is a
    little too early, and the latest of several is the best. Only the last `ANSWERS_KEPT` are used, so that a clock that
    was set back is believed after a while. The time returned never goes back by less than `MIN_STEP_BACK`.
    """

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._epochs: tuple[datetime, ...] = ()
        self._last_returned: datetime | None = None

    def note_date(self, date: str | None) -> None:
        """Take note of an answer's date. None and invalid dates are ignored."""
        try:
            moment = parsedate_to_datetime(date or "")
        except (ValueError, OverflowError):
            return
        if moment.utcoffset() is not None and _EARLIEST < moment < _LATEST:
            epoch = moment.astimezone(UTC) - timedelta(seconds=self._clock.monotonic())
            self._epochs = (*self._epochs, epoch)[-ANSWERS_KEPT:]

    def now(self) -> datetime | None:
        """Return the store's time, UTC; None before the first answer."""
        epochs = self._epochs
        if not epochs:
            return None
        now = max(epochs) + timedelta(seconds=self._clock.monotonic())
        if self._last_returned is not None and timedelta() < self._last_returned - now < MIN_STEP_BACK:
            return self._last_returned
        self._last_returned = now
        return now


def _causes(error: BaseException | None) -> list[BaseException]:
    """Return an error, and the errors behind it."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _host_in(error: BaseException) -> str:
    """Return the host, and the port if it is known, that an error of botocore, aiohttp or requests names; or ""."""
    url = getattr(getattr(error, "request", None), "url", None) or getattr(error, "kwargs", {}).get("endpoint_url")
    host, port = getattr(error, "host", None), getattr(error, "port", None)
    return f"{host}:{port}" if isinstance(host, str) and port else _host_of(url)


def _host_of(url: object) -> str:
    """Return the host and port of a URL, which may hold secrets in its other parts."""
    return urlsplit(url).netloc.rpartition("@")[2] if isinstance(url, str) else ""
