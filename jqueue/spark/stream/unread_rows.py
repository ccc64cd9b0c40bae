"""Segments that tasks could not read, on their way from the tasks of a batch to the process of the source.

A task that cannot read its rows notes the segment in an object beside the queue, named by the claim of the batch, and
leaves them out. The source reads the notes in the commit that ends the batch: it gives the ranges of these segments
back, and all others are done. If a task cannot write its note, it fails, so that no row is done which no task has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.operations.lookups import RangesHeldBy
from jqueue.spark.staging import PREFIX, StagedObjects, Staging
from jqueue.spark.stream.offsets import claim_of


@dataclass(frozen=True)
class UnreadNotes:
    """The notes of one batch, as its tasks write them. It may be pickled.

    Attributes:
        url: of the queue.
        holder: the holder of the claims of the batch.
        staging: the place of the notes.
    """

    url: str = field(repr=False)
    holder: str
    staging: Staging = field(repr=False)

    def note(self, segment: str) -> bool:
        """Note a segment. Return False if this process sees another queue than the source does.

        A file on the disk of another machine has neither the segment nor the claim. A note there would not be read.

        Raises:
            JQueueError: the notes are damaged, or the store failed.
        """
        seen: list[bool] = []

        async def write() -> None:
            async with connect(self.url, DirectQueue, deadline=self.staging.deadline) as queue:
                [claims] = await queue.apply(RangesHeldBy(self.holder))
            seen.append(any(claim.segment == segment for claim in claims))
            if seen[0]:
                async with self.staging.opened() as objects:
                    await objects.update(name_of(claim_of(self.holder)), add)

        def add(content: bytes | None) -> bytes:
            return encode_notes(sorted({*decode_notes(content), segment}))

        asyncio.run(write())
        return seen[0]


async def read_notes(objects: StagedObjects, claim: str) -> Sequence[str]:
    """Return the names of the segments that tasks of a batch have noted.

    Raises:
        InvalidBlobError: the notes are damaged.
        StorageError: the store failed.
    """
    [content] = await objects.read([name_of(claim)])
    return decode_notes(content)


def name_of(claim: str) -> str:
    """Return the name of the object with the notes of a batch."""
    return f"{PREFIX}stream-{claim}-unread"


def encode_notes(segments: Sequence[str]) -> bytes:
    """Return the notes as an object."""
    return msgspec.json.encode({"unread": segments})


def decode_notes(content: bytes | None) -> Sequence[str]:
    """Return the notes from their object; None stands for an object that does not exist.

    Raises:
        InvalidBlobError: the object is damaged.
    """
    if content is None:
        return ()
    try:
        return msgspec.json.decode(content, type=dict[str, tuple[str, ...]])["unread"]
    except (msgspec.MsgspecError, ValueError, LookupError):
        raise InvalidBlobError("an object with the unread segments of a batch is damaged or incomplete") from None
