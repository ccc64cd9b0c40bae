"""The storage for a URL, whose parts become the arguments of an adapter; or the store of an older queue."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from jqueue.connect.parsed_url import (
    BOOLEAN,
    COUNT,
    DURATION,
    ENDPOINT,
    EXAMPLES,
    TEXT,
    OptionType,
    ParsedURL,
    check_folder,
    matching,
    or_none,
    url_error,
)
from jqueue.domain.errors import InvalidURLError
from jqueue.domain.printable import printable

if TYPE_CHECKING:
    from jqueue.adapters.storage._remote import RemoteStorage
    from jqueue.adapters.storage.memory import InMemoryStorage
    from jqueue.formats.port import JobStorePort
    from jqueue.ports.storage import ObjectStoragePort

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


def bare_path(path: str | os.PathLike[str], *, create: bool) -> ObjectStoragePort:
    """Return the storage for a path, which is used as it is. With `create`, its folder may be missing."""
    if isinstance(path, str) and not path.strip():
        raise InvalidURLError(f"the URL of a queue is empty: it should look like {EXAMPLES['s3']}, or be a path")
    if isinstance(path, str) and "://" in path:
        raise InvalidURLError(f"the URL does not begin with its scheme: it should look like {EXAMPLES['s3']}")
    storage = _in_a_file(path)
    if storage is None:
        raise InvalidURLError(f"the path names no file: it should look like queue.json, or like {EXAMPLES['s3']}")
    check_folder(path, create=create)
    return storage


def _in_a_file(path: str | os.PathLike[str], **options: Any) -> ObjectStoragePort | None:
    """Return the storage for a path, or None if it cannot be the path of a file."""
    if str(path).endswith(("/", os.sep)) or or_none(os.fsencode, path) is None:
        return None
    from jqueue.adapters.storage.filesystem import LocalFileSystemStorage

    return or_none(partial(LocalFileSystemStorage, **options), path)


def _s3(url: ParsedURL) -> ObjectStoragePort:
    url.check_object("bucket")
    options = url.option_values(
        endpoint_url=ENDPOINT,
        region_name=matching("the name of a region", "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"),
        profile_name=TEXT,
        addressing_style=matching("path, virtual or auto", "path|virtual|auto"),
        etag_style=matching("quoted or unquoted", "quoted|unquoted"),
        server_side_encryption=TEXT,
        sse_kms_key_id=TEXT,
        storage_class=TEXT,
        timeout=DURATION,
    )
    profile = options.get("profile_name")
    if (url.user is None) != (url.secret is None):
        raise url_error("s3", "has only half of a key before its @ (s3://key_id:secret@bucket has both)")
    if profile and url.user:
        raise url_error("s3", "has both a key and a profile_name")
    from jqueue.adapters.storage.s3 import BotoCoreError, S3Storage

    keys: dict[str, Any] = {"access_key_id": url.user, "secret_access_key": url.secret}
    storage = S3Storage(url.host, url.name, **keys, **options)
    if profile and or_none(lambda _: storage.open_session(), profile, BotoCoreError) is None:
        raise url_error("s3", "names a profile that is not in the AWS configuration, or that cannot be read there")
    return _dialing(url, storage)


def _gs(url: ParsedURL) -> ObjectStoragePort:
    url.check_object("bucket")
    url.check_no_user()
    options = url.option_values(endpoint_url=ENDPOINT, project=TEXT, kms_key_name=TEXT, timeout=DURATION)
    from jqueue.adapters.storage.gcs import GCSStorage

    return _dialing(url, GCSStorage(url.host, url.name, **options))


def _az(url: ParsedURL) -> ObjectStoragePort:
    url.check_object("container")
    options = url.option_values(
        account_url=ENDPOINT,
        account_key=TEXT,
        sas_token=TEXT,
        encryption_scope=TEXT,
        standard_blob_tier=TEXT,
        timeout=DURATION,
    )
    secrets = [url.secret, options.pop("account_key", None), options.pop("sas_token", None)]
    credentials = [secret for secret in secrets if secret is not None]
    if url.user is not None:
        if not _ACCOUNT.fullmatch(url.user):
            raise url_error("az", "has a name before its @ that no account can have")
        options.setdefault("account_url", f"https://{url.user}.blob.core.windows.net")
    if credentials:
        if len(credentials) > 1:
            raise url_error("az", "has more than one key or token")
        if "account_url" not in options:
            raise url_error("az", "has a key or token, but names no account")
        options["credential"] = credentials[0]
    from jqueue.adapters.storage.azure import AzureBlobStorage

    storage = or_none(partial(AzureBlobStorage, url.host, **options), url.name)
    if storage is None:
        raise url_error("az", "names no account, and AZURE_STORAGE_CONNECTION_STRING is not set")
    return _dialing(url, storage)


def _file(url: ParsedURL) -> ObjectStoragePort:
    path = url.path()
    mode = matching("a mode in octal, from 600 to 666, such as 660", "0*6[0246]{2}", partial(int, base=8))
    options = url.option_values(lock_timeout=DURATION, mode=mode, create=BOOLEAN)
    create = options.pop("create", url.create)
    storage = _in_a_file(path, **options)
    if storage is None:
        raise url_error("file", "names no file")
    check_folder(path, create=create)
    return storage


_in_memory: WeakValueDictionary[str, InMemoryStorage] = WeakValueDictionary()
_naming = threading.Lock()


def _memory(url: ParsedURL) -> ObjectStoragePort:
    url.check_no_user()
    url.option_values()
    from jqueue.adapters.storage.memory import InMemoryStorage

    name = f"{url.host}/{url.name}"
    if name == "/":
        return InMemoryStorage()
    with _naming:
        return _in_memory.setdefault(name, InMemoryStorage())


def _dialing(url: ParsedURL, storage: RemoteStorage[Any]) -> ObjectStoragePort:
    """Return a storage whose clients find a broker by the header of the queue."""
    try:
        from jqueue.adapters.http_link import BrokerDialer
    except ImportError:
        storage.dial_url = _dial_nothing
    else:
        storage.dial_url = BrokerDialer(url.token, ca_file=url.ca_file, insecure=url.insecure)
    return storage


async def _dial_nothing(url: str) -> None:
    _warn_of(url)


@cache
def _warn_of(url: str) -> None:
    """Say once that a broker is not used, although it would make the queue faster."""
    from jqueue.ports.log import logger_of

    logger_of("jqueue").warning(
        'the broker at %s is not used: it needs more packages: pip install "jqueue[client]"', printable(url)
    )


def _broker(url: ParsedURL) -> ObjectStoragePort:
    url.check_no_user()
    scheme = url.scheme.removeprefix("jqueue+")
    place = ENDPOINT.convert(f"{scheme}://{url.host}")
    if place is None or not url.name.isascii() or "//" in url.name:
        raise url_error(url.scheme, "names no host, or has another port or path than a broker has")
    name, _, token = url.fragment.partition("=")
    if url.fragment and (name != "token" or not token):
        raise url_error(url.scheme, "has something else than #token=TOKEN at its end")
    options = url.option_values(ca_file=TEXT, insecure=BOOLEAN)
    insecure, ca_file = options.get("insecure", url.insecure), options.get("ca_file", url.ca_file)
    try:
        from jqueue.adapters.http_link import BrokerDialer, BrokerStorage
    except ImportError:
        raise ImportError('a client of a broker needs more packages: pip install "jqueue[client]"') from None
    dialer = BrokerDialer(url.token or token or None, origin=place, ca_file=ca_file, insecure=insecure)
    place = f"{place}/{quote(url.name)}".rstrip("/")
    if dialer.reason_against(place) is not None:
        raise url_error(
            url.scheme,
            "would send jobs to another machine without TLS (use jqueue+https://, or end the URL with ?insecure=true)",
        )
    return BrokerStorage(place, dialer)


STORES: dict[str, Callable[[ParsedURL], ObjectStoragePort]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
    "jqueue+https": _broker,
    "jqueue+http": _broker,
}


def _path_and_options(url: ParsedURL, **known: OptionType) -> tuple[str, dict[str, Any]]:
    """Return the path and the options of the URL of an older queue. The folder of the path exists or may be created."""
    path = url.path()
    if not path.strip("/") or "\0" in path:
        raise url_error(url.scheme, "names no path that a file system can have")
    options = url.option_values(entrypoint=TEXT, **known, create=BOOLEAN)
    check_folder(path.rstrip("/"), create=options.pop("create", url.create))
    return path, options


def _vsqs(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(url)
    from jqueue.formats.vsqs.store import VsqsFolder

    return VsqsFolder(path, **options)


_AGE = matching("a whole number of seconds, where 0 means never", "[0-9]+", float)
_DIRQ_OF_SIMPLE = {"granularity": COUNT}
_DIRQ_OF_QUEUE = {"schema": TEXT, "payload": TEXT, "headers": TEXT, "maxelts": COUNT}


def _dirq(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(
        url,
        kind=matching("simple or queue", "simple|queue"),
        umask=matching("a umask in octal, such as 077", "(0o)?0*[0-7]{1,3}", partial(int, base=8)),
        maxtemp=_AGE,
        maxlock=_AGE,
        **_DIRQ_OF_SIMPLE,
        **_DIRQ_OF_QUEUE,
    )
    from jqueue.formats.dirq.layout import Elements, Simple
    from jqueue.formats.dirq.schema import Schema
    from jqueue.formats.dirq.store import DirqStore

    folders = any(os.path.isdir(f"{path}/{name}") for name in ("temporary", "obsolete"))
    kind = options.pop("kind", "queue" if folders or options.keys() & _DIRQ_OF_QUEUE.keys() else "simple")
    others = _DIRQ_OF_SIMPLE if kind == "queue" else _DIRQ_OF_QUEUE
    if misplaced := sorted(options.keys() & others.keys()):
        raise url_error("dirq", f"has {', '.join(misplaced)}, which kind={kind} does not take")

    def taken(*names: str) -> dict[str, Any]:
        return {name: options.pop(name) for name in names if name in options}

    sizes, pieces = taken("granularity", "maxelts"), taken("schema", "payload", "headers")
    if kind == "simple":
        return DirqStore(path, Simple(**sizes), **options)
    try:
        schema = Schema.parse(**pieces)
    except ValueError as error:
        raise url_error("dirq", f"has a schema that cannot hold jobs: {error}") from None
    return DirqStore(path, Elements(schema, **sizes), **options)


def _textq(url: ParsedURL) -> JobStorePort:
    path, options = _path_and_options(url)
    if path.endswith("/"):
        raise url_error(url.scheme, "names a folder instead of a file")
    from jqueue.formats.textqueue.store import TextQueueFile

    return TextQueueFile(path, **options)


FORMATS: dict[str, Callable[[ParsedURL], JobStorePort]] = {
    "vsqs": _vsqs,
    "dirq": _dirq,
    "textq": _textq,
}
