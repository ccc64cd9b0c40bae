"""The one place that turns a URL into a storage, or a queue on it.

    storage = connect("s3://bucket/queue.json?endpoint_url=http://127.0.0.1:9000")
    queue = connect("queue.json", BrokerQueue)

No text of an error, log or repr has the secrets of a URL in it, nor anything else that its user gave there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakValueDictionary

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import InvalidURLError, shown
from jqueue.ports.storage import ObjectStoragePort

Queue = TypeVar("Queue")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_ALIASES = {"gcs": "gs", "gcs+https": "gs", "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

EXAMPLES = {
    "s3": "s3://bucket/queue.json",
    "gs": "gs://bucket/queue.json",
    "az": "az://container/queue.json",
    "file": "file:///var/lib/app/queue.json",
    "memory": "memory://",
}


@dataclass(frozen=True)
class _Address:
    """A URL taken apart.

    Attributes:
        scheme: which store.
        user, secret: what stands before the @.
        place: the bucket or container.
        name: the object in it.
        options: what stands behind the question mark.
    """

    scheme: str
    place: str
    name: str
    options: Mapping[str, str] = field(repr=False)
    user: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)

    def take(self, **known: Callable[[str], Any]) -> dict[str, Any]:
        """The options, converted.

        Args:
            known: the options that there are, and what turns the text of each into its value.

        Raises:
            InvalidURLError: it has another one, or one whose value cannot be converted.
        """
        taken = {}
        for option, text in self.options.items():
            if option not in known:
                listed = ", ".join(known) or "none"
                raise _wrong(self.scheme, f"has an unknown option {shown(option)} (there are: {listed})")
            try:
                taken[option] = known[option](text)
            except ValueError:
                raise _wrong(self.scheme, f"has a wrong value for {option}") from None
        return taken


@overload
def connect(url: str | os.PathLike[str]) -> ObjectStoragePort: ...
@overload
def connect(url: str | os.PathLike[str], kind: Callable[..., Queue], **settings: Any) -> Queue: ...


def connect(url: str | os.PathLike[str], kind: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """A storage for a URL, or a queue on it. Nothing is sent before it is used.

    Args:
        url: `s3://bucket/key`, `gs://bucket/object`, `az://container/blob`, `file:///path`, a bare path, or
            `memory://`; options of the storage may follow as `?name=value&name=value`.
        kind: the class of the queue, for example `BrokerQueue`; None for the storage itself.
        settings: settings of the queue.

    Raises:
        InvalidURLError: the URL is wrong. The message shows a right one.
        ImportError: the extra for that store is not installed. The message says which.
    """
    storage = _storage(url)
    if kind is not None:
        return kind(storage, **settings)
    if settings:
        raise TypeError(f"connect() takes {', '.join(settings)} only with the class of a queue: connect(url, kind)")
    return storage


def _storage(url: str | os.PathLike[str]) -> ObjectStoragePort:
    if not isinstance(url, str):
        return LocalFileSystemStorage(url)
    found = _SCHEME.match(url)
    if found is None:
        if not url.strip():
            raise InvalidURLError(f"the URL of a queue is empty: it looks like {EXAMPLES['s3']}, or like a path")
        return LocalFileSystemStorage(url)
    scheme = found[1].lower()
    if scheme not in _BUILDERS:
        right = EXAMPLES.get(_ALIASES.get(scheme, ""))
        known = "there are " + ", ".join(EXAMPLES.values()) + ", or a path"
        raise InvalidURLError(f"no store is called {shown(scheme)}: " + (f"try {right}" if right else known))
    if found[2] is None:
        raise _wrong(scheme, "has no // behind its scheme")
    return _BUILDERS[scheme](_take_apart(scheme, url))


def _take_apart(scheme: str, url: str) -> _Address:
    try:
        parts = urlsplit(url, allow_fragments=False)
        user, secret, port = parts.username, parts.password, parts.port
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _wrong(scheme, "cannot be read") from None
    if len(dict(options)) != len(options):
        raise _wrong(scheme, "has an option twice")
    if port is not None:
        raise _wrong(scheme, "names a port, where the bucket should be: an endpoint goes into ?endpoint_url=")
    place = parts.netloc.rpartition("@")[2]
    return _Address(
        scheme,
        place,
        unquote(parts.path.removeprefix("/")),
        dict(options),
        None if user is None else unquote(user),
        None if secret is None else unquote(secret),
    )


def _check_object(address: _Address, what: str) -> None:
    """An object in a bucket: both are named."""
    if not address.place:
        raise _wrong(address.scheme, f"names no {what}")
    if not _NAME.fullmatch(address.place):
        raise _wrong(address.scheme, f"has a name that no {what} can have")
    if not address.name or address.name.endswith("/"):
        raise _wrong(address.scheme, f"names a {what}, but no object in it")


def _wrong(scheme: str, what: str) -> InvalidURLError:
    return InvalidURLError(f"the {scheme}:// URL {what}: it should look like {EXAMPLES[scheme]}")


def _endpoint(text: str) -> str:
    """The URL of an endpoint, which may hold no secrets: it is shown in errors."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("not an endpoint")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError("not a duration")
    return seconds


