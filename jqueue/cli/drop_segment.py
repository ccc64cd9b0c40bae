"""`jqueue drop-segment URL NAME`: gives up the jobs of a damaged segment that cannot be read."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from jqueue.cli.on_jobs import DryRun, Yes, ask
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import jobs, show, show_json
from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.operations.drop_rows import DropRows
from jqueue.domain.printable import printable
from jqueue.domain.segments import FOLDER, Segment, Span, without


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
    needed. Then they leave the queue for good. All other jobs of the segment stay, and so do jobs in progress.

    Exits with 1 if the answer is no, and with 2 if nothing of the segment is damaged.
    """
    name = name.removeprefix(FOLDER)

    async def look(opened: OpenedQueue) -> tuple[Segment, list[Span]]:
        segment = opened.view.header.segments.get(name)
        if segment is None:
            raise RefusedError(f"the queue has no segment {printable(name)}: it may have been worked off meanwhile")
        rows = await opened.view.unreadable_rows(name)
        waiting = without(rows, [(0, segment.next), *segment.taken])
        if not waiting:
            raise RefusedError(f"every waiting job of the segment {printable(name)} can be read: nothing was dropped")
        return segment, waiting

    async def drop(opened: OpenedQueue) -> int:
        assert isinstance(opened.queue, BlobQueue)  # it has segments
        [number] = await certain(opened.queue.apply(DropRows(name, rows)))
        return int(number)

    segment, rows = on_queue(url, look, as_json=as_json)
    found = sum(last - first for first, last in rows)
    if not dry_run and not yes:
        ask(Counter({segment.entrypoint: found}), "Give up {jobs} that cannot be read?", as_json=as_json)
    dropped = 0 if dry_run else on_queue(url, drop, as_json=as_json)
    left = segment.waiting - found
    if as_json:
        show_json({"unreadable": found, "readable": left, "dropped": dropped, **({"dry_run": True} if dry_run else {})})
    elif dry_run:
        show(f"{jobs(found)} ({printable(segment.entrypoint)}) cannot be read, {left:,} of the segment can")
    else:
        show(f"{jobs(dropped)} ({printable(segment.entrypoint)}) dropped, {left:,} of the segment kept")
