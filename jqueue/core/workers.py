"""The workers of one queue object, which report themselves with its commits, at least once in a `beat`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from math import inf

from jqueue.domain.header import BEAT, WorkerRecord

Describe = Callable[[float], WorkerRecord]
"""Returns the record of a worker at a time, in seconds since 1970."""

FIRST_BEAT = 2.0
"""Seconds after which a worker that has not committed reports itself. One that finds no job and ends does not."""

SOONEST = 0.1
"""Least number of seconds until a report."""

APART = 2.0
"""Seconds between the reports of two workers, or less if there are many. Workers that started together would go on to
report together, and the store would refuse all but one of these writes."""

SOONER = 0.25
"""Largest share of a beat by which the next report of a worker comes sooner if it would come with another's."""

SHARED_BEAT = 300.0
"""The beat of workers whose broker is found through a network, and of more than `CROWD` workers on a store that refuses
writes. With that of others, idle ones would make most of the commits."""

CROWD = 8


class Workers:
    """The workers that run on one queue object, by the id of their run.

    Attributes:
        present: describes each worker.
        stops: stops each worker. Called on the event loop, as often as its order to stop is read.
        left: runs of the workers that have left and whose records are still there.
    """

    def __init__(self) -> None:
        self.present: dict[str, Describe] = {}
        self.stops: dict[str, Callable[[], object]] = {}
        self._reported: set[str] = set()
        self.left: set[str] = set()
        self._next = inf

    def attend(self, run: str, describe: Describe, stop: Callable[[], object], now: float) -> None:
        """Add a worker at a time of the monotonic clock."""
        self.present[run], self.stops[run] = describe, stop
        self._next = min(self._next, now + FIRST_BEAT)

    def leave(self, run: str) -> None:
        """Remove a worker. The next commit removes its record."""
        self.present.pop(run, None)
        self.stops.pop(run, None)
        if run in self._reported:
            self.left.add(run)
        if not self.present:
            self._next = inf

    def are_due(self, now: float) -> bool:
        """Return True if records must be written or removed by a commit of their own."""
        return bool(self.left) or (bool(self.present) and now >= self._next)

    def until_due(self, now: float) -> float:
        """Return the seconds until `are_due`, or until a report that was due and not written is tried again.

        They are not too few for a timer, which may fire early: the caller would look again and again.
        """
        return max(SOONEST, self._next - now) if self._next > now else BEAT

    def records(self, at: float, beat: float = BEAT) -> dict[str, WorkerRecord | None]:
        """Return the records to write at a time, in seconds since 1970; None for a worker that has left."""
        return {run: describe(at).evolve(beat=beat) for run, describe in self.present.items()} | dict.fromkeys(
            self.left
        )

    def obey(self, records: Mapping[str, WorkerRecord]) -> None:
        """Stop the workers whose records say so."""
        self.stop(run for run in self.stops if run in records and records[run].stopping)

    def stop(self, runs: Iterable[str]) -> None:
        """Stop the workers of these runs that are still here. An error in one is the event loop's to log."""
        for run in runs:
            if run in self.stops:
                asyncio.get_running_loop().call_soon(self.stops[run])

    def beat_after(
        self, records: Mapping[str, WorkerRecord], at: float, beat: float, jitter: Callable[[float], float]
    ) -> float:
        """Return the seconds from a report to the next one.

        Args:
            records: the records of all workers.
            at: time of the report, in seconds since 1970.
            beat: the largest number of seconds.
            jitter: draws a number from zero to its argument.
        """
        others = [each for run, each in records.items() if run not in self.present and not each.is_lost(at)]
        apart = min(APART, beat / 4 / (len(others) + 1))
        since = [(at - each.at) % beat for each in others]
        is_near = any(min(seconds, beat - seconds) < apart for seconds in since)
        return beat - jitter(SOONER * beat) if is_near else beat

    def landed(self, records: Mapping[str, object], now: float, beat: float = BEAT) -> None:
        """Note that these records were committed, at a time of the monotonic clock, with this beat.

        A worker that left while its record was on its way has left a record behind.
        """
        gone = {run for run, record in records.items() if record is None}
        self._reported = (self._reported | records.keys()) - gone
        self.left = (self.left | (records.keys() - self.present.keys())) - gone
        self._next = now + beat if self.present else inf
