"""The header of a queue's object (everything but its jobs), opened for change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jqueue.domain.models import CommitRecord, KeyHold, QueueState, TransactionRecord
from jqueue.domain.ranges import Range
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, Usage
from jqueue.domain.segments import Segment

TABLES = ("finished", "holds", "entrypoints", "ranges", "recent", "schedules", "segments", "transactions")
"""Names of the tables of a state that are changed in place."""


class Header:
    """The fields of a `QueueState` except jobs and lines set aside. `last_sequence` is `committed_sequence` here.

    Args:
        state: the state that it takes them from. Its tables become the draft's, and are changed in place.
    """

    __slots__ = (
        "attempt_floor",
        "commits",
        "committed_sequence",
        "counters",
        "critical",
        "entrypoints",
        "evicted_through",
        "extra",
        "finished",
        "history",
        "holds",
        "queue",
        "ranges",
        "recent",
        "retired",
        "schedules",
        "segments",
        "settings",
        "transactions",
        "version",
        "workers",
    )

    def __init__(self, state: QueueState) -> None:
        tables: Any = state  # its tables are dicts, and ours from now on
        self.version = state.version
        self.queue = state.queue
        self.critical = state.critical
        self.commits: Mapping[str, CommitRecord] = state.commits
        self.evicted_through = state.evicted_through
        self.finished: dict[str, int] = tables.finished
        self.holds: dict[str, KeyHold] = tables.holds
        self.attempt_floor = state.attempt_floor
        self.committed_sequence = state.last_sequence
        self.settings: QueueSettings = state.settings
        self.entrypoints: dict[str, EntrypointRules] = tables.entrypoints
        self.recent: dict[str, tuple[Usage, ...]] = tables.recent
        self.schedules: dict[str, Schedule] = tables.schedules
        self.transactions: dict[str, TransactionRecord] = tables.transactions
        self.counters = state.counters
        self.workers = state.workers
        self.history = state.history
        self.segments: dict[str, Segment] = tables.segments
        self.ranges: dict[str, Range] = tables.ranges
        self.retired = state.retired
        self.extra = state.extra

    def restore(self, name: str, old: Any) -> None:
        """Restore the old value of a field: see `Journal`."""
        setattr(self, name, old)

    def values(self) -> dict[str, Any]:
        """Return the fields for a state, with copies of the tables; jobs and the last sequence number are left out."""
        tables = {name: dict(getattr(self, name)) for name in TABLES}
        return {
            "version": self.version,
            "queue": self.queue,
            "critical": self.critical,
            "commits": dict(self.commits),
            "evicted_through": self.evicted_through,
            "attempt_floor": self.attempt_floor,
            "settings": self.settings,
            "counters": self.counters,
            "workers": self.workers,
            "history": self.history,
            "retired": self.retired,
            "extra": self.extra,
            **tables,
        }
