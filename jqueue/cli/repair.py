"""Damaged segments: the check of `jqueue doctor` that finds them, and `jqueue repair`, which keeps what can be read."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import msgspec

from jqueue.cli.changes import DryRun, Yes, ask, confirm
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue, place_of
from jqueue.cli.parameters import argument
from jqueue.cli.printing import jobs, show, show_json, size, tell
from jqueue.cli.probes import CALL_LIMIT, NotTriedError, ProbeContext, Result, failed, noted, passed, with_retries
from jqueue.connect import open_storage
from jqueue.core.blob.codec import Blob, parse_blob, salvaged
from jqueue.core.blob.segment_object import SegmentCheck
from jqueue.core.blob.segment_reader import CUT_OFF, MISSING, SegmentReader, pieces_of, reason_of
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.observers import Observers
from jqueue.domain.errors import InvalidBlobError, JQueueError, ObjectMissingError, StorageFatalError
from jqueue.domain.header import Header
from jqueue.domain.operations.segments import DropRows, is_given_up
from jqueue.domain.printable import counted, printable
from jqueue.domain.segments import FOLDER, Segment, Span, common, joined, object_of, size_of
from jqueue.domain.stats import about_lines, unreadable_lines
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import Listed, SupportsObjects, SupportsRelease

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
ABSENT = noted(
    "there is no queue here",
    "If there should be a queue at this URL, check it: the name may be misspelt. The first enqueue creates a queue.",
)
"""The result for a store without a queue."""

COLLECT = "Objects that nothing names are removed while workers run, or by queue.collect()."


@dataclass
class Damage:
    """The damage of one segment.

    Attributes:
        name: of the segment.
        entries: for it in the manifest.
        why: the first fault that was found; empty if there is none.
        rows: the rows that cannot be read, as spans. If there are none, the index or the manifest is wrong.
    """

    name: str
    entries: Sequence[Segment]
    why: str = ""
    rows: list[Span] = field(default_factory=list)

    def has_no_rows(self, why: str) -> None:
        """Note that no row can be read."""
        self.why, self.rows = why, [(0, self.segment.rows)]

    @property
    def segment(self) -> Segment:
        """One of the entries, for what they have in common."""
        return self.entries[0]

    @property
    def waiting(self) -> int:
        """Number of its jobs that wait."""
        return sum(each.waiting for each in self.entries)

    @property
    def leased(self) -> int:
        """Number of its jobs that are leased."""
        return sum(each.leased for each in self.entries)

    def counts(self, now: datetime) -> Counter[str]:
        """Return the number of its jobs that wait and can be read, that can be given up now, and that are claimed.

        Jobs that cannot be read are given up if they wait, or if their lease is stale.
        """
        counts = Counter(readable=self.waiting, lost=0, claimed=0)
        for each in self.entries:
            unreadable = size_of(common(self.rows, each.spans))
            is_claimed = each.is_leased and not is_given_up(each, self.rows, now)
            counts["claimed" if is_claimed else "lost"] += unreadable
            counts["readable"] -= 0 if each.is_leased else unreadable
        return counts

    @property
    def advice(self) -> str:
        """The damage, and the steps to take."""
        about = f"Segment {FOLDER}{self.name} ({self.segment.entrypoint}): {self.why}."
        if not self.rows:
            return f"{about} {REPORT}"
        each, later = "", ""
        if self.leased:
            each = f" ({self.waiting:,} waiting, {self.leased:,} leased)"
            later = " It gives up leased jobs only once their leases have ended."
        return (
            f"{about} Its {jobs(self.waiting + self.leased)}{each} wait. Restore this object from a backup: any copy "
            f"is right. If there is none, keep what can be read: `jqueue repair URL {self.name}`.{later}"
        )


def damage_of(header: Header, name: str) -> Damage:
    """Return the damage of a segment in the manifest, before anything is read."""
    return Damage(name, [each for entry, each in header.segments.items() if object_of(entry) == name])


async def read_rows(
    storage: SupportsObjects,
    damage: Damage,
    clock: Clock,
    entropy: Entropy,
    tell: Callable[[int], None] = lambda rows: None,
) -> None:
    """Read a segment, but for chunks of which all rows have left, and note what is wrong with its rows.

    Args:
        storage: holds it.
        damage: its damage, which is noted.
        clock: measures the calls.
        entropy: draws the pauses between two tries.
        tell: called with the number of rows of each chunk.

    Raises:
        StorageError: the store failed.
    """
    reader = SegmentReader(storage, Observers(clock), call_timeout=CALL_LIMIT)
    segment, size = damage.segment, damage.segment.chunk_rows
    try:
        index = await with_retries(partial(reader.index, damage.name, segment), entropy)
        check = SegmentCheck(segment, index)

        async def read(numbers: Sequence[int]) -> list[tuple[int, bytes]]:
            return [each async for each in reader.parts(damage.name, index, numbers)]

        for numbers in pieces_of(damage.entries, index):
            for number, data in await with_retries(partial(read, numbers), entropy):
                tell(size)
                try:
                    damage.why = damage.why or check.chunk(number, data)
                except InvalidBlobError as error:
                    damage.why = damage.why if damage.rows else str(error)
                    damage.rows = joined([*damage.rows, (number * size, min((number + 1) * size, segment.rows))])
                await asyncio.sleep(0)
    except (ObjectMissingError, InvalidBlobError) as error:
        damage.has_no_rows(reason_of(error))


async def queue_object(context: ProbeContext) -> Result | None:
    """Check that the queue's object is a queue."""
    data, etag = await with_retries(context.storage.read, context.entropy)
    if etag is None:
        return ABSENT
    blob = Blob()
    try:
        blob.adopt(parse_blob(data), len(data))
    except InvalidBlobError as error:
        mend = "Restore the object from a backup. If there is none, `jqueue repair URL` keeps what can be read."
        return failed(str(error), "fail: none of its jobs can be reached.", mend)
    if asides := blob.draft.set_aside:
        mend = "`jqueue repair URL` takes these lines out of the queue, and saves the object as it was."
        return failed(about_lines(asides), "not run the jobs of lines that cannot be read.", mend)
    return passed(f"{counted(len(blob.draft.jobs), 'job')} in {size(len(data))}")


