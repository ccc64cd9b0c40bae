"""The probe of `jqueue doctor` that checks the segments of a queue: each of them is there, and every row is right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from jqueue.cli.printing import jobs, size
from jqueue.cli.probes import NotTriedError, ProbeContext, Result, failed, noted, passed
from jqueue.cli.scratch import CALL_LIMIT, with_retries
from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob.segment_object import SegmentCheck
from jqueue.core.blob.segment_reader import DAMAGED, SegmentReader, pieces_of, reason_of
from jqueue.core.observers import Observers
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageError, StorageFatalError
from jqueue.domain.header import Header
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, Range, Segment
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects

Answer = TypeVar("Answer")

KEPT_FOR = timedelta(hours=2)
"""Age below which an unnamed segment is no litter: a commit may name it soon, or a reader may still need it."""

NAMED = 3
"""Largest number of damaged segments to name in the table. The advice names more."""

ADVISED = 20
"""Largest number of damaged segments with advice of their own."""

REPORT = (
    "Its bytes are as they were written, so a backup has the same fault. Please report it. `jqueue export` reads its "
    "jobs, and `jqueue import` adds them to another queue."
)
COLLECT = "Objects that nothing names are removed while workers run, or by queue.collect()."


@dataclass
class Damage:
    """The damage of one segment.

    Attributes:
        name: of the segment.
        entrypoint: of its jobs.
        jobs: number of its jobs that wait or are in progress in ranges.
        why: the first fault that was found.
        unreadable: True if not all jobs can be read; if not, the index or the manifest is wrong.
        in_ranges: number of `jobs` that are in progress in ranges.
    """

    name: str
    entrypoint: str
    jobs: int
    why: str = ""
    unreadable: bool = False
    in_ranges: int = 0

    @property
    def advice(self) -> str:
        """The damage, and the steps to take."""
        about = f"Segment {FOLDER}{self.name} ({self.entrypoint}): {self.why}."
        if not self.unreadable:
            return f"{about} {REPORT}"
        each, later = "", ""
        if self.in_ranges:
            each = f" ({self.jobs - self.in_ranges:,} waiting, {self.in_ranges:,} in claimed ranges)"
            later = " It gives up jobs in claimed ranges only once these claims have ended."
        return (
            f"{about} Its {jobs(self.jobs)}{each} wait. Restore this object from a backup: any copy is right. If there "
            f"is none, keep what can be read: `jqueue repair URL {self.name}`.{later}"
        )


async def segments(context: ProbeContext) -> Result | None:
    """Check the segments in the manifest. Return None for a queue without segments."""
    storage, entropy = context.space.storage, context.space.entropy
    if not isinstance(storage, SupportsObjects):
        return None
    try:
        listed = await with_retries(lambda: _limited(storage.list_beside(FOLDER)), entropy)
        header = await _header(storage, entropy)
        damaged = await _damaged(storage, header, context)
        if damaged:
            header = await _header(storage, entropy)  # the queue may have changed meanwhile
            damaged = [each for each in damaged if each.name in header.segments]
    except (InvalidBlobError, StorageFatalError) as error:
        raise NotTriedError(f"{error}") from None
    if damaged:
        return _failure(damaged)
    before = context.clock.now() - KEPT_FOR
    known = {*header.segments, *header.retired}
    orphans = [each for each in listed if each.suffix.removeprefix(FOLDER) not in known]
    old = [each for each in orphans if each.modified < before]
    waiting = counted(sum(segment.waiting for segment in header.segments.values()), "waiting job")
    there = f"{counted(len(header.segments), 'segment')} with {waiting}"
    if context.quick and header.segments:
        there += "; their rows were not read"
    if old:
        litter = counted(len(old), "object that nothing names", "objects that nothing names")
        return noted(f"{there}; {litter}, {size(sum(each.size for each in old))}", COLLECT)
    return passed(there) if header.segments else None


def _failure(damaged: Sequence[Damage]) -> Result:
    """Return the result for damaged segments. Each is named, with the steps to take."""
    lost = sum(each.jobs for each in damaged if each.unreadable)
    named = ", ".join(f"{FOLDER}{each.name}" for each in damaged[:NAMED])
    advice = [each.advice for each in damaged[:ADVISED]]
    if len(damaged) > ADVISED:
        more = counted(len(damaged) - ADVISED, "more segment is", "more segments are")
        advice.append(f"{more} damaged: mend these first, and run the doctor again.")
    return failed(
        f"{counted(len(damaged), 'segment is', 'segments are')} missing or damaged: {named}"
        + (", …" if len(damaged) > NAMED else ""),
        f"not run {jobs(lost)} of the queue, in segments that cannot be read."
        if lost
        else "miss jobs, or run them out of order.",
        *advice,
    )


async def _damaged(storage: SupportsObjects, header: Header, context: ProbeContext) -> list[Damage]:
    """Check all segments, and return the damaged ones."""
    reader = SegmentReader(storage, Observers(context.clock), call_timeout=CALL_LIMIT)
    total, seen, found = sum(segment.waiting for segment in header.segments.values()), 0, []
    for name, segment in header.segments.items():
        held = [each for each in header.ranges.values() if each.segment == name]
        in_ranges = sum(each.rows for each in held)
        damage = Damage(name, segment.entrypoint, segment.waiting + in_ranges, in_ranges=in_ranges)
        if absence := await _absence(storage, segment, name, context.space.entropy):
            damage.why, damage.unreadable = absence, True
        elif not context.quick:
            try:
                await _check_rows(reader, segment, held, damage, context, (seen, total))
            except DAMAGED as error:
                damage.why, damage.unreadable = reason_of(error), True
        seen += segment.waiting
        if damage.why:
            found.append(damage)
    return found


async def _check_rows(
    reader: SegmentReader,
    segment: Segment,
    held: Sequence[Range],
    damage: Damage,
    context: ProbeContext,
    progress: tuple[int, int],
) -> None:
    """Read all rows of a segment, and note what is wrong with them.

    Raises:
        InvalidBlobError: the index or a row is damaged.
        ObjectMissingError: the segment does not exist.
        StorageError: the store failed.
    """
    entropy, (seen, total) = context.space.entropy, progress
    index = await with_retries(lambda: _limited(reader.index(damage.name, segment)), entropy)
    check = SegmentCheck(segment, index)

    async def read(numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        return [each async for each in reader.parts(damage.name, index, numbers)]

    for numbers in pieces_of(segment, index, held):  # chunks of which all rows have left are needed by nothing
        context.tell(f"{seen:,} of {jobs(total)}")
        for number, data in await with_retries(lambda numbers=numbers: _limited(read(numbers)), entropy):  # type: ignore[misc]
            damage.why = damage.why or check.chunk(number, data)
            seen += segment.chunk_rows
            await asyncio.sleep(0)


async def _limited(call: Awaitable[Answer]) -> Answer:
    """Return the answer of a call to the store.

    Raises:
        StorageError: it did not answer in time.
    """
    try:
        async with asyncio.timeout(CALL_LIMIT) as limit:
            return await call
    except TimeoutError as error:
        if limit.expired():
            raise StorageError(f"the store did not answer a read within {CALL_LIMIT:g} s") from error
        raise


async def _header(storage: ObjectStoragePort, entropy: Entropy) -> Header:
    data, etag = await with_retries(lambda: _limited(storage.read()), entropy)
    return Header() if etag is None else parse_blob(data).header


async def _absence(storage: SupportsObjects, segment: Segment, name: str, entropy: Entropy) -> str:
    """Return why the end of a segment is not there; nothing if it is."""
    end = segment.bytes
    try:
        found = await with_retries(lambda: _limited(storage.read_object(FOLDER + name, end - 1, end)), entropy)
    except ObjectMissingError:
        return "it is missing"
    return "" if found else "it is cut off"
