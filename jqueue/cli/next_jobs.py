"""The next of the waiting jobs outside the queue's object, for a short list of a deep queue: few of them are read."""

from __future__ import annotations

from datetime import datetime

from jqueue.core.view import QueueView
from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.models import Job
from jqueue.domain.selection import QUEUED, FirstItems, Phase, Selection, phase_of


def come_in_order(view: QueueView, selection: Selection) -> bool:
    """Return True if the jobs that filters choose come in order from segments, and need not be counted one by one."""
    plain = Selection(selection.phases, selection.entrypoints)
    with_ranges = bool(view.header.ranges) and (not selection.phases or Phase.IN_PROGRESS in selection.phases)
    return selection == plain and not with_ranges and selection.phases & QUEUED != {Phase.EXPIRED}


async def add_next(first: FirstItems[Job], limit: int, view: QueueView, selection: Selection, now: datetime) -> int:
    """Add the next ready and the next scheduled jobs to a list, in the order in which they are served and are due.

    Args:
        first: the list.
        limit: maximum number of jobs to find.
        view: the queue.
        selection: phases and entrypoints of the jobs.
        now: the time by the queue's clock.

    Returns:
        Number of further jobs that fit.

    Raises:
        JobsUnreadableError: at the end, if a segment is missing or damaged.
        StorageError: the store failed.
    """
    wanted = selection.phases or frozenset(Phase)
    ready, scheduled = Phase.READY in wanted, Phase.SCHEDULED in wanted
    if not ready and not scheduled:
        return 0
    names = selection.entrypoints
    figures = await view.other_numbers(now)
    numbers = [each for name, each in figures.items() if not names or name in names]
    number = sum(ready * of_ready + scheduled * of_scheduled for of_ready, of_scheduled in numbers)
    seen, damaged = 0, dict[str, str]()
    for table in (False, True) if ready else (True,):
        found = 0
        try:
            async with view.telling(noticed=damaged.__setitem__).others_in_order(names, scheduled=table) as jobs:
                async for job in jobs:
                    phase = phase_of(job, now)
                    if table and phase is Phase.SCHEDULED and not scheduled:
                        break
                    seen += phase in wanted or (ready and phase is Phase.EXPIRED)
                    if phase in wanted:
                        first.add(job)
                    found += phase is (Phase.SCHEDULED if table else Phase.READY)
                    if found == limit:
                        break
        except JobsUnreadableError as error:
            damaged.update(error.segments)
    if damaged:
        raise JobsUnreadableError(damaged)
    return max(0, number - seen)
