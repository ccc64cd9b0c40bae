"""The storage for a URL, whose parts become the arguments of an adapter."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from jqueue.connect.parsed_url import (
    BOOLEAN,
    DURATION,
    ENDPOINT,
    EXAMPLES,
    TEXT,
    OptionType,
    ParsedURL,
    addressing_style,
    check_folder,
    check_no_user,
    check_object,
    etag_style,
    or_none,
    region,
    url_error,
)
from jqueue.domain.errors import InvalidURLError

if TYPE_CHECKING:
    from jqueue.adapters.storage.memory import InMemoryStorage
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
    check_object(url, "bucket")
    options = url.option_values(
        endpoint_url=ENDPOINT,
        region_name=OptionType("the name of a region", region),
        profile_name=TEXT,
        addressing_style=OptionType("path, virtual or auto", addressing_style),
        etag_style=OptionType("quoted or unquoted", etag_style),
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
    return storage


def _gs(url: ParsedURL) -> ObjectStoragePort:
    check_object(url, "bucket")
    check_no_user(url)
    options = url.option_values(endpoint_url=ENDPOINT, project=TEXT, kms_key_name=TEXT, timeout=DURATION)
    from jqueue.adapters.storage.gcs import GCSStorage

    return GCSStorage(url.host, url.name, **options)


def _az(url: ParsedURL) -> ObjectStoragePort:
    check_object(url, "container")
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
    return storage


def _mode(text: str) -> int:
    mode = int(text, 8) if text.isascii() and text.isdecimal() else 0
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError("not a mode")
    return mode


_MODE = OptionType("a mode in octal, from 600 to 666, such as 660", _mode)


def _file(url: ParsedURL) -> ObjectStoragePort:
    check_no_user(url)
    if url.host not in ("", "localhost"):
        raise url_error("file", "has two slashes where three belong: its path begins with the third")
    options = url.option_values(lock_timeout=DURATION, mode=_MODE, create=BOOLEAN)
    create = options.pop("create", url.create)
    storage = _in_a_file(f"/{url.name}", **options)
    if storage is None:
        raise url_error("file", "names no file")
    check_folder(f"/{url.name}", create=create)
    return storage


_in_memory: WeakValueDictionary[str, InMemoryStorage] = WeakValueDictionary()
_naming = threading.Lock()


def _memory(url: ParsedURL) -> ObjectStoragePort:
    check_no_user(url)
    url.option_values()
    from jqueue.adapters.storage.memory import InMemoryStorage

    name = f"{url.host}/{url.name}"
    if name == "/":
        return InMemoryStorage()
    with _naming:
        return _in_memory.setdefault(name, InMemoryStorage())


STORES: dict[str, Callable[[ParsedURL], ObjectStoragePort]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
}
