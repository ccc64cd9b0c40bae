"""Records what each process is about to write, and what it answers without a write: the operations, in order."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from jqueue.domain.operations import Fence, HandBack, Sweep
from jqueue.ports.observer import AppliedCall, AppliedCalls, LandedCommit, Observer
from tests.simulation.history import CURRENT_CALL, Call


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """Calls that one process has applied together.

    Attributes:
        process: its name.
        at: the time, in seconds of the simulation.
        applied: the operations with their outcomes.
        calls: the call to which each belongs; None for what the queue object does by itself.
    """

    process: str
    at: float
    applied: AppliedCalls
    calls: tuple[Call | None, ...]


class Recorder(Observer):
    """Records what one queue object applies.

    Args:
        process: name of the process.
        records: gets the records.

    Attributes:
        recognised: commits recognised after an answer that was not a clean success.
    """

    def __init__(self, process: str, records: list[Record]) -> None:
        self.recognised = 0
        self._process = process
        self._records = records

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        self.recognised += commit.recognised

    def applied(self, calls: AppliedCalls) -> None:
        """See `Observer`."""
        made = tuple(map(_call_of, calls.calls))
        self._records.append(Record(self._process, asyncio.get_running_loop().time(), calls, made))


def _call_of(applied: AppliedCall) -> Call | None:
    by_itself = all(isinstance(operation, Fence | HandBack | Sweep) for operation in applied.operations)
    return None if by_itself or applied.context is None else applied.context.get(CURRENT_CALL)
