"""Which queues are read: one, or a fleet of them that a list or wildcards name.

    queue.json                      one queue
    s3://bucket/a.json,b.json       two: a comma in a URL is written %2C
    queues/*.json                   all files whose names fit, as in a shell; `**` stands for any folders
    s3://bucket/queues/*.json?…     all keys whose names fit; the options behind the question mark are those of all

In a URL, a question mark is where its options begin, so that `*` and `[…]` are its only wildcards.
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
from jqueue.spark.options import check_one_url, url_of, urls_of

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SIGNS = re.compile(r"[,*?\[]")
"""What a path can hold as it is, and means something else here."""


@dataclass(frozen=True)
class Member:
    """One queue of those that are read.

    Attributes:
        url: by which anybody can open it.
        storage: where it is.
    """

    url: str
    storage: ObjectStoragePort

    @property
    def name(self) -> str:
        """The name of its object, without secrets, as the column `queue` has it."""
        return name_of(self.storage)


def addresses_of(options: Mapping[str, str]) -> list[str]:
    """The queues as they were named, wildcards and all.

    Args:
        options: as Spark hands them over: a list of URLs comes as `paths`, in JSON.

    Raises:
        InvalidURLError: none is named, or two options name different ones.
    """
    paths: list[str] = next((json.loads(text) for name, text in options.items() if name.lower() == "paths"), [])
    if paths:
        check_one_url([",".join(paths), *urls_of(options).values()])
    return [address for path in (paths or [url_of(options)]) for address in split(path)]


def is_fleet(options: Mapping[str, str]) -> bool:
    """Whether several queues are read, even if there should be but one of them.

    Raises:
        InvalidURLError: none is named.
    """
    return names_several(addresses_of(options))


def names_several(addresses: list[str]) -> bool:
    """Whether these stand for several queues, even if there should be but one of them."""
    return len(addresses) > 1 or any(has_wildcards(_name_in(address)) for address in addresses)


def split(path: str) -> list[str]:
    """A list of URLs, taken apart at its commas.

    Raises:
        InvalidURLError: one of them is empty.
    """
    addresses = [address.strip() for address in path.split(",")]
    if not all(addresses):
        raise InvalidURLError("there is a comma with no URL beside it: a comma in the name of a queue is written %2C")
    return addresses


def queues_of(path: str) -> list[str]:
    """The URLs of all queues that a path names, each once.

    Args:
        path: one URL, or several with commas between them, with wildcards or without.

    Raises:
        InvalidURLError: it names no queue, or there is none whose name fits.
        StorageError: a store could not tell what is in it.
    """
    finding = _urls(split(path))
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finding)
    with ThreadPoolExecutor(1) as thread:  # as in a notebook
        return thread.submit(asyncio.run, finding).result()


async def _urls(addresses: Sequence[str]) -> list[str]:
    members = await find_all(addresses)
    await release_all(members)
    return [member.url for member in members]


async def release_all(members: Iterable[Member]) -> None:
    """Let go of what the storages hold; some of them share a client."""
    for member in members:
        if isinstance(member.storage, SupportsRelease):
            await member.storage.release()


async def find_all(addresses: Sequence[str]) -> list[Member]:
    """The queues that the addresses stand for, in their order, and each once. Their storages are to be released.

    Raises:
        InvalidURLError: an address is wrong, or there is no queue whose name fits.
        StorageError: a store could not tell what is in it.
    """
    found: dict[str, Member] = {}
    for address in addresses:
        if not has_wildcards(_name_in(address)):
            members = [Member(address, connect_storage(address))]
        elif (scheme := _URL.match(address)) is None or scheme[1].lower() == "file":
            members = _files(address)
        else:
            members = await _objects(address)
        if not members:
            raise InvalidURLError("there is no queue whose name fits the wildcards of the URL")
        for member in members:
            found.setdefault(member.name, member)
    return list(found.values())


def name_of(storage: object) -> str:
    """The name of an object as people know it, without secrets, and printable."""
    if isinstance(storage, RemoteStorage):
        name = storage.url
    elif isinstance(storage, LocalFileSystemStorage):
        name = str(storage.path.absolute())
    else:
        name = repr(storage)
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def _name_in(address: str) -> str:
    """What may hold wildcards: all of a path, and of a URL what stands before its options."""
    return address.partition("?")[0] if _URL.match(address) else address


def _files(address: str) -> list[Member]:
    """The files whose names fit."""
    url = _URL.match(address)
    pattern, options = Pattern.of_path(address), ""
    if url is not None:
        path, mark, text = address[url.end() :].partition("?")
        if not path.startswith(("/", "localhost/")):
            connect_storage(address)  # says what is wrong
        pattern, options = Pattern.of_url(path.removeprefix("localhost")), mark + text
    found = []
    for path in sorted(glob.glob(pattern.text, recursive=True)):
        if os.path.isfile(path) and not pattern.is_ours(path):
            absolute = os.path.abspath(path)
            plain = url is None and not _SIGNS.search(absolute)
            member = absolute if plain else f"file://{quote(os.fsencode(absolute))}{options}"
            found.append(Member(member, connect_storage(member)))
    return found


async def _objects(address: str) -> list[Member]:
    """The objects of a store whose names fit."""
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
    found: list[Member] = []
    try:
        for suffix in sorted(each.suffix for each in await base.list_beside(begins)):
            if pattern.fits(before + suffix):
                url = f"{scheme}://{place}/{quote(before + suffix)}{mark}{options}"
                found.append(Member(url, base.beside(suffix)))
    finally:
        if not found:
            await release_all([Member("", base)])
    return found
