"""A worker's run in numbers: while it lasts, and its result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import get_args

from jqueue.worker.retries import OutcomeKind
from jqueue.worker.run_state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Number of jobs that a worker claimed, by outcome. A job counts each time it was claimed.

    Attributes:
        succeeded: finished, and acked.
        failed: failed, and will be tried again.
        dead: failed for the last time, or discarded.
        snoozed: put off by their handler.
        handed_back: given back unharmed when the worker stopped.
        cancelled: cancelled while they were in progress.
        lost: their claim was lost before their outcome was in the queue.
        stuck: handlers that still went on when the worker ended, although they were told to stop. Their jobs are
            also counted above.
    """

    succeeded: int = 0
    failed: int = 0
    dead: int = 0
    snoozed: int = 0
    handed_back: int = 0
    cancelled: int = 0
    lost: int = 0
    stuck: int = 0

    @property
    def total(self) -> int:
        """Number of jobs in all."""
        return sum(getattr(self, field.name) for field in fields(self) if field.name != "stuck")

    def __str__(self) -> str:
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no jobs"


def report_of(counts: Counter[OutcomeKind], stuck: int = 0) -> RunReport:
    """Return the report of these counts, with the number of handlers that go on."""
    return RunReport(**{str(kind): count for kind, count in counts.items()}, stuck=stuck)


class Figures:
    """The figures of one run of a worker, for its metrics.

    Args:
        name: name of the worker.
        state: the state of the run.
    """

    def __init__(self, name: str, state: RunState) -> None:
        self.name = name
        self._state = state

    @property
    def running(self) -> int:
        """Number of handlers that run."""
        return len(self._state.running)

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of jobs so far, by outcome."""
        return {kind: self._state.counts[kind] for kind in get_args(OutcomeKind)}
