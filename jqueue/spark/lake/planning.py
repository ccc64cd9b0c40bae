"""The work of a run: the events that a lake lacks, and its files to be written anew.

Events in objects of the history are final. The latest events, in the queue's own object, are not: if a backup of the
queue is restored, their numbers are used again. So a lake keeps the latest events in files of their own, which the next
run replaces.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
from msgspec import Raw

from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob.history import FOLDER, Place, place_of
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, InvalidURLError, StorageFatalError
from jqueue.ports.storage import Listed, SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.lake.store import DataFile, Marker, QueueMark
from jqueue.spark.staging import absolute

DEADLINE = 30.0
"""Seconds to read a queue."""

SMALL, MERGED = 32 << 20, 64 << 20
"""Size in bytes below which files of one folder are merged, and most bytes of files that become one."""

MANY = 8
"""Number of small files of the latest day to merge. Those of a day before are merged as soon as there are two."""


class Events(msgspec.Struct, tag=True):
    """Events to add: of an object of the history, or the latest ones.

    Attributes:
        queue: id of the queue.
        low: number of the first event to take.
        high: number of the last event to take.
        size: bytes to read.
        place: of the object.
        latest: the latest events; None if they are in an object.
    """

    queue: str
    low: int
    high: int
    size: int
    place: Place = Place("", 0)
    latest: tuple[Raw, ...] | None = None


class Rewrite(msgspec.Struct, tag=True):
    """Files of one folder to merge into one.

    Attributes:
        files: the files.
        cut: by the id of a queue, the number of its last event to keep.
    """

    files: list[DataFile]
    cut: dict[str, int]

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(each.size for each in self.files)


Unit = Events | Rewrite
Sized = TypeVar("Sized", Unit, DataFile)


@dataclass(frozen=True)
class QueuePlan:
    """Events of one queue that a lake lacks.

    Attributes:
        queue: its id.
        url: any process can open the queue by it.
        before: what the lake has of it; None if it has nothing.
        after: what it will have.
        events: the events to add.
        missing: number of events that no longer exist.
        cut: number of the last event in the lake that still stands, if a backup of the queue was restored.
    """

    queue: str
    url: str = field(repr=False)
    before: QueueMark | None
    after: QueueMark
    events: Sequence[Events]
    missing: int
    cut: int | None


async def plans_of(addresses: Sequence[str], marker: Marker) -> list[QueuePlan]:
    """Return what a lake lacks of the queues that the addresses stand for. Queues without a history are left out.

    Raises:
        InvalidURLError: an address is wrong, no queue matches, or none has a history.
        StorageError: a queue could not be read, or is another one than the lake knows. The message names it.
    """
    queues = await find_all(addresses)
    plans: dict[str, QueuePlan] = {}

    async def add(queue: FleetQueue) -> None:
        if plan := await _plan(queue, marker.queues):
            other = plans.setdefault(plan.queue, plan)
            if other is not plan:
                names = f"{queue.name} and {other.after.name}"
                raise StorageFatalError(f"{names} are copies of one queue: archive one of them")

    try:
        await some_at_once(add, queues)
    finally:
        await release_all(queues)
    if not plans:
        raise InvalidURLError(f"{queues[0].name} keeps no history: switch it on with configure(history=...)")
    return list(plans.values())


async def _plan(queue: FleetQueue, marks: Mapping[str, QueueMark]) -> QueuePlan | None:
    name, storage = queue.name, queue.storage
    data, etag = await retried(DEADLINE, storage.read, SystemEntropy(), f"{name} could not be read")
    if etag is None:
        raise BlobMissingError(f"there is no queue at {name}: check the URL; the first enqueue creates a queue")
    try:
        header = parse_blob(data).header
    except InvalidBlobError as error:
        raise InvalidBlobError(f"{name}: {error}") from None
    history, before = header.history, marks.get(header.queue)
    if history is None:
        return None
    if not isinstance(storage, SupportsObjects):
        raise StorageFatalError(f"{name}: this storage cannot keep a history")
    if before is None and any(mark.name == name for mark in marks.values()):
        raise StorageFatalError(
            f"the lake has the history of another queue that was at {name}: archive into a new lake"
        )
    final = history.first - 1
    series = [*history.older, (history.series, final)]
    through = end = history.removed
    if before is not None:
        if before.series not in dict(series):
            raise StorageFatalError(f"the lake has another history than {name}: archive into a new lake")
        end = before.through
        through = min(end, dict(series)[before.series])
    # After the queue was read: a writer moves events to an object before it drops them from the queue.
    failed = f"{name}'s history could not be read"
    listed = await retried(DEADLINE, lambda: storage.list_beside(FOLDER), SystemEntropy(), failed)
    events = list(_in_objects(header.queue, series, listed, through))
    missing = final - through - sum(each.high - each.low + 1 for each in events)
    outbox = history.batches
    after = QueueMark(name, history.series, final, zlib.crc32(b"\n".join(outbox)) if outbox else None)
    if outbox and (before is None or before.tail != after.tail):
        events.append(Events(header.queue, history.first, history.last, sum(map(len, outbox)), latest=outbox))
    cut = through if through < end else None
    return QueuePlan(header.queue, absolute(queue.url), before, after, events, missing, cut)


def _in_objects(
    queue: str, chain: Sequence[tuple[str, int]], listed: Sequence[Listed], through: int
) -> Iterator[Events]:
    """Yield the events after `through` in each object: of two objects with the same event, the later one counts.

    Args:
        queue: id of the queue.
        chain: names of the series, the oldest first, each with the number of its last event.
        listed: the objects.
        through: number of an event.
    """
    objects: dict[str, list[tuple[int, int]]] = {}
    for each in listed:
        if place := place_of(each.suffix):
            objects.setdefault(place.series, []).append((place.first, each.size))
    low = through + 1
    for series, last in chain:
        there = sorted(objects.get(series, ()))
        nexts = [first for first, _ in there[1:]]
        for (first, size), following in zip(there, [*nexts, last + 1], strict=False):
            begin, end = max(first, low), min(following - 1, last)
            if begin <= end:
                yield Events(queue, begin, end, size, Place(series, first))
        low = max(low, last + 1)


def rewrites_of(files: Iterable[DataFile], cut: dict[str, int]) -> list[Rewrite]:
    """Return the files to be written anew: folders of many small files, or all files if events no longer count.

    Args:
        files: the files of the lake.
        cut: by the id of a queue, the number of its last event that still counts.
    """
    folders: dict[str, list[DataFile]] = {}
    latest = ""
    for each in files:
        latest = max(latest, each.day)
        if not each.tail and (cut or each.size < SMALL):
            folders.setdefault(each.folder, []).append(each)
    rewrites = []
    for several in folders.values():
        if cut or len(several) >= (MANY if several[0].day == latest else 2):
            rewrites += [Rewrite(group, cut) for group in in_lots(several, MERGED) if cut or len(group) > 1]
    return rewrites


def in_lots(things: Iterable[Sized], most: int) -> list[list[Sized]]:
    """Return things in lots of so many bytes at most; a larger thing is a lot of its own."""
    lots: list[list[Sized]] = []
    size = most
    for thing in things:
        if not lots or size + thing.size > most:
            lots.append([])
            size = 0
        lots[-1].append(thing)
        size += thing.size
    return lots