def _s3(address: _Address) -> ObjectStoragePort:
    _check_object(address, "bucket")
    options = address.take(
        endpoint_url=_endpoint,
        region_name=str,
        profile_name=str,
        addressing_style=str,
        server_side_encryption=str,
        sse_kms_key_id=str,
        storage_class=str,
        timeout=_seconds,
    )
    from jqueue.adapters.storage.s3 import S3Storage, open_session

    profile = options.pop("profile_name", None)
    session = None
    if profile is not None or address.user is not None:
        session = open_session(profile, address.user, address.secret)
    return S3Storage(address.place, address.name, session, **options)


def _gs(address: _Address) -> ObjectStoragePort:
    _check_object(address, "bucket")
    _check_nobody(address)
    options = address.take(endpoint_url=_endpoint, project=str, kms_key_name=str, timeout=_seconds)
    from jqueue.adapters.storage.gcs import GCSStorage

    return GCSStorage(address.place, address.name, **options)


def _az(address: _Address) -> ObjectStoragePort:
    _check_object(address, "container")
    options = address.take(
        account_url=_endpoint,
        account_key=str,
        sas_token=str,
        encryption_scope=str,
        standard_blob_tier=str,
        timeout=_seconds,
    )
    from jqueue.adapters.storage.azure import AzureBlobStorage

    if address.user is not None:
        options.setdefault("account_url", f"https://{address.user}.blob.core.windows.net")
    key, token = options.pop("account_key", address.secret), options.pop("sas_token", None)
    if key or token:
        options["credential"] = key or token
    try:
        return AzureBlobStorage(address.place, address.name, **options)
    except ValueError as error:
        raise InvalidURLError(str(error)) from None


def _file(address: _Address) -> ObjectStoragePort:
    if address.place not in ("", "localhost"):
        raise _wrong("file", "has two slashes where three belong: its path begins with the third")
    if not address.name or address.name.endswith("/"):
        raise _wrong("file", "names no file")
    return LocalFileSystemStorage(f"/{address.name}", **address.take(lock_timeout=_seconds))


_in_memory: WeakValueDictionary[str, InMemoryStorage] = WeakValueDictionary()


def _memory(address: _Address) -> ObjectStoragePort:
    address.take()
    name = f"{address.place}/{address.name}"
    if name == "/":
        return InMemoryStorage()
    return _in_memory.setdefault(name, InMemoryStorage())


def _check_nobody(address: _Address) -> None:
    if address.user is not None:
        raise _wrong(address.scheme, "names a user, which this store does not take from a URL")


_BUILDERS: dict[str, Callable[[_Address], ObjectStoragePort]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
}
