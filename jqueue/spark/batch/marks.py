"""Marks that say what became of each job of a partition, in memory that a task shares with its children.

A mark is there before the next instruction. So none is lost, whatever a handler does to its process, and most jobs need
nothing else: a job that is simply done costs two bytes, and no message. Every other outcome is a line in a file that
both processes have open.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator

import msgspec

from jqueue.spark.claims import Outcome

NEW, BEGUN, DONE, WITHHELD, ENDED, HANDED_BACK = range(6)
"""The states of a job. WITHHELD is done, with a result that is not kept. One that has ENDED has an outcome in the file.
"""

OVER, STUCK = 1, 2
"""The ends of a loop: by itself, or as handlers do not stop that hold all of its slots."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file: the outcome of a job, or why no more jobs are done."""

    outcome: Outcome | None = None
    failure: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


class Marks:
    """The marks of a partition, one for each place of a job.

    Args:
        jobs: number of jobs.

    Attributes:
        states: the state of each job, and behind them the end of the loop, if it has ended.
        due: time by which each job that has begun must have ended, on the monotonic clock.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        behind = -(-(jobs + 1) // 8) * 8
        self.states: mmap.mmap = mmap.mmap(-1, behind + 8 * jobs)
        self.due: memoryview[float] = memoryview(self.states)[behind:].cast("d")
        self._notes = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as this object

    def close(self) -> None:
        """Close the file of the outcomes."""
        self._notes.close()

    @property
    def end(self) -> int:
        """The end of the loop: OVER or STUCK; 0 if it goes on, or its process has ended early."""
        return self.states[self._jobs]

    @end.setter
    def end(self, end: int) -> None:
        self.states[self._jobs] = end

    def note(self, place: int, outcome: Outcome) -> None:
        """Note the outcome of a job that is not simply done."""
        self._notes.write(_encode(Note(outcome)) + b"\n")
        self.states[place] = ENDED

    def note_failure(self, why: str) -> None:
        """Note why no more jobs are done."""
        self._notes.write(_encode(Note(failure=why)) + b"\n")

    def outcomes(self) -> dict[str, Outcome]:
        """Return the outcomes that were noted, by the ids of jobs."""
        return {each.outcome.job_id: each.outcome for each in self._lines() if each.outcome is not None}

    def failure(self) -> str | None:
        """Return why no more jobs are done, if that was noted."""
        return next((each.failure for each in self._lines() if each.failure is not None), None)

    def _lines(self) -> Iterator[Note]:
        """Yield the notes. Behind bytes that a handler wrote, there is only a failure."""
        self._notes.seek(0)
        *lines, _ = self._notes.read().split(b"\n")  # a process may have ended amid the last line
        try:
            yield from map(_decode, lines)
        except (msgspec.MsgspecError, UnicodeError):
            yield Note(failure="a handler wrote to a file of jqueue")

    def places(self, state: int) -> list[int]:
        """Return the places of the jobs that have a state."""
        positions, place, wanted = [], -1, bytes([state])
        while (place := self.states.find(wanted, place + 1, self._jobs)) >= 0:
            positions.append(place)
        return positions
