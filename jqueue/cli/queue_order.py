"""The chosen jobs in the order of the queue, wherever they are: an import of them keeps that order.

Jobs in progress in ranges come first: they were the next to be served. All others follow in the order in which they
are served, and scheduled jobs come last, as they are due. The rows of segments are read bit by bit.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from jqueue.cli.chosen_jobs import chosen_jobs
from jqueue.core.view import QueueView
from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.segments import RowKey
from jqueue.domain.selection import QUEUED, Phase, Selection, phase_of

Place = Callable[[Job], tuple[float, ...]]


async def jobs_in_order(view: QueueView, selection: Selection, now: datetime) -> AsyncGenerator[Job, None]:
    """Iterate over the jobs that filters choose, in the order of the queue.

    Args:
        view: the queue.
        selection: the filters.
        now: the time by its clock.

    Raises:
        JobsUnreadableError: at the end, if segments are missing or damaged.
        StorageError: the store failed.
    """
    names, damaged = selection.entrypoints, dict[str, str]()

    def place_of(*, scheduled: bool) -> Place:
        return lambda job: _key(job).place(scheduled=scheduled)

    async def fitting(
        source: AbstractAsyncContextManager[AsyncIterator[Job]], *, due: bool = False
    ) -> AsyncGenerator[Job, None]:
        try:
            async with source as jobs:
                async for job in jobs:
                    if due and phase_of(job, now) is Phase.SCHEDULED:
                        return
                    if selection.matches(job, now):
                        yield job
        except JobsUnreadableError as error:
            damaged.update(error.segments)

    turns: list[Job] = []
    later: list[Job] = []
    async for job in chosen_jobs(view, selection, now, others=False):
        (later if phase_of(job, now) is Phase.SCHEDULED else turns).append(job)
    if view.header.ranges and (not selection.phases or Phase.IN_PROGRESS in selection.phases):
        async for job in fitting(view.other_jobs(frozenset({JobStatus.IN_PROGRESS}), names)):
            yield job
    if not selection.phases or selection.phases & QUEUED:
        async for job in fitting(view.others_in_order(names, scheduled=True), due=True):
            turns.append(job)  # a worker that claims has to load these as well
        ready = fitting(view.others_in_order(names, scheduled=False))
        async for job in _merged(turns, ready, place_of(scheduled=False)):
            yield job
        rest = fitting(view.others_in_order(names, scheduled=True))
        waiting = (job async for job in rest if phase_of(job, now) is Phase.SCHEDULED)
        async for job in _merged(later, waiting, place_of(scheduled=True)):
            yield job
    else:
        for job in sorted(turns, key=place_of(scheduled=False)):
            yield job
    if damaged:
        raise JobsUnreadableError(damaged)


def _key(job: Job) -> RowKey:
    return RowKey(job.priority, job.sequence, (job.run_at or job.created_at).timestamp())


async def _merged(held: Iterable[Job], others: AsyncIterator[Job], place: Place) -> AsyncGenerator[Job, None]:
    """Yield jobs of both kinds in their order; `others` come in it."""
    first = iter(sorted(held, key=place))
    upcoming = next(first, None)
    async for other in others:
        while upcoming is not None and place(upcoming) < place(other):
            yield upcoming
            upcoming = next(first, None)
        yield other
    while upcoming is not None:
        yield upcoming
        upcoming = next(first, None)
