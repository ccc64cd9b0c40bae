"""The queues to read: one, or a fleet of them, named by a list or by wildcards.

    queue.json                      one queue
    s3://bucket/a.json,b.json       two: a comma in a URL is written %2C
    queues/*.json                   all files whose names match, as in a shell; `**` stands for any folders
    s3://bucket/queues/*.json?…     all keys that match; the options after the question mark apply to all

In a URL, the options begin at the question mark, so that `*` and `[…]` are its only wildcards.
"""

from __future__ import annotations

import asyncio
import glob
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import quote

from jqueue.adapters.storage._remote import RemoteStorage
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.connect import connect_storage
from jqueue.domain.errors import InvalidURLError
from jqueue.ports.storage import ObjectStoragePort, SupportsListing, SupportsRelease
from jqueue.spark.globs import Pattern, has_wildcards
from jqueue.spark.option_parsing import check_one_url, url_of, urls_of

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
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
        return name_of(self.storage)


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


def is_fleet(options: Mapping[str, str]) -> bool:
    """Return True if the options name queues by a list or wildcards, even if only one queue is found.

    Raises:
        InvalidURLError: no queue is named.
    """
    return names_several(addresses_of(options))


def names_several(addresses: list[str]) -> bool:
    """Return True if these are a list or have wildcards, even if only one queue is found."""
    return len(addresses) > 1 or any(has_wildcards(_name_in(address)) for address in addresses)


def split(path: str) -> list[str]:
    """Split a list of URLs at its commas.

    Raises:
        InvalidURLError: one of them is empty.
    """
    addresses = [address.strip() for address in path.split(",")]
    if not all(addresses):
        raise InvalidURLError("there is a comma with no URL beside it: a comma in the name of a queue is written %2C")
    return addresses


def queues_of(path: str) -> list[str]:
    """Return the URLs of all queues that a path names, each once.

    Args:
        path: one URL, or several with commas between them, with wildcards or without.

    Raises:
        InvalidURLError: it names no queue, or no queue matches.
        StorageError: a store could not list its objects.
    """
    finding = _urls(split(path))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finding)
    with ThreadPoolExecutor(1) as thread:  # a loop is running here already, as in a notebook
        return thread.submit(asyncio.run, finding).result()


async def _urls(addresses: Sequence[str]) -> list[str]:
    queues = await find_all(addresses)
    await release_all(queues)
    return [queue.url for queue in queues]


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
    found: dict[str, FleetQueue] = {}
    for address in addresses:
        if not has_wildcards(_name_in(address)):
            queues = [FleetQueue(address, connect_storage(address))]
        elif (scheme := _URL.match(address)) is None or scheme[1].lower() == "file":
            queues = _files(address)
        else:
            queues = await _objects(address)
        if not queues:
            raise InvalidURLError("no queue matches the wildcards of the URL")
        for queue in queues:
            found.setdefault(queue.name, queue)
    return list(found.values())


def name_of(storage: object) -> str:
    """Return the name of an object as people know it, without secrets, and printable."""
    if isinstance(storage, RemoteStorage):
        name = storage.url
    elif isinstance(storage, LocalFileSystemStorage):
        name = str(storage.path.absolute())
    else:
        name = repr(storage)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def _name_in(address: str) -> str:
    """Return the part that may hold wildcards: all of a path, or a URL up to its options."""
    return address.partition("?")[0] if _URL.match(address) else address


def _files(address: str) -> list[FleetQueue]:
    """Return the files whose names match."""
    url = _URL.match(address)
    pattern, options = Pattern.of_path(address), ""
    if url is not None:
        path, mark, text = address[url.end() :].partition("?")
        if not path.startswith(("/", "localhost/")):
            connect_storage(address)  # raises, and says what is wrong
        pattern, options = Pattern.of_url(path.removeprefix("localhost")), mark + text
    found = []
    for path in sorted(glob.glob(pattern.text, recursive=True)):
        if os.path.isfile(path) and not pattern.is_ours(path):
            absolute = os.path.abspath(path)
            plain = url is None and not _SIGNS.search(absolute)
            queue_url = absolute if plain else f"file://{quote(os.fsencode(absolute))}{options}"
            found.append(FleetQueue(queue_url, connect_storage(queue_url)))
    return found


async def _objects(address: str) -> list[FleetQueue]:
    """Return the objects of a store whose names match."""
    path, mark, options = address.partition("?")
    scheme, _, rest = path.partition("://")
    place, _, name = rest.partition("/")
    pattern = Pattern.of_url(name)
    before, begins = pattern.fixed_part()
    if not before:
        raise InvalidURLError(
            f"the {scheme}:// URL has too little before its first wildcard: it takes two characters of the name, as in "
            f"{scheme}://…/queues/*.json"
        )
    base = connect_storage(f"{scheme}://{place}/{quote(before)}{mark}{options}")
    if not isinstance(base, SupportsListing):
        raise InvalidURLError(f"wildcards are for files and object stores, and {scheme}:// cannot list its objects")
    found: list[FleetQueue] = []
    try:
        for suffix in sorted(each.suffix for each in await base.list_beside(begins)):
            if pattern.fits(before + suffix):
                url = f"{scheme}://{place}/{quote(before + suffix)}{mark}{options}"
                found.append(FleetQueue(url, base.beside(suffix)))
    finally:
        if not found:
            await release_all([FleetQueue("", base)])
    return found
