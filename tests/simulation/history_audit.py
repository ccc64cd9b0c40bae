"""Checks the history of the queue: it has each transition of the chain once, and all can be read at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jqueue.domain.events import HistoryEvent, Places
from tests.simulation.chain import IN_PROGRESS, NOTHING, Fields, Version, attempt_of, status_of
from tests.simulation.history import Violation
from tests.simulation.people import OLD_PROGRAM
from tests.simulation.stored_segments import StoredRow, StoredSegment

HISTORY = 16
"""The number of the rule: the history has each transition once."""

Row = list[Any]


class HistoryAudit:
    """Checks the events in every step, and what a reader found at the end.

    Attributes:
        seen: number of events, and of the commits that dropped moved events from the outbox.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._committed: list[Row] = []

    def check(self, versions: Sequence[Version]) -> None:
        """Check the events of each step. A person, or jqueue 1.0.0, adds none."""
        before = NOTHING
        for after in versions:
            if after.by not in (None, OLD_PROGRAM):
                self.check_step(before, after)
            before = after

    def check_step(self, before: Version, after: Version) -> None:
        """Check the events of one step.

        Args:
            before: the version before it.
            after: the version that it made.
        """
        last = before.history.get("last", 0)
        kept = before.history.get("batches") or [[last + 1]]
        there = after.history.get("batches") or [[after.history.get("last", 0) + 1]]
        self.seen["outbox of the history moved"] += bool(before.history) and there[0][0] > kept[0][0]
        rows: list[Row] = [row for batch in after.history.get("batches", ()) if batch[0] > last for row in _rows(batch)]
        if [row[0] for row in rows] != list(range(last + 1, after.history.get("last", 0) + 1)):
            raise Violation(HISTORY, f"events {[row[0] for row in rows]} follow event {last}", version=after)
        if after.settings.get("history") is None:
            if rows:
                raise Violation(HISTORY, "the history is switched off, and has more events", version=after)
            return
        begins = not before.history or before.history.get("stopped")
        if begins and (not rows or rows[0][3] != "start"):
            raise Violation(HISTORY, "the history was switched on, and does not say so", version=after)
        self._committed += rows
        self.seen["event of the history"] += len(rows)
        self._check_transitions(rows, before, after)

    def _check_transitions(self, rows: list[Row], before: Version, after: Version) -> None:
        """Check that the events lead from one version to the next."""
        states = {job_id: status_of(job) for job_id, job in before.jobs.items()}
        claims, touched, placed = set(), set(), 0
        for row in rows:
            _, job_id, _, verb, old, new, attempt, _, jobs, places = row
            if job_id is None and not places:
                placed += jobs
                continue
            several = [(job_id, attempt)] if job_id is not None else self._jobs_in(row, before, after)
            for each, its_attempt in several:
                if states.get(each) != old:
                    what = f"event {row[0]} ({verb}) is of {each} as {old}, and it was {states.get(each)}"
                    raise Violation(HISTORY, what, version=after)
                states[each] = new
                touched.add(each)
                if verb == "dequeue":
                    claims.add((each, its_attempt))
        for job_id, job in after.jobs.items():
            if _is_claimed(before.jobs.get(job_id), job) and (job_id, attempt_of(job)) not in claims:
                raise Violation(HISTORY, f"{job_id} was claimed without an event", version=after)
        for job_id in (before.jobs.keys() & after.jobs.keys()) - touched:
            if _order_of(before.jobs[job_id]) != _order_of(after.jobs[job_id]):
                raise Violation(HISTORY, f"{job_id} was changed without an event", version=after)
        for job_id in states.keys() | after.jobs.keys():
            now = status_of(after.jobs[job_id]) if job_id in after.jobs else None
            if states.get(job_id) != now:
                if job_id not in states and now == "queued" and placed:
                    placed -= 1
                    continue
                what = f"{job_id} became {now}, and is {states.get(job_id)} by the events"
                raise Violation(HISTORY, what, version=after)
        if placed:
            raise Violation(HISTORY, f"{placed} jobs were added by an event, and are not there", version=after)

    def _jobs_in(self, row: Row, before: Version, after: Version) -> list[tuple[str, int]]:
        """Return the id and the attempt of each job of an event of rows."""
        self.seen["event of rows"] += 1
        rows = _rows_in(row[9], {**after.passing, **before.stored, **after.stored})
        if len(rows) != row[8] or any(each.job["entrypoint"] != row[2] for each in rows):
            what = f"event {row[0]} is of {row[8]} jobs of {row[2]}, and its rows are others"
            raise Violation(HISTORY, what, version=after)
        return [(each.job_id, each.job["attempt"] + row[6]) for each in rows]

    def check_end(self, read: Sequence[HistoryEvent] | None, versions: Sequence[Version]) -> None:
        """Check that a reader has found every event once, the newest first.

        Args:
            read: the events that it found; None if it did not read.
            versions: the chain.
        """
        if read is None:
            return
        found = [
            (each.number, each.job_id, each.verb, each.before, each.after, _time(each.at), _places(each))
            for each in read
        ]
        there = [
            (row[0], row[1], row[3], row[4], row[5], round(row[7], 3), row[9]) for row in reversed(self._committed)
        ]
        if found != there:
            wrong = [one for one, other in zip(found, there, strict=False) if one != other][:1]
            what = f"{len(there)} events were committed, and {len(found)} are in the history; the first wrong: {wrong}"
            raise Violation(HISTORY, what)


def _places(event: HistoryEvent) -> Places:
    return tuple((each.segment, each.spans) for each in event.rows)


def _rows_in(places: Places, stored: Mapping[str, StoredSegment]) -> list[StoredRow]:
    """Return the rows of an event."""
    if missing := {name for name, _ in places} - stored.keys():
        raise Violation(HISTORY, f"an event names the segment {min(missing)}, which is not there")
    return [
        stored[name].rows[number] for name, spans in places for first, last in spans for number in range(first, last)
    ]


def _is_claimed(old: Fields | None, new: Fields) -> bool:
    """True if a step has claimed a job."""
    return status_of(new) == IN_PROGRESS and (old is None or attempt_of(old) < attempt_of(new))


def _order_of(job: Fields) -> tuple[Any, Any]:
    """Return what an operator changes of a waiting job: its priority and its time."""
    return job["priority"], job.get("run_at")


def _time(moment: datetime) -> float:
    return round(moment.timestamp(), 3)


def _rows(batch: list[Any]) -> list[Row]:
    """Return the events of a batch.

    Each has its number, id, entrypoint, verb, status before and after, attempt, time, number of jobs, and rows.
    """
    first, count, at, kinds, rows = batch
    if len(rows) != count:
        raise Violation(HISTORY, f"the batch of event {first} has {len(rows)} events, and says {count}")
    found = []
    for number, row in enumerate(rows, first):
        kind, job_id, attempt, *rest = (*row, None, None)[: max(3, len(row))]
        entrypoint, verb, old, new, _ = (*kinds[kind], None, None, None)[:5]
        places = rest[5] if len(rest) > 5 else ()
        there = tuple((name, tuple(map(tuple, spans))) for name, spans in places)
        found.append([number, job_id, entrypoint, verb, old, new, attempt, at, rest[4] if len(rest) > 4 else 0, there])
    return found
