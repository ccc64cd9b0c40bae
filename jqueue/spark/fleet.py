"""The queues to read: one, or a fleet of them, named by a list or by wildcards.

    queue.json                      one queue
    s3://bucket/a.json,b.json       two: a comma in a URL is written %2C
    queues/*.json                   all files whose names match, as in a shell; `**` stands for any folders
    s3://bucket/*.json?…            all keys that match; the options after the question mark apply to all

In a URL, the options begin at the question mark, so that `*` and `[…]` are its only wildcards. The lock of a queue and
the objects staged beside it match no wildcard. A name that begins with a dot only matches if the dot is written out.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import quote, unquote

from jqueue.adapters.storage._remote import RemoteStorage
from jqueue.connect import open_storage
from jqueue.domain.errors import InvalidURLError
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease, describe
from jqueue.spark.option_parsing import check_one_url, url_of, urls_of

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_WILDCARD = re.compile(r"[*?\[]")
_ESCAPES = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_SIGNS = re.compile(r"[,*?\[]")
"""Characters that may stand in a path, but have another meaning here."""


@dataclass(frozen=True)
class FleetQueue:
    """One of the queues to read.

    Attributes:
        url: any process can open the queue by it.
        storage: the storage of its object.
    """

    url: str
    storage: ObjectStoragePort

    @property
    def name(self) -> str:
        """The name of its object, without secrets, as the column `queue` has it."""
        return describe(self.storage)


def addresses_of(options: Mapping[str, str]) -> list[str]:
    """Return the queues as the caller named them, wildcards included.

    Args:
        options: as Spark passes them: a list of URLs comes as `paths`, in JSON.

    Raises:
        InvalidURLError: no queue is named, or two options name different queues.
    """
    paths: list[str] = next((json.loads(text) for name, text in options.items() if name.lower() == "paths"), [])
    if paths:
        check_one_url([",".join(paths), *urls_of(options).values()])
    return [address for path in (paths or [url_of(options)]) for address in split(path)]


def names_several(addresses: list[str]) -> bool:
    """Return True if these are a list or have wildcards, even if only one queue is found."""
    return len(addresses) > 1 or any(map(_has_wildcards, addresses))


def split(path: str) -> list[str]:
    """Split a list of URLs at its commas.

    Raises:
        InvalidURLError: one of them is empty.
    """
    addresses = [address.strip() for address in path.split(",")]
    if not all(addresses):
        raise InvalidURLError("a URL is empty: give one beside each comma; a comma in a queue's name is written %2C")
    return addresses


async def release_all(queues: Iterable[FleetQueue]) -> None:
    """Release the storages of the members. Some of them share a client."""
    for queue in queues:
        if isinstance(queue.storage, SupportsRelease):
            await queue.storage.release()


async def find_all(addresses: Sequence[str]) -> list[FleetQueue]:
    """Return the queues that the addresses stand for, in order and each once. The caller must release their storages.

    Raises:
        InvalidURLError: an address is wrong, or no queue matches.
        StorageError: a store could not list its objects.
    """
    fleet: dict[str, FleetQueue] = {}
    for address in addresses:
        if not _has_wildcards(address):
            queues = [FleetQueue(address, open_storage(address))]
        elif (scheme := _URL.match(address)) is None or scheme[1].lower() == "file":
            queues = _files(address)
        else:
            queues = await _objects(address)
        if not queues:
            raise InvalidURLError("no queue matches the wildcards of the URL")
        for queue in queues:
            fleet.setdefault(queue.name, queue)
    return list(fleet.values())


def _has_wildcards(address: str) -> bool:
    """Return True if a path, or a URL up to its options, has wildcards."""
    return _WILDCARD.search(address.partition("?")[0] if _URL.match(address) else address) is not None


def _files(address: str) -> list[FleetQueue]:
    """Return the files whose names match."""
    url, pattern, options = _URL.match(address), address, ""
    if url is not None:
        path, mark, text = address[url.end() :].partition("?")
        if not path.startswith(("/", "localhost/")):
            open_storage(address)  # raises, and says what is wrong
        pattern, options = _pattern(path.removeprefix("localhost")), mark + text
    queues = []
    for path in sorted(glob.glob(pattern, recursive=True)):
        if os.path.isfile(path) and not _is_ours(path):
            absolute = os.path.abspath(path)
            plain = url is None and not _SIGNS.search(absolute)
            queue_url = absolute if plain else f"file://{quote(os.fsencode(absolute))}{options}"
            queues.append(FleetQueue(queue_url, open_storage(queue_url)))
    return queues


async def _objects(address: str) -> list[FleetQueue]:
    """Return the objects of a store whose names match."""
    path, mark, options = address.partition("?")
    scheme, _, rest = path.partition("://")
    place, _, name = rest.partition("/")
    pattern = _pattern(name)
    fixed = _WILDCARD.split(pattern)[0]
    base = open_storage(f"{scheme}://{place}/{quote(fixed)}-{mark}{options}")
    if not isinstance(base, RemoteStorage):
        raise InvalidURLError(f"wildcards are for files and object stores, and {scheme}:// cannot list its objects")
    queues = []
    try:
        for key, storage in (await base.list_bucket(fixed)).items():
            if not _is_ours(key) and _fit(key.split("/"), pattern.split("/")):
                queues.append(FleetQueue(f"{scheme}://{place}/{quote(key)}{mark}{options}", storage))
    finally:
        if not queues:
            await base.release()
    return queues


def _pattern(name: str) -> str:
    """Return the pattern in the path of a URL, as `glob` takes it. Characters escaped with % are no wildcards."""
    return _ESCAPES.sub(lambda escapes: glob.escape(unquote(escapes[0], errors="surrogateescape")), name)


def _is_ours(name: str) -> bool:
    """Return True for the lock of a queue, and an object staged beside it."""
    last = name.rpartition("/")[2]
    return last.endswith(".lock") or ".staged-" in last


def _fit(parts: list[str], pattern: list[str]) -> bool:
    """Return True if the parts of a key match the parts of a pattern."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        hidden = next((place for place, part in enumerate(parts) if part.startswith(".")), len(parts))
        return any(_fit(parts[skipped:], pattern[1:]) for skipped in range(min(len(parts), hidden + 1)))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _fit(parts[1:], pattern[1:])
