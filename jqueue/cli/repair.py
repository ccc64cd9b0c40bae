"""`jqueue repair`: keeps what can be read of a damaged queue."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from jqueue.cli.changes import DryRun, Yes, ask, confirm
from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.printing import jobs, tell
from jqueue.cli.progress import jobs_counted
from jqueue.connect import open_storage
from jqueue.core.blob.codec import Blob, parse_blob, salvaged
from jqueue.core.blob.segment_object import decode_chunk
from jqueue.core.blob.segment_reader import SegmentReader, pieces_of
from jqueue.core.observers import Observers
from jqueue.core.tasks import retried
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError
from jqueue.domain.operations.segments import DropRows, is_given_up
from jqueue.domain.printable import counted, printable
from jqueue.domain.segments import Segment, Span, common, joined, object_of, size_of
from jqueue.domain.stats import about_lines, unreadable_lines
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects, SupportsRelease, storage_of
from jqueue.runtime.system import SystemEntropy

CALL_LIMIT = 20.0
"""Seconds for one read of a segment, its repetitions included."""


class Damage(NamedTuple):
    """A damaged segment.

    Attributes:
        name: its name.
        entrypoint: of its jobs.
        rows: the rows that cannot be read, as spans.
        lost: number of these rows that can be given up now: they wait, or their lease is stale.
        leased: number of these rows whose lease goes on.
        readable: number of its waiting jobs that can be read.
    """

    name: str
    entrypoint: str
    rows: Sequence[Span]
    lost: int
    leased: int
    readable: int


def repair(url: URL, yes: Yes = False, dry_run: DryRun = False, as_json: AsJSON = False) -> None:
    """Bring back the jobs of a damaged queue that can be read. The others are given up.

    An object that is cut off keeps its header and its whole lines, each a job; lines that are no jobs leave it. Its
    bytes are saved in the working folder before.

    First try to restore damaged segments from a backup: they never change, so any copy is right. All segments are read,
    and the rows whose checksums do not match are counted. A question is asked on a terminal; elsewhere, --yes is
    needed. Then these rows leave the queue for good, and all others are served as before.

    Leased jobs stay until their leases have ended. Then run the command again. It ends the leases of a dead process
    itself, once they are stale.

    Exits with 1 if the answer is no, and with 2 if there is nothing to give up.
    """
    if (mended := asyncio.run(_mend_object(open_storage(url), yes=yes, dry_run=dry_run))) is not None:
        tell(*mended, as_json=as_json)
        return
    damaged = on_queue(url, _damaged)
    lost, readable = Counter[str](), sum(each.readable for each in damaged)
    for each in damaged:
        lost[each.entrypoint] += each.lost
    where = f"of {counted(len(damaged), 'damaged segment')} ({', '.join(map(printable, lost))})"
    leased = sum(each.leased for each in damaged)
    later = [_later(leased)] if leased else []
    values = {"segments": len(damaged), "unreadable": lost.total(), "readable": readable, "leased": leased}
    if dry_run:
        words = f"{jobs(lost.total())} {where} cannot be read, {readable:,} can"
        return tell({**values, "dropped": 0, "dry_run": True}, words, *later, as_json=as_json)
    if not yes:
        ask(lost, "Give up {jobs} that cannot be read?")

    async def drop(opened: OpenedQueue) -> int:
        return sum([await opened.apply(DropRows(each.name, each.rows)) for each in damaged])

    dropped = on_queue(url, drop)
    tell({**values, "dropped": dropped}, f"{jobs(dropped)} {where} dropped, {readable:,} kept", *later, as_json=as_json)


async def _damaged(opened: OpenedQueue) -> list[Damage]:
    """Return the segments with rows that cannot be read.

    Raises:
        RefusedError: no job can be given up.
        StorageError: the store failed, or refused to read a segment.
    """
    damaged, entries = [], dict[str, list[Segment]]()
    for entry, segment in opened.view.header.segments.items():
        entries.setdefault(object_of(entry), []).append(segment)
    with jobs_counted("reading", of_what="segments") as tell_bar:
        for number, (name, its) in enumerate(entries.items()):
            tell_bar(number, len(entries))
            if rows := await _unreadable_rows(opened, name, its):
                damaged.append(_damage(name, its, rows, opened.now()))
    if not damaged:
        lines = opened.view.set_aside
        more = f". But {about_lines(lines)}" if lines else ""
        raise RefusedError(f"every job of the queue can be read: nothing was dropped{more}")
    if not any(each.lost for each in damaged):
        raise RefusedError(f"nothing was dropped. {_later(sum(each.leased for each in damaged))}")
    return damaged


async def _unreadable_rows(opened: OpenedQueue, name: str, entries: Sequence[Segment]) -> list[Span]:
    """Read the chunks of a segment that still have jobs, and return the rows that cannot be read, as spans."""
    storage, options, segment = storage_of(opened.queue), opened.queue.options, entries[0]
    assert isinstance(storage, SupportsObjects)  # it has segments
    reader = SegmentReader(storage, Observers(options.clock), call_timeout=CALL_LIMIT)
    rows = list[Span]()

    async def chunks(numbers: Sequence[int]) -> list[tuple[int, bytes]]:
        return [each async for each in reader.parts(name, index, numbers)]

    failed = "a segment could not be read"
    try:
        index = await retried(CALL_LIMIT, partial(reader.index, name, segment), options.entropy, failed)
        for numbers in pieces_of(entries, index):
            for number, data in await retried(CALL_LIMIT, partial(chunks, numbers), options.entropy, failed):
                try:
                    decode_chunk(data, number, segment, index)
                except InvalidBlobError:
                    first = number * segment.chunk_rows
                    rows.append((first, min(first + segment.chunk_rows, segment.rows)))
    except (ObjectMissingError, InvalidBlobError):
        return [(0, segment.rows)]
    return joined(rows)


def _damage(name: str, entries: Sequence[Segment], rows: Sequence[Span], now: datetime) -> Damage:
    lost, leased, readable = 0, 0, sum(each.waiting for each in entries)
    for each in entries:
        number = size_of(common(rows, each.spans))
        if each.is_leased and not is_given_up(each, rows, now):
            leased += number
        else:
            lost += number
            readable -= 0 if each.is_leased else number
    return Damage(name, entries[0].entrypoint, rows, lost, leased, readable)


def _later(leased: int) -> str:
    stay = counted(leased, "job that cannot be read stays", "jobs that cannot be read stay")
    return f"{stay} in leases. Run the command again once these have ended"


async def _mend_object(storage: ObjectStoragePort, *, yes: bool, dry_run: bool) -> tuple[dict[str, Any], str] | None:
    """Mend a queue's object that is cut off, or has lines that are no jobs. Return what was done; None if it is whole.

    Raises:
        RefusedError: there is no terminal to ask at.
        JQueueError: it could not be read or written.
    """
    try:
        data, etag = await retried(CALL_LIMIT, storage.read, SystemEntropy(), "the queue could not be read")
        if etag is None or not data or (outcome := _mended(data)) is None:
            return None
        content, values, words = outcome
        if dry_run:
            return {**values, "dry_run": True}, words
        if not yes:
            confirm(f"{words[0].upper()}{words[1:]}. Keep these, and give up the rest?", words)
        saved = _saved(data)
        await storage.write(content, if_match=etag)
        return {**values, "saved": saved}, f"mended: {jobs(values['jobs'])} kept; the damaged object is in {saved}"
    finally:
        if isinstance(storage, SupportsRelease):
            await storage.release()


def _saved(data: bytes) -> str:
    """Write a damaged object into the working folder. Return the name of the file."""
    name = f"damaged-{hashlib.sha256(data).hexdigest()[:12]}.json"
    with open(name, "wb", opener=partial(os.open, mode=0o600)) as file:
        file.write(data)
    return name


def _mended(data: bytes) -> tuple[bytes, dict[str, Any], str] | None:
    """Return a queue's object without what cannot be read, the numbers of it, and what is wrong.

    None: it is whole, or has another fault.
    """
    try:
        parsed = parse_blob(data)
    except InvalidBlobError:
        if (remains := salvaged(data)) is None:
            return None
        content, lines = remains
        words = f"the queue's object is cut off: its limits, settings and cron entries and {jobs(lines)} can be read"
        return content, {"jobs": lines, "bytes_lost": max(0, len(data) - len(content))}, words
    blob = Blob()
    blob.adopt(parsed, len(data))
    if not (asides := blob.draft.set_aside) or parsed.legacy:
        return None
    blob.draft.set_lines_aside(())
    last = blob.draft.jobs.last_sequence
    header = msgspec.structs.replace(parsed.header, version=parsed.header.version + 1, last_sequence=last)
    job_count = len(blob.lines)
    words = f"{unreadable_lines(asides)}; {jobs(job_count)} can be read"
    return blob.encode(header), {"jobs": job_count, "lines": len(asides)}, words
