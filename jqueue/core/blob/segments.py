"""The segments of one engine: what reads, loads and writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from jqueue.core.blob.segment_jobs import RowSource
from jqueue.core.blob.segment_loader import SegmentLoader
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.blob.segment_writer import SegmentWriter
from jqueue.core.observers import Observers
from jqueue.core.tasks import SpareTurns
from jqueue.domain.draft import Draft
from jqueue.domain.models import QueueState
from jqueue.domain.segments import FOLDER
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import SupportsObjects


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
        reader, rows, loader, writer: its parts.
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
        self.rows = RowSource(self.reader, entropy)
        self.loader = SegmentLoader(self.reader, clock, entropy, ask)
        self.writer = SegmentWriter(
            objects, self.reader, clock, now, new_name, observers, spare, call_timeout=call_timeout
        )

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self.loader.forget()
        self.writer.forget()

    async def objects_named_in(self, header: QueueState) -> set[str]:
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

    def landed(self, draft: Draft, claimed: Mapping[str, int]) -> None:
        """Note a commit that has landed: load rows ahead, and begin to write a segment if that is due.

        Args:
            draft: without changes.
            claimed: number of jobs that the commit has claimed, by entrypoint.
        """
        self.loader.landed(draft, claimed)
        self.writer.landed(draft, draft.header.queue)

    async def finish(self, seconds: float) -> None:
        """End what is done in the background. The queue is being closed."""
        await self.loader.finish(seconds)
        await self.writer.finish(seconds)
