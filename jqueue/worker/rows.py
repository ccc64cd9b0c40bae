"""Jobs that are claimed already and lie in memory as rows, each with a mark that tells how far the work on it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AnySet
from typing import Any, Protocol, overload

from jqueue.domain.models import Job

NEW, BEGUN, HANDED, DONE = range(4)
"""The marks of a job: not begun; begun in a lane; in the hands of the job runner, which tells its outcome; and done."""


class Marks(Protocol):
    """Bytes that can be changed, such as a bytearray, or memory shared with another process."""

    def __getitem__(self, place: slice, /) -> bytes | bytearray:
        """Return some of them."""

    @overload
    def __setitem__(self, place: int, mark: int, /) -> None: ...
    @overload
    def __setitem__(self, place: slice, marks: bytes, /) -> None: ...
    def __setitem__(self, place: Any, marks: Any, /) -> None:
        """Change one of them, or several, whose number stays the same."""


class Rows:
    """Jobs as rows, in the order in which to do them.

    Args:
        names: the entrypoint of each job.
        payloads: the payload of each job; None for a job that only the job runner can do.
        job: makes the job of a place.
        doubtful: the places of jobs whose attempts may be used up.
        marks: a mark for each job; by default, a bytearray in which all are new.

    Attributes:
        names, payloads, job, doubtful, marks: as given.
        places: yields the places of the jobs that nobody has taken.
        cancelled: the places of jobs that were cancelled since they were claimed.
        current: the place of the job that a lane on the event loop does, or did last.
    """

    def __init__(
        self,
        names: Sequence[str],
        payloads: Sequence[bytes | None],
        job: Callable[[int], Job],
        *,
        doubtful: AnySet[int] = frozenset(),
        marks: Marks | None = None,
    ) -> None:
        self.names = names
        self.payloads = payloads
        self.job = job
        self.doubtful = doubtful
        self.marks: Marks = bytearray(len(names)) if marks is None else marks
        self.places: Iterator[int] = iter(range(len(names)))
        self.cancelled: set[int] = set()
        self.current: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    @property
    def done(self) -> int:
        """Number of jobs that are marked as done."""
        return self.marks[:].count(DONE)

    def begin(self, places: Iterable[int]) -> None:
        """Take these jobs for new, and have `places` yield them."""
        chosen = list(places)
        if len(chosen) == len(self):
            self.marks[:] = bytes(len(self))
        else:
            for place in chosen:
                self.marks[place] = NEW
        self.places = iter(chosen)


class RowQueue:
    """Base of a queue object whose jobs are rows in memory. A worker does them in lanes where it can.

    Attributes:
        rows: the jobs.
    """

    rows: Rows

    def begin_lanes(self) -> None:
        """Note that the worker takes the rows from now on."""

    def hand_over(self, place: int, job: Job) -> None:
        """Note that the job of a place is in the hands of the job runner, which tells its outcome to this queue."""
        self.rows.marks[place] = HANDED
