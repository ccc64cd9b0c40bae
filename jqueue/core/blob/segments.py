"""The segments of one engine: what reads, loads and writes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from jqueue.core.blob.segment_loader import SegmentLoader
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.blob.segment_writer import SegmentWriter
from jqueue.core.observers import Observers
from jqueue.core.tasks import SpareTurns
from jqueue.domain.draft import Draft
from jqueue.domain.header import Header
from jqueue.domain.segments import FOLDER
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsObjects

PARTS_KEPT = 64
"""Number of outlines of segments, of times of chunks, and of jobs found by their ids, that are remembered: a queue may
be counted, and a page may show a job, every second."""

Part = TypeVar("Part")


class SegmentParts:
    """What was read of a queue's segments lately. All views of the queue share it.

    Args:
        reader: reads the segments.
        entropy: draws the pauses between failed reads.
    """

    def __init__(self, reader: SegmentReader, entropy: Entropy) -> None:
        self.reader = reader
        self.entropy = entropy
        self._parts: dict[str, OrderedDict[Hashable, Any]] = {}

    def get(self, kind: str, key: Hashable) -> Any:
        """Return a part that is remembered; None if it is not."""
        parts = self._parts.setdefault(kind, OrderedDict())
        if key in parts:
            parts.move_to_end(key)
        return parts.get(key)

    def keep(self, kind: str, key: Hashable, part: Part) -> Part:
        """Remember a part, and return it. The one that was needed least lately is forgotten."""
        parts = self._parts.setdefault(kind, OrderedDict())
        parts[key] = part
        if len(parts) > PARTS_KEPT:
            parts.popitem(last=False)
        return part


class Segments:
    """The segments beside the blob of one engine.

    Args:
        objects: holds them.
        clock: measures pauses.
        entropy: draws the pauses between failed reads.
        now: tells the time, by the store's clock if it has one.
        new_name: makes the name of a segment.
        observers: told of the calls to the store.
        spare: gives turns to work that can wait.
        ask: asks the store for the queue's object, to learn if it answers.
        call_timeout: seconds within which a call to the store must end.

    Attributes:
        reader, parts, loader, writer: its parts.
    """

    def __init__(
        self,
        objects: SupportsObjects,
        clock: Clock,
        entropy: Entropy,
        now: Callable[[], datetime],
        new_name: Callable[[], str],
        observers: Observers,
        spare: SpareTurns,
        ask: Callable[[], Awaitable[object]],
        *,
        call_timeout: float,
    ) -> None:
        self.reader = SegmentReader(objects, observers, call_timeout=call_timeout)
        self.parts = SegmentParts(self.reader, entropy)
        self.loader = SegmentLoader(self.reader, clock, entropy, ask)
        self.writer = SegmentWriter(
            objects, self.reader, clock, now, new_name, observers, spare, call_timeout=call_timeout
        )

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self.loader.forget()
        self.writer.forget()

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return the suffixes of the segments of a header, and of the objects that their rows name.

        Raises:
            InvalidBlobError: a segment is damaged, and may name any object.
            StorageError: the store failed, or a segment is missing.
        """
        named = {FOLDER + name for name in (*header.segments, *header.retired)}
        for name, segment in header.segments.items():
            if segment.objects:
                named.update((await self.reader.index(name, segment)).objects)
        return named

    def landed(self, draft: Draft, claimed: Mapping[str, int], size: int) -> None:
        """Note a commit that has landed: load rows ahead, and begin to write a segment if that is due.

        Args:
            draft: without changes.
            claimed: number of jobs that the commit has claimed, by entrypoint.
            size: bytes of the blob.
        """
        if claimed:
            self.loader.landed(draft, claimed)
        hot_bytes = self.writer.sizes.hot_bytes
        if draft.header.segments or self.writer.under_way or (hot_bytes is not None and size >= hot_bytes):
            self.writer.landed(draft)

    async def finish(self) -> None:
        """End what is done in the background. The queue is being closed."""
        await self.loader.finish()
        await self.writer.finish()
