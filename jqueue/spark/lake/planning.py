"""The events that a lake lacks: for each queue, the objects of its history, and the latest events in its own object.

Events in objects are final. The latest events are not: if a backup of the queue is restored, their numbers are used
again. So a lake keeps the latest events in files of their own, which the next run replaces.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob.history import FOLDER, place_of
from jqueue.core.tasks import retried
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, InvalidURLError, StorageFatalError
from jqueue.domain.header import Header
from jqueue.domain.history import HistoryHeader
from jqueue.ports.storage import Listed, SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.lake.marker import Marker, QueueMark, Tail

DEADLINE = 30.0
"""Seconds to read a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


@dataclass(frozen=True)
class Source:
    """A queue whose history is archived, as a task needs it. It may be pickled.

    Attributes:
        url: of the queue.
        name: of the queue, without secrets.
        queue: its id.
    """

    url: str = field(repr=False)
    name: str
    queue: str


class Window(NamedTuple):
    """The events of one object that a lake lacks.

    Attributes:
        series: of the object.
        first: number of the first event in the object, by its name.
        low: number of the first event to take.
        high: number of the last event to take.
        size: bytes of the object.
    """

    series: str
    first: int
    low: int
    high: int
    size: int


@dataclass(frozen=True)
class QueuePlan:
    """Events of one queue that a lake lacks.

    Attributes:
        source: the queue.
        before: what the lake has of it; None if it has nothing.
        after: what it will have. Its `missing` does not count the windows yet.
        windows: the events in objects.
        outbox: texts of the latest events, if they have changed.
        cut: number of the last event in the lake that still stands, if a backup of the queue was restored.
    """

    source: Source
    before: QueueMark | None
    after: QueueMark
    windows: Sequence[Window] = ()
    outbox: Sequence[str] | None = None
    cut: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if the lake has all events."""
        return self.before == self.after


async def plans_of(addresses: Sequence[str], marker: Marker) -> list[QueuePlan]:
    """Return what a lake lacks of the queues that the addresses stand for. Queues without a history are left out.

    Raises:
        InvalidURLError: an address is wrong, no queue matches, or none has a history.
        StorageError: a queue could not be read, or is another one than the lake knows. The message names it.
    """
    queues = await find_all(addresses)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(queue: FleetQueue) -> QueuePlan | None:
        async with room:
            return await _plan(queue, marker)

    try:
        found = [plan for plan in await asyncio.gather(*map(one, queues)) if plan is not None]
    finally:
        await release_all(queues)
    if not found:
        raise InvalidURLError(f"{queues[0].name} keeps no history: switch it on with configure(history=...)")
    names: dict[str, str] = {}
    for plan in found:
        other = names.setdefault(plan.source.queue, plan.source.name)
        if other != plan.source.name:
            raise StorageFatalError(f"{plan.source.name} and {other} are copies of one queue: archive one of them")
    return found


async def _plan(queue: FleetQueue, marker: Marker) -> QueuePlan | None:
    header = await _header(queue)
    history = header.history
    if history is None:
        return None
    if not isinstance(queue.storage, SupportsObjects):
        raise StorageFatalError(f"{queue.name}: this storage cannot keep a history")
    source = Source(queue.url, queue.name, header.queue)
    before = marker.queues.get(header.queue)
    if before is None:
        _check_is_new(source, marker)
    objects = queue.storage
    listed = await retried(
        DEADLINE, lambda: objects.list_beside(FOLDER), SystemEntropy(), f"{queue.name}'s history could not be read"
    )
    return plan_of(source, before, history, listed)


async def _header(queue: FleetQueue) -> Header:
    data, etag = await retried(DEADLINE, queue.storage.read, SystemEntropy(), f"{queue.name} could not be read")
    if etag is None:
        raise BlobMissingError(f"there is no queue at {queue.name}: check the URL; the first enqueue creates a queue")
    try:
        return parse_blob(data).header
    except InvalidBlobError as error:
        raise InvalidBlobError(f"{queue.name}: {error}") from None


def _check_is_new(source: Source, marker: Marker) -> None:
    if any(mark.name == source.name for mark in marker.queues.values()):
        raise StorageFatalError(
            f"the lake has the history of another queue that was at {source.name}: archive into a new lake"
        )


def plan_of(source: Source, before: QueueMark | None, history: HistoryHeader, listed: Sequence[Listed]) -> QueuePlan:
    """Return what a lake lacks of one queue.

    Args:
        source: the queue.
        before: what the lake has of it.
        history: the history in the queue's own object.
        listed: the objects of the history, listed after that was read.

    Raises:
        StorageFatalError: the lake does not fit the history.
    """
    final = history.first - 1
    chain = [*history.older, (history.series, final)]
    ends = dict(chain)
    through, cut = history.removed, None
    if before is not None:
        if before.series not in ends:
            raise StorageFatalError(f"the lake has another history than {source.name}: archive into a new lake")
        through = min(before.through, ends[before.series])
        cut = through if through < before.through else None
    windows = list(_windows(chain, listed, through))
    texts = [bytes(batch).decode() for batch in history.batches]
    tail = Tail(history.first, history.last, zlib.crc32("\n".join(texts).encode())) if texts else None
    missing = final - through - sum(each.high - each.low + 1 for each in windows)
    missing += 0 if before is None else before.missing
    after = QueueMark(source.name, history.series, final, missing, tail)
    changed = before is None or before.tail != tail
    return QueuePlan(source, before, after, windows, texts if changed else None, cut)


def _windows(chain: Sequence[tuple[str, int]], listed: Sequence[Listed], through: int) -> Iterator[Window]:
    """Yield the events after `through` in each object: of two objects with the same event, the later one counts."""
    low = through + 1
    by_series: dict[str, list[tuple[int, int]]] = {}
    for each in listed:
        place = place_of(each.suffix)
        if place is not None:
            by_series.setdefault(place.series, []).append((place.first, each.size))
    begins = 1
    for series, last in chain:
        there = sorted(by_series.get(series, ()))
        nexts = [first for first, _ in there[1:]]
        for (first, size), following in zip(there, [*nexts, last + 1], strict=False):
            begin, end = max(first, low, begins), min(following - 1, last)
            if begin <= end:
                yield Window(series, first, begin, end, size)
        begins = last + 1


def lots_of(plans: Sequence[QueuePlan], bytes_each: int) -> list[list[str]]:
    """Return the work of each task: objects and latest events, each as the text of a unit.

    Args:
        plans: what the lake lacks.
        bytes_each: bytes of a lot, about.
    """
    lots: list[list[str]] = [[]]
    size = 0
    for number, plan in enumerate(plans):
        for unit, weight in _units(number, plan):
            if size + weight > bytes_each and lots[-1]:
                lots.append([])
                size = 0
            lots[-1].append(json.dumps(unit))
            size += weight
    return [lot for lot in lots if lot]


def _units(number: int, plan: QueuePlan) -> Iterator[tuple[Mapping[str, Any], int]]:
    for window in plan.windows:
        yield {"source": number, "window": window[:-1]}, window.size
    if plan.outbox:
        yield {"source": number, "outbox": plan.outbox}, sum(map(len, plan.outbox))


def with_missing(mark: QueueMark, missing: int) -> QueueMark:
    """Return a mark with more missing events."""
    return replace(mark, missing=mark.missing + missing) if missing else mark
