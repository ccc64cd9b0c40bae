"""`jqueue drop-segment URL NAME`: gives up the jobs of a damaged segment that cannot be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Annotated, Self

import typer

from jqueue.cli.on_jobs import DryRun, Yes, ask
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import jobs, show, show_json
from jqueue.core.blob.segment_damage import jobs_in
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.operations.segments import DropRows, is_given_up
from jqueue.domain.printable import counted, printable
from jqueue.domain.ranges import Range
from jqueue.domain.segments import FOLDER, Segment, Span


@dataclass(frozen=True)
class Unreadable:
    """The jobs of a segment that cannot be read.

    Attributes:
        entrypoint: of the jobs.
        rows: their rows, as spans.
        droppable: number of jobs to give up now: waiting jobs, and jobs in ranges whose claims are stale.
        claimed: number of jobs in claimed ranges, which stay.
        timeout: seconds after the last heartbeat of these ranges by which the last of their claims is stale.
        readable: number of waiting jobs of the segment that can be read.
    """

    entrypoint: str
    rows: list[Span]
    droppable: int
    claimed: int
    timeout: float
    readable: int

    @classmethod
    def of(cls, segment: Segment, ranges: list[Range], rows: list[Span], now: datetime) -> Self:
        """Count the jobs in rows that cannot be read, given the claimed ranges of the segment."""
        current = [each for each in ranges if not is_given_up(each, rows, now)]
        waiting, in_ranges = jobs_in(segment, ranges, rows)
        _, claimed = jobs_in(segment, current, rows)
        timeout = max((each.claim_timeout for each in current), default=0.0)
        droppable = waiting + in_ranges - claimed
        return cls(segment.entrypoint, rows, droppable, claimed, timeout, segment.waiting - waiting)

    @property
    def later(self) -> str:
        """The jobs in claimed ranges, and the way to give them up."""
        stay = counted(self.claimed, "job that cannot be read stays", "jobs that cannot be read stay")
        seconds = ceil(self.timeout)
        return (
            f"{stay} in claimed ranges. Run the command again once these claims have ended. The claims of a dead "
            f"process end {seconds} s after its last heartbeat; if no worker runs, `jqueue requeue-stale URL "
            f"--timeout {seconds}` ends them then"
        )


def drop_segment(
    url: URL,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the segment, with or without .segments/.", show_default=False),
    ],
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJSON = False,
) -> None:
    """Give up the jobs of a damaged or missing segment that cannot be read. Readable jobs are kept.

    First try to restore the segment from a backup: it never changes, so any copy is right. The whole segment is read,
    and the rows whose checksums do not match are counted. A question is asked on a terminal; elsewhere, --yes is
    needed. Then they leave the queue for good. All other jobs of the segment stay.

    Jobs in claimed ranges stay, too, until their claims have ended. Then run the command again. It ends the claims of
    a dead process itself, once they are stale.

    Exits with 1 if the answer is no, and with 2 if there is nothing to give up.
    """
    name = name.removeprefix(FOLDER)

    async def look(opened: OpenedQueue) -> Unreadable:
        header = opened.view.header
        segment = header.segments.get(name)
        if segment is None:
            raise RefusedError(f"the queue has no segment {printable(name)}: it may have been worked off meanwhile")
        rows = await opened.view.unreadable_rows(name)
        held = [each for each in header.ranges.values() if each.segment == name]
        found = Unreadable.of(segment, held, rows, opened.now())
        if not found.droppable and not found.claimed:
            raise RefusedError(f"every job of the segment {printable(name)} can be read: nothing was dropped")
        if not found.droppable:
            raise RefusedError(f"nothing was dropped of the segment {printable(name)}. {found.later}")
        return found

    async def drop(opened: OpenedQueue) -> int:
        assert isinstance(opened.queue, BlobQueue)  # it has segments
        [number] = await certain(opened.queue.apply(DropRows(name, found.rows)))
        return int(number)

    found = on_queue(url, look, as_json=as_json)
    if not dry_run and not yes:
        ask(Counter({found.entrypoint: found.droppable}), "Give up {jobs} that cannot be read?", as_json=as_json)
    dropped = 0 if dry_run else on_queue(url, drop, as_json=as_json)
    if as_json:
        counts = {"unreadable": found.droppable, "readable": found.readable, "in_ranges": found.claimed}
        show_json({**counts, "dropped": dropped, **({"dry_run": True} if dry_run else {})})
        return
    entrypoint, left = printable(found.entrypoint), f"{found.readable:,} of the segment"
    if dry_run:
        show(f"{jobs(found.droppable)} ({entrypoint}) cannot be read, {left} can")
    else:
        show(f"{jobs(dropped)} ({entrypoint}) dropped, {left} kept")
    if found.claimed:
        show(found.later)