async def segments(context: ProbeContext) -> Result | None:
    """Check the segments in the manifest. Return None for a queue without segments."""
    storage, entropy = context.storage, context.entropy
    if not isinstance(storage, SupportsObjects):
        return None

    async def header_now() -> Header:
        data, etag = await with_retries(storage.read, entropy)
        return Header() if etag is None else parse_blob(data).header

    try:
        header = await header_now()
        listed = await with_retries(lambda: storage.list_beside(FOLDER), entropy)
        if damaged := await _damaged(storage, header, listed, context):
            header = await header_now()  # the queue may have changed meanwhile
            damaged = [each for each in damaged if each.name in map(object_of, header.segments)]
    except StorageFatalError as error:
        raise NotTriedError(f"{error}") from None
    if damaged:
        return _failure(damaged)
    before, known = context.clock.now() - KEPT_FOR, {*map(object_of, header.segments), *header.retired}
    old = [each for each in listed if each.suffix.removeprefix(FOLDER) not in known and each.modified < before]
    waiting = counted(sum(segment.waiting for segment in header.segments.values()), "waiting job")
    there = f"{counted(len({*map(object_of, header.segments)}), 'segment')} with {waiting}"
    if context.quick and header.segments:
        there += "; their rows were not read"
    if old:
        litter = counted(len(old), "object that nothing names", "objects that nothing names")
        return noted(f"{there}; {litter}, {size(sum(each.size for each in old))}", COLLECT)
    return passed(there) if header.segments else None


async def _damaged(
    storage: SupportsObjects, header: Header, listed: Sequence[Listed], context: ProbeContext
) -> list[Damage]:
    """Check all segments, and return the damaged ones. A quick check only compares their sizes with the list."""
    seen, total, damaged = 0, sum(segment.waiting for segment in header.segments.values()), []
    sizes = {each.suffix: each.size for each in listed}

    def tell(rows: int) -> None:
        nonlocal seen
        seen = min(seen + rows, total)
        context.tell(f"segments: {seen:,} of {jobs(total)}")

    for name in dict.fromkeys(map(object_of, header.segments)):
        damage = damage_of(header, name)
        try:
            if not context.quick:
                await read_rows(storage, damage, context.clock, context.entropy, tell)
            elif (bytes_now := sizes.get(FOLDER + name)) is None or bytes_now < damage.segment.bytes:
                damage.has_no_rows(MISSING if bytes_now is None else CUT_OFF)
        except StorageFatalError as error:  # the store refuses to read it
            damage.has_no_rows(reason_of(error))
        if damage.why:
            damaged.append(damage)
    return damaged


def _failure(damaged: Sequence[Damage]) -> Result:
    """Return the result for damaged segments. Each is named, with the steps to take."""
    lost = sum(each.waiting + each.leased for each in damaged if each.rows)
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


