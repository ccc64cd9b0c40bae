"""`jqueue repair URL [SEGMENT]`: keeps the jobs of damaged segments that can be read, and gives up the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from jqueue.cli.changes import DryRun, Yes, ask
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.parameters import argument
from jqueue.cli.printing import jobs, show, show_json
from jqueue.cli.scratch import CALL_LIMIT, with_retries
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.observers import Observers
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError
from jqueue.domain.operations.segments import DropRows, is_given_up
from jqueue.domain.printable import counted, printable
from jqueue.domain.segments import FOLDER, Segment, Span, common, joined, size_of, without
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import SupportsObjects


@dataclass(frozen=True)
class Damaged:
    """A segment with jobs that cannot be read.

    Attributes:
        name: of the segment.
        entrypoint: of its jobs.
        rows: the rows that cannot be read, as spans.
        lost: number of jobs to give up now: waiting jobs, and jobs in ranges whose claims are stale.
        claimed: number of jobs in claimed ranges, which stay.
        readable: number of waiting jobs of the segment that can be read.
    """

    name: str
    entrypoint: str
    rows: list[Span]
    lost: int
    claimed: int
    readable: int


def repair(
    url: URL,
    name: Annotated[str | None, argument("SEGMENT", "Name of one segment, with or without .segments/.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Bring back the jobs of damaged segments that can be read. The others are given up.

    First try to restore a damaged segment from a backup: it never changes, so any copy is right. Each segment is read,
    and the rows whose checksums do not match are counted. A question is asked on a terminal; elsewhere, --yes is
    needed. Then these rows leave the queue for good, and all others of the segment are served as before.

    Jobs in claimed ranges stay until their claims have ended. Then run the command again. It ends the claims of a dead
    process itself, once they are stale.

    Exits with 1 if the answer is no, and with 2 if there is nothing to give up.
    """
    chosen = None if name is None else name.removeprefix(FOLDER)

    async def look(opened: OpenedQueue) -> list[Damaged]:
        segments = opened.view.header.segments
        if chosen is not None and chosen not in segments:
            raise RefusedError(f"the queue has no segment {printable(chosen)}: it may have been worked off meanwhile")
        wanted = segments if chosen is None else [chosen]
        damaged = [each for each in [await _damage_of(opened, each) for each in wanted] if each.lost or each.claimed]
        if not damaged:
            raise RefusedError("every job of the queue can be read: nothing was dropped")
        if not any(each.lost for each in damaged):
            raise RefusedError(f"nothing was dropped. {_later(sum(each.claimed for each in damaged))}")
        return damaged

    async def drop(opened: OpenedQueue) -> int:
        assert isinstance(opened.queue, BlobQueue)  # it has segments
        return sum(await certain(opened.queue.apply(*(DropRows(each.name, each.rows) for each in damaged))))

    damaged = on_queue(url, look, as_json=as_json)
    lost = Counter[str]()
    for each in damaged:
        lost[each.entrypoint] += each.lost
    if not dry_run and not yes:
        ask(lost, "Give up {jobs} that cannot be read?", as_json=as_json)
    dropped = 0 if dry_run else on_queue(url, drop, as_json=as_json)
    readable, claimed = (sum(getattr(each, count) for each in damaged) for count in ("readable", "claimed"))
    if as_json:
        counts = {"segments": len(damaged), "unreadable": lost.total(), "readable": readable, "in_ranges": claimed}
        show_json({**counts, "dropped": dropped, **({"dry_run": True} if dry_run else {})})
        return
    where = f"of {counted(len(damaged), 'damaged segment')} ({', '.join(map(printable, lost))})"
    if dry_run:
        show(f"{jobs(lost.total())} {where} cannot be read, {readable:,} can")
    else:
        show(f"{jobs(dropped)} {where} dropped, {readable:,} kept")
    if claimed:
        show(_later(claimed))


async def _damage_of(opened: OpenedQueue, name: str) -> Damaged:
    """Read a segment, and count the jobs that cannot be read."""
    header, options = opened.view.header, opened.queue.options
    assert isinstance(opened.queue, BlobQueue)  # it has segments
    storage = opened.queue.storage
    assert isinstance(storage, SupportsObjects)
    segment = header.segments[name]
    reader = SegmentReader(storage, Observers(options.clock), call_timeout=CALL_LIMIT)
    rows = await _unreadable(reader, name, segment, options.entropy)
    held = [each for each in header.ranges.values() if each.segment == name]
    current = [each for each in held if not is_given_up(each, rows, opened.now())]
    waiting = size_of(without(rows, segment.taken))
    in_ranges, claimed = (size_of(common(rows, [each.span for each in some])) for some in (held, current))
    lost = waiting + in_ranges - claimed
    return Damaged(name, segment.entrypoint, rows, lost, claimed, segment.waiting - waiting)


async def _unreadable(reader: SegmentReader, name: str, segment: Segment, entropy: Entropy) -> list[Span]:
    """Return the rows of a segment that cannot be read, as spans.

    Raises:
        StorageError: the store failed.
    """
    whole, size, found = [(0, segment.rows)], segment.chunk_rows, list[Span]()
    try:
        index = await with_retries(partial(reader.index, name, segment), entropy)
        for number in range(segment.chunks):
            try:
                await with_retries(partial(reader.chunks, name, segment, index, [number]), entropy)
            except InvalidBlobError:
                found.append((number * size, min((number + 1) * size, segment.rows)))
    except (ObjectMissingError, InvalidBlobError):
        return whole
    return joined(found)


def _later(claimed: int) -> str:
    stay = counted(claimed, "job that cannot be read stays", "jobs that cannot be read stay")
    return f"{stay} in claimed ranges. Run the command again once these claims have ended"
