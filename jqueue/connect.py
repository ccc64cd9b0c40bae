"""The one place that turns a URL into a storage, or a queue on it.

    storage = connect("s3://bucket/queue.json?endpoint_url=http://127.0.0.1:9000")
    queue = connect("queue.json", BrokerQueue)

No text of an error, log or repr has the secrets of a URL in it, nor anything else that its user gave there.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, overload
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.durations import LONGEST
from jqueue.domain.errors import InvalidURLError
from jqueue.ports.storage import ObjectStoragePort

Queue = TypeVar("Queue")
Given = TypeVar("Given")
Value = TypeVar("Value")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?")
_ALIASES = {
    "s3a": "s3", "s3n": "s3",
    "gcs": "gs", "gcs+https": "gs",
    "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az",
    "mem": "memory",
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_REGION = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")

EXAMPLES = {
    "s3": "s3://bucket/queue.json",
    "gs": "gs://bucket/queue.json",
    "az": "az://account@container/queue.json",
    "file": "file:///var/lib/app/queue.json",
    "memory": "memory://",
}


@dataclass(frozen=True)
class _Kind:
    """What an option takes, in words, and how its text becomes its value."""

    words: str
    convert: Callable[[str], Any]


@dataclass(frozen=True, repr=False)
class _Address:
    """A URL taken apart.

    Attributes:
        scheme: which store.
        user, secret: what stands before the @.
        place: the bucket or container.
        name: the object in it; bytes that are not UTF-8 are surrogates, as in the names of files.
        options: what stands behind the question mark.
    """

    scheme: str
    place: str
    name: str
    options: Mapping[str, str]
    user: str | None = None
    secret: str | None = None

    def take(self, **known: _Kind) -> dict[str, Any]:
        """The options, converted.

        Args:
            known: the options that there are.

        Raises:
            InvalidURLError: it has another one, or one whose value cannot be converted.
        """
        taken = {}
        for option, text in self.options.items():
            if option not in known:
                known_ones = ", ".join(known) or "no options"
                raise _wrong(
                    self.scheme, f"has an unknown option (there are {known_ones}; & in a value is written %26)"
                )
            taken[option] = _or_none(known[option].convert, text)
            if taken[option] is None:
                raise _wrong(self.scheme, f"has a wrong value for {option}, which takes {known[option].words}")
        return taken


@overload
def connect(url: str | os.PathLike[str]) -> ObjectStoragePort: ...
@overload
def connect(url: str | os.PathLike[str], kind: Callable[..., Queue], **settings: Any) -> Queue: ...


def connect(url: str | os.PathLike[str], kind: Callable[..., Any] | None = None, **settings: Any) -> Any:
    """A storage for a URL, or a queue on it. Nothing is sent before it is used.

    Args:
        url: `s3://bucket/key`, `gs://bucket/object`, `az://account@container/blob`, `file:///path` or `memory://`, with
            options of the storage behind it as `?name=value&name=value`; or a bare path, which is taken as it is.
        kind: the class of the queue, for example `BrokerQueue`; None for the storage itself.
        settings: settings of the queue.

    Raises:
        InvalidURLError: the URL is wrong. The message shows a right one.
        ImportError: the extra for that store is not installed. The message says which.
        TypeError: there are settings, but no class of a queue; or the URL is neither text nor a path.
    """
    storage = _storage(url)
    if kind is not None:
        return kind(storage, **settings)
    if settings:
        raise TypeError(f"connect() takes {', '.join(settings)} only with the class of a queue: connect(url, kind)")
    return storage


def _storage(url: str | os.PathLike[str]) -> ObjectStoragePort:
    found = _SCHEME.match(url) if isinstance(url, str) else None
    if found is None:
        return _bare_path(url)
    scheme = found[1].lower()
    if scheme in _ALIASES:
        raise InvalidURLError(f"no store is called {scheme}: try {EXAMPLES[_ALIASES[scheme]]}")
    if scheme not in _BUILDERS:
        known = ", ".join(EXAMPLES.values())
        raise InvalidURLError(
            f"no store has the scheme of this URL: there are {known}, or a path, as ./a:b with colons"
        )
    if found[2] is None:
        raise _wrong(scheme, "has no // behind its scheme")
    return _BUILDERS[scheme](_take_apart(scheme, found.string, found.end()))


def _bare_path(path: str | os.PathLike[str]) -> ObjectStoragePort:
    """A storage for a path, which is taken as it is."""
    if isinstance(path, str) and not path.strip():
        raise InvalidURLError(f"the URL of a queue is empty: it should look like {EXAMPLES['s3']}, or be a path")
    if isinstance(path, str) and "://" in path:
        raise InvalidURLError(f"there is something before the scheme of the URL: it should look like {EXAMPLES['s3']}")
    storage = _in_a_file(path)
    if storage is None:
        raise InvalidURLError(f"the path names no file: it should look like queue.json, or like {EXAMPLES['s3']}")
    return storage


def _in_a_file(path: str | os.PathLike[str], **options: Any) -> ObjectStoragePort | None:
    """A storage for a path; None if it cannot be one of a file."""
    if str(path).endswith(("/", os.sep)) or _or_none(os.fsencode, path) is None:
        return None
    return _or_none(partial(LocalFileSystemStorage, **options), path)


def _take_apart(scheme: str, url: str, begin: int) -> _Address:
    """What stands behind the scheme.

    Not by `urlsplit`: its errors show what they are about, it deletes line breaks, and it knows hosts and ports.
    """
    if not url.isprintable() or url != url.strip():
        raise _wrong(scheme, "has a line break, or something else that has to be escaped with %")
    path, _, query = url[begin:].partition("?")
    authority, _, name = path.partition("/")
    login, at, place = authority.rpartition("@")
    user, colon, secret = (_unescaped(scheme, part) for part in login.partition(":"))
    if at and (not user or (colon and not secret)):
        raise _wrong(scheme, "leaves out something before its @")
    return _Address(
        scheme,
        place,
        unquote(name, errors="surrogateescape"),
        _options(scheme, query),
        user if at else None,
        secret if colon else None,
    )


def _options(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for field in query.split("&") if query else ():
        option, _, text = field.partition("=")
        if not text:
            raise _wrong(scheme, "has an option without a value (they are name=value&name=value; a ? in a key is %3F)")
        if option in options:
            raise _wrong(scheme, "has an option twice")
        options[option] = _unescaped(scheme, text)
    return options


def _unescaped(scheme: str, text: str) -> str:
    """The text that was escaped with %. A plus is itself: the keys of Azure have many."""
    plain = _or_none(partial(unquote, errors="strict"), text)
    if plain is None:
        raise _wrong(scheme, "has escaped bytes that are not UTF-8")
    return plain


def _check_object(address: _Address, what: str) -> None:
    """An object in a bucket: both are named."""
    if not address.place:
        raise _wrong(address.scheme, f"names no {what}")
    if ":" in address.place:
        right = "an endpoint goes into an option, and / ? # in a key are written %2F %3F %23"
        raise _wrong(address.scheme, f"has a colon where only the {what} belongs ({right})")
    if not _NAME.fullmatch(address.place):
        raise _wrong(address.scheme, f"has a name that no {what} can have")
    if not address.name or address.name.endswith("/"):
        raise _wrong(address.scheme, f"names a {what}, but no object in it")
    if _or_none(str.encode, address.name) is None:
        raise _wrong(address.scheme, "names an object by bytes that are not UTF-8")


def _check_nobody(address: _Address) -> None:
    if address.user is not None:
        raise _wrong(address.scheme, "names a user, which this store does not take from a URL")


def _wrong(scheme: str, what: str) -> InvalidURLError:
    return InvalidURLError(f"the {scheme}:// URL {what}: it should look like {EXAMPLES[scheme]}")


def _or_none(convert: Callable[[Given], Value], given: Given, wrong: type[Exception] = ValueError) -> Value | None:
    """What the function returns; None if it finds the argument wrong.

    It is called here, so that our error is not raised within its error, which may show the argument.
    """
    try:
        return convert(given)
    except wrong:
        return None


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("not for a header")
    return text


def _region(text: str) -> str:
    if not _REGION.fullmatch(text):
        raise ValueError("not a region")
    return text


def _addressing_style(text: str) -> str:
    if text not in ("auto", "path", "virtual"):
        raise ValueError("not a style")
    return text


def _endpoint(text: str) -> str:
    """The URL of an endpoint, which may hold no secrets: the errors of the clients show it."""
    parts = urlsplit(text)
    plain = text.isprintable() and not any(sign in text for sign in " @?#")
    host = plain and _HOST.fullmatch(parts.hostname or "") and parts.port != 0
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("not an endpoint")
    return text


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= LONGEST:
        raise ValueError("not a duration")
    return seconds


_TEXT = _Kind("printable text", _printable)
_ENDPOINT = _Kind("the URL of an http or https server, without user, ? and #", _endpoint)
_DURATION = _Kind("a number of seconds above 0", _seconds)


def _s3(address: _Address) -> ObjectStoragePort:
    _check_object(address, "bucket")
    options = address.take(
        endpoint_url=_ENDPOINT,
        region_name=_Kind("the name of a region", _region),
        profile_name=_TEXT,
        addressing_style=_Kind("path, virtual or auto", _addressing_style),
        server_side_encryption=_TEXT,
        sse_kms_key_id=_TEXT,
        storage_class=_TEXT,
        timeout=_DURATION,
    )
    profile = options.get("profile_name")
    if (address.user is None) != (address.secret is None):
        raise _wrong("s3", "has half of a key before its @, where s3://key_id:secret@bucket has both")
    if profile and address.user:
        raise _wrong("s3", "has both a key and a profile_name")
    from jqueue.adapters.storage.s3 import BotoCoreError, S3Storage

    keys: dict[str, Any] = {"access_key_id": address.user, "secret_access_key": address.secret}
    storage = S3Storage(address.place, address.name, **keys, **options)
    if profile and _or_none(lambda _: storage.open_session(), profile, BotoCoreError) is None:
        raise _wrong("s3", "names a profile that is not in the AWS configuration, or that cannot be read there")
    return storage


def _gs(address: _Address) -> ObjectStoragePort:
    _check_object(address, "bucket")
    _check_nobody(address)
    options = address.take(endpoint_url=_ENDPOINT, project=_TEXT, kms_key_name=_TEXT, timeout=_DURATION)
    from jqueue.adapters.storage.gcs import GCSStorage

    return GCSStorage(address.place, address.name, **options)


def _az(address: _Address) -> ObjectStoragePort:
    _check_object(address, "container")
    options = address.take(
        account_url=_ENDPOINT,
        account_key=_TEXT,
        sas_token=_TEXT,
        encryption_scope=_TEXT,
        standard_blob_tier=_TEXT,
        timeout=_DURATION,
    )
    secrets = [address.secret, options.pop("account_key", None), options.pop("sas_token", None)]
    credentials = [secret for secret in secrets if secret is not None]
    if address.user is not None:
        if not _ACCOUNT.fullmatch(address.user):
            raise _wrong("az", "has a name before its @ that no account can have")
        options.setdefault("account_url", f"https://{address.user}.blob.core.windows.net")
    if credentials:
        if len(credentials) > 1:
            raise _wrong("az", "has more than one key or token")
        if "account_url" not in options:
            raise _wrong("az", "has a key or token, but names no account for it")
        options["credential"] = credentials[0]
    from jqueue.adapters.storage.azure import AzureBlobStorage

    storage = _or_none(partial(AzureBlobStorage, address.place, **options), address.name)
    if storage is None:
        raise _wrong("az", "names no account, and AZURE_STORAGE_CONNECTION_STRING is not set")
    return storage


def _file(address: _Address) -> ObjectStoragePort:
    _check_nobody(address)
    if address.place not in ("", "localhost"):
        raise _wrong("file", "has two slashes where three belong: its path begins with the third")
    storage = _in_a_file(f"/{address.name}", **address.take(lock_timeout=_DURATION))
    if storage is None:
        raise _wrong("file", "names no file")
    return storage


_in_memory: WeakValueDictionary[str, InMemoryStorage] = WeakValueDictionary()
_naming = threading.Lock()


def _memory(address: _Address) -> ObjectStoragePort:
    _check_nobody(address)
    address.take()
    name = f"{address.place}/{address.name}"
    if name == "/":
        return InMemoryStorage()
    with _naming:
        return _in_memory.setdefault(name, InMemoryStorage())


_BUILDERS: dict[str, Callable[[_Address], ObjectStoragePort]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
}
