"""The job that an operator has chosen by its id, or by the beginning of it, and the short ids by which to choose."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime

from jqueue.cli.progress import reading
from jqueue.core.view import QueueView
from jqueue.domain.errors import InvalidJobError, JobNotFoundError
from jqueue.domain.models import Job
from jqueue.domain.printable import counted, printable
from jqueue.domain.selection import Selection

NAMED = 3
"""Largest number of ids to name in an error about an id that is not clear."""


async def one_job(view: QueueView, now: datetime, job_id: str) -> Job:
    """Return the job with an id, or the only job whose id begins with it.

    Args:
        view: the queue.
        now: the time by its clock.
        job_id: an id, or the beginning of one.

    Raises:
        JobNotFoundError: no id begins like this.
        JobsUnreadableError: it may be in a segment that is missing or damaged.
        InvalidJobError: several ids do, or the id is empty.
    """
    if not job_id:
        raise InvalidJobError("the id of the job is empty")
    prefix = job_id.removesuffix("…")  # of an id that was cut to fit a terminal
    if (whole := await view.find(prefix)) is not None:
        return whole
    first: list[Job] = []
    number = 0
    with reading(view, "looking") as (told, _):
        async for job in told.jobs(now, Selection(id_prefix=prefix)):
            number += 1
            if number <= NAMED:
                first.append(job)
    if not first:
        raise JobNotFoundError(prefix)
    if number > 1:
        shown = ", ".join(printable(job.id) for job in first)
        raise InvalidJobError(
            f"{counted(number, 'job')} have ids that begin like this: give more of the id. "
            f"{'They are' if number <= NAMED else 'The first are'} {shown}"
        )
    return first[0]


SHORTEST = 8
"""Smallest number of characters of a short id."""


class ShortIds:
    """Finds a short id for each of some ids: a beginning that no other id of the queue has, of 8 characters at least.

    Memory grows with the ids to shorten only, whatever the number of ids in the queue.

    Args:
        shown: the ids to shorten.
    """

    def __init__(self, shown: Iterable[str]) -> None:
        self._ordered = sorted(shown)
        self._shared = [0] * len(self._ordered)

    def meet(self, job_id: str) -> None:
        """Note an id of the queue. All of them must be noted, those to shorten too."""
        ordered, place = self._ordered, bisect_left(self._ordered, job_id)
        for beside in range(max(0, place - 1), min(len(ordered), place + 2)):
            if ordered[beside] != job_id:
                self._shared[beside] = max(self._shared[beside], _shared(ordered[beside], job_id))

    def found(self) -> dict[str, str]:
        """Return the short id of each id."""
        pairs = zip(self._ordered, self._shared, strict=True)
        return {job_id: job_id[: max(SHORTEST, shared + 1)] for job_id, shared in pairs}


def _shared(one: str, other: str) -> int:
    """Return the number of characters with which both begin."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