def repair(
    url: URL,
    name: Annotated[str | None, argument("SEGMENT", "Name of one segment, with or without .segments/.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Bring back the jobs of a damaged queue that can be read. The others are given up.

    An object that is cut off keeps its header and its whole lines, each a job; lines that are no jobs leave it. Its
    bytes are saved in the working folder before.

    First try to restore a damaged segment from a backup: it never changes, so any copy is right. Each segment is read,
    and the rows whose checksums do not match are counted. A question is asked on a terminal; elsewhere, --yes is
    needed. Then these rows leave the queue for good, and all others of the segment are served as before.

    Leased jobs stay until their leases have ended. Then run the command again. It ends the leases of a dead process
    itself, once they are stale.

    Exits with 1 if the answer is no, and with 2 if there is nothing to give up.
    """
    chosen = None if name is None else name.removeprefix(FOLDER)
    if chosen is None and _salvage(url, yes=yes, dry_run=dry_run, as_json=as_json):
        return

    async def look(opened: OpenedQueue) -> list[tuple[Damage, Counter[str]]]:
        there, options = dict.fromkeys(map(object_of, opened.view.header.segments)), opened.queue.options
        if chosen is not None and chosen not in there:
            raise RefusedError(f"the queue has no segment {printable(chosen)}: it may have been worked off meanwhile")
        found = []
        for each in there if chosen is None else [chosen]:
            storage, damage = place_of(opened.queue), damage_of(opened.view.header, each)
            assert isinstance(storage, SupportsObjects)  # it has segments
            await read_rows(storage, damage, options.clock, options.entropy)
            counts = damage.counts(opened.now())
            if counts["lost"] or counts["claimed"]:
                found.append((damage, counts))
        if not found:
            lines = opened.view.set_aside
            what = "the segment" if chosen is not None else "the queue's segments" if lines else "the queue"
            more = f". But {about_lines(lines)}" if lines else ""
            raise RefusedError(f"every job of {what} can be read: nothing was dropped{more}")
        if not any(counts["lost"] for _, counts in found):
            raise RefusedError(f"nothing was dropped. {_later(sum(counts['claimed'] for _, counts in found))}")
        return found

    async def drop(opened: OpenedQueue) -> int:
        assert isinstance(opened.queue, BlobQueue)  # it has segments
        return sum(await certain(opened.queue.apply(*(DropRows(each.name, each.rows) for each, _ in damaged))))

    damaged = on_queue(url, look)
    lost, total = Counter[str](), Counter[str]()
    for each, counts in damaged:
        lost[each.segment.entrypoint] += counts["lost"]
        total += counts
    if not dry_run and not yes:
        ask(lost, "Give up {jobs} that cannot be read?")
    dropped = 0 if dry_run else on_queue(url, drop)
    readable, claimed = total["readable"], total["claimed"]
    if as_json:
        numbers = {"segments": len(damaged), "unreadable": lost.total(), "readable": readable, "leased": claimed}
        show_json({**numbers, "dropped": dropped, **({"dry_run": True} if dry_run else {})})
        return
    where = f"of {counted(len(damaged), 'damaged segment')} ({', '.join(map(printable, lost))})"
    if dry_run:
        show(f"{jobs(lost.total())} {where} cannot be read, {readable:,} can")
    else:
        show(f"{jobs(dropped)} {where} dropped, {readable:,} kept")
    if claimed:
        show(_later(claimed))


def _mended(data: bytes) -> tuple[bytes, dict[str, Any], str] | None:
    """Return a queue's object without what cannot be read, the numbers of it, and what is wrong.

    None: it is whole, or has another fault.
    """
    try:
        parsed = parse_blob(data)
    except InvalidBlobError:
        if (found := salvaged(data)) is None:
            return None
        content, lines = found
        words = f"the queue's object is cut off: its limits, settings and cron entries and {jobs(lines)} can be read"
        return content, {"jobs": lines, "bytes_lost": max(0, len(data) - len(content))}, words
    blob = Blob()
    blob.adopt(parsed, len(data))
    if not (asides := blob.draft.set_aside) or parsed.legacy:
        return None
    blob.draft.set_lines_aside(())
    last = blob.draft.jobs.last_sequence
    header = msgspec.structs.replace(parsed.header, version=parsed.header.version + 1, last_sequence=last)
    kept = len(blob.lines)
    words = f"{unreadable_lines(asides)}; {jobs(kept)} can be read"
    return blob.encode(header), {"jobs": kept, "lines": len(asides)}, words


def _salvage(url: str, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Mend a queue's object that is cut off, or has lines that are no jobs. Return False if it needs no mending."""
    try:
        storage = open_storage(url)
    except (ValueError, ImportError, JQueueError):
        return False  # the queue will tell

    async def read() -> tuple[bytes, str | None]:
        try:
            return await storage.read()
        finally:
            if isinstance(storage, SupportsRelease):
                await storage.release()

    async def write(content: bytes, etag: str) -> None:
        try:
            await storage.write(content, if_match=etag)
        finally:
            if isinstance(storage, SupportsRelease):
                await storage.release()

    try:
        data, etag = asyncio.run(read())
    except JQueueError:
        return False
    if etag is None or not data or (found := _mended(data)) is None:
        return False
    content, told, words = found
    if dry_run:
        tell(told | {"dry_run": True}, words, as_json=as_json)
        return True
    if not yes:
        confirm(f"{words[0].upper()}{words[1:]}. Keep these, and give up the rest?", words)
    saved = f"damaged-{hashlib.sha256(data).hexdigest()[:12]}.json"
    with open(saved, "wb", opener=partial(os.open, mode=0o600)) as file:
        file.write(data)
    try:
        asyncio.run(write(content, etag))
    except JQueueError as error:
        raise RefusedError(f"nothing was mended: {error}") from None
    tell(
        told | {"saved": saved}, f"mended: {jobs(told['jobs'])} kept; the damaged object is in {saved}", as_json=as_json
    )
    return True


def _later(claimed: int) -> str:
    stay = counted(claimed, "job that cannot be read stays", "jobs that cannot be read stay")
    return f"{stay} in leases. Run the command again once these have ended"
