"""The waiting jobs in segments, as far as a page lists them. If they are very many, only the next of them are.

A page is drawn again at each change of the queue. A look at a million jobs would take longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.models import Job
from jqueue.domain.selection import Phase, Selection, phase_of
from jqueue.server.view import View

FEW = 10_000
"""Number of jobs in segments up to which all of them are looked at."""

LISTED = 1000
"""Number of ready jobs in segments that are listed otherwise: the next to be served. As many scheduled jobs are."""

LISTED_BYTES = 8 << 20
"""Bytes of their payloads at which the list ends before."""


def are_few(view: View) -> bool:
    """Return True if all jobs in segments can be looked at. Those of a set of queues cannot."""
    number = view.stats.segment_jobs
    return not number or (number <= FEW and bool(view.header.segments))


async def waiting_jobs(view: View, selection: Selection) -> tuple[Sequence[Job], int]:
    """Return the next jobs in segments that fit the phases and entrypoints of a selection, and the number of others.

    Jobs that are in progress in ranges are counted, and not listed.

    Raises:
        StorageError: the store failed.
    """
    names, wanted = selection.entrypoints, selection.phases or frozenset(Phase)
    if not view.header.segments:  # those of the queues in a set
        return (), view.stats.segment_jobs
    figures = await view.queue.other_numbers(view.now)
    numbers = [each for name, each in figures.items() if not names or name in names]
    number = sum(
        (Phase.READY in wanted) * ready + (Phase.SCHEDULED in wanted) * scheduled for ready, scheduled in numbers
    )
    claimed = [each for each in view.header.ranges.values() if not names or each.entrypoint in names]
    number += sum(each.rows for each in claimed if Phase.IN_PROGRESS in wanted)
    found: list[Job] = []
    seen = 0
    for scheduled in (False, True) if Phase.READY in wanted else (True,) if number else ():
        jobs = await _next_of(view, names, scheduled=scheduled)
        phases = [phase_of(job, view.now) for job in jobs]
        found += [job for job, phase in zip(jobs, phases, strict=True) if phase in wanted]
        seen += sum(phase in wanted or (phase is Phase.EXPIRED and Phase.READY in wanted) for phase in phases)
    return found, max(0, number - seen)


async def _next_of(view: View, entrypoints: frozenset[str], *, scheduled: bool) -> list[Job]:
    """Return the next jobs of segments with ready or with scheduled rows."""
    found: list[Job] = []
    size = 0
    queue = view.queue.telling(noticed=view.damage.__setitem__)
    with suppress(JobsUnreadableError):  # all others are listed
        async with queue.others_in_order(entrypoints, scheduled=scheduled) as jobs:
            async for job in jobs:
                found.append(job)
                size += len(job.payload)
                if len(found) == LISTED or size > LISTED_BYTES:
                    break
    return found
