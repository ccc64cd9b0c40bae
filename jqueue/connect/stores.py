"""The storage for a URL, whose parts become the arguments of an adapter."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect.address import (
    DURATION,
    ENDPOINT,
    EXAMPLES,
    TEXT,
    YES_OR_NO,
    Address,
    Kind,
    addressing_style,
    check_folder,
    check_nobody,
    check_object,
    etag_style,
    or_none,
    region,
    wrong,
)
from jqueue.domain.errors import InvalidURLError
from jqueue.ports.storage import ObjectStoragePort

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


def bare_path(path: str | os.PathLike[str], *, create: bool) -> ObjectStoragePort:
    """Return the storage for a path, which is used as it is. With `create`, its folder may be missing."""
    if isinstance(path, str) and not path.strip():
        raise InvalidURLError(f"the URL of a queue is empty: it should look like {EXAMPLES['s3']}, or be a path")
    if isinstance(path, str) and "://" in path:
        raise InvalidURLError(f"there is something before the scheme of the URL: it should look like {EXAMPLES['s3']}")
    storage = _in_a_file(path)
    if storage is None:
        raise InvalidURLError(f"the path names no file: it should look like queue.json, or like {EXAMPLES['s3']}")
    check_folder(path, create=create)
    return storage


def _in_a_file(path: str | os.PathLike[str], **options: Any) -> ObjectStoragePort | None:
    """Return the storage for a path, or None if it cannot be the path of a file."""
    if str(path).endswith(("/", os.sep)) or or_none(os.fsencode, path) is None:
        return None
    return or_none(partial(LocalFileSystemStorage, **options), path)


def _s3(address: Address) -> ObjectStoragePort:
    check_object(address, "bucket")
    options = address.take(
        endpoint_url=ENDPOINT,
        region_name=Kind("the name of a region", region),
        profile_name=TEXT,
        addressing_style=Kind("path, virtual or auto", addressing_style),
        etag_style=Kind("quoted or unquoted", etag_style),
        server_side_encryption=TEXT,
        sse_kms_key_id=TEXT,
        storage_class=TEXT,
        timeout=DURATION,
    )
    profile = options.get("profile_name")
    if (address.user is None) != (address.secret is None):
        raise wrong("s3", "has half of a key before its @, where s3://key_id:secret@bucket has both")
    if profile and address.user:
        raise wrong("s3", "has both a key and a profile_name")
    from jqueue.adapters.storage.s3 import BotoCoreError, S3Storage

    keys: dict[str, Any] = {"access_key_id": address.user, "secret_access_key": address.secret}
    storage = S3Storage(address.place, address.name, **keys, **options)
    if profile and or_none(lambda _: storage.open_session(), profile, BotoCoreError) is None:
        raise wrong("s3", "names a profile that is not in the AWS configuration, or that cannot be read there")
    return storage


def _gs(address: Address) -> ObjectStoragePort:
    check_object(address, "bucket")
    check_nobody(address)
    options = address.take(endpoint_url=ENDPOINT, project=TEXT, kms_key_name=TEXT, timeout=DURATION)
    from jqueue.adapters.storage.gcs import GCSStorage

    return GCSStorage(address.place, address.name, **options)


def _az(address: Address) -> ObjectStoragePort:
    check_object(address, "container")
    options = address.take(
        account_url=ENDPOINT,
        account_key=TEXT,
        sas_token=TEXT,
        encryption_scope=TEXT,
        standard_blob_tier=TEXT,
        timeout=DURATION,
    )
    secrets = [address.secret, options.pop("account_key", None), options.pop("sas_token", None)]
    credentials = [secret for secret in secrets if secret is not None]
    if address.user is not None:
        if not _ACCOUNT.fullmatch(address.user):
            raise wrong("az", "has a name before its @ that no account can have")
        options.setdefault("account_url", f"https://{address.user}.blob.core.windows.net")
    if credentials:
        if len(credentials) > 1:
            raise wrong("az", "has more than one key or token")
        if "account_url" not in options:
            raise wrong("az", "has a key or token, but names no account for it")
        options["credential"] = credentials[0]
    from jqueue.adapters.storage.azure import AzureBlobStorage

    storage = or_none(partial(AzureBlobStorage, address.place, **options), address.name)
    if storage is None:
        raise wrong("az", "names no account, and AZURE_STORAGE_CONNECTION_STRING is not set")
    return storage


def _mode(text: str) -> int:
    mode = int(text, 8) if text.isascii() and text.isdecimal() else 0
    if mode & ~0o666 or mode & 0o600 != 0o600:
        raise ValueError("not a mode")
    return mode


_MODE = Kind("a mode in octal, from 600 to 666, such as 660", _mode)


def _file(address: Address) -> ObjectStoragePort:
    check_nobody(address)
    if address.place not in ("", "localhost"):
        raise wrong("file", "has two slashes where three belong: its path begins with the third")
    options = address.take(lock_timeout=DURATION, mode=_MODE, create=YES_OR_NO)
    create = options.pop("create", address.create)
    storage = _in_a_file(f"/{address.name}", **options)
    if storage is None:
        raise wrong("file", "names no file")
    check_folder(f"/{address.name}", create=create)
    return storage


_in_memory: WeakValueDictionary[str, InMemoryStorage] = WeakValueDictionary()
_naming = threading.Lock()


def _memory(address: Address) -> ObjectStoragePort:
    check_nobody(address)
    address.take()
    name = f"{address.place}/{address.name}"
    if name == "/":
        return InMemoryStorage()
    with _naming:
        return _in_memory.setdefault(name, InMemoryStorage())


STORES: dict[str, Callable[[Address], ObjectStoragePort]] = {
    "s3": _s3,
    "gs": _gs,
    "az": _az,
    "file": _file,
    "memory": _memory,
}
