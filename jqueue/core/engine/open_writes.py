"""The writes that were sent, and the outcome of the requests that they carried.

A write that got any answer but a clean success stays open: it may have landed, or land later. Once its fate is known,
its requests get their outcomes if it landed, and can otherwise be sent again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jqueue.core.engine.requests import Outcome, Request
from jqueue.domain.commits import CommitId, Verdict

OPEN_WRITES_KEPT = 256
"""Number of writes of unknown fate that are remembered for callers that have left."""


@dataclass(frozen=True, slots=True, eq=False)
class SentWrite:
    """One write that was sent: the commit id that identifies it, and the outcome of each request if it landed."""

    commit: CommitId
    outcomes: tuple[tuple[Request, Outcome], ...]


def answer(outcomes: Sequence[tuple[Request, Outcome]]) -> None:
    """Deliver outcomes that needed no commit, or that one commit carried."""
    for request, outcome in outcomes:
        request.in_flight = False
        if request.waits_for_jobs:
            request.deliver(outcome)
        else:
            request.settle(outcome)


class OpenWrites:
    """The writes of one engine whose fate is unknown.

    Attributes:
        writes: these writes, the oldest first.
    """

    def __init__(self) -> None:
        self.writes: list[SentWrite] = []

    def add(self, sent: SentWrite) -> None:
        """Keep a write that got no clean answer."""
        self.writes.append(sent)
        for request, _ in sent.outcomes:
            request.open_writes += 1

    def close(self, verdicts: Mapping[SentWrite, Verdict], landed: SentWrite | None = None) -> None:
        """Close writes of known fate: deliver the outcomes if a write landed, and otherwise release its requests.

        Args:
            verdicts: the fate of writes that were open.
            landed: a write that was never open, as its answer was a clean success.
        """
        if verdicts:
            self.writes = [sent for sent in self.writes if sent not in verdicts]
            for sent in verdicts:
                for request, _ in sent.outcomes:
                    request.open_writes -= 1
        if landed is not None:
            answer(landed.outcomes)
        for sent, verdict in verdicts.items():
            if verdict is Verdict.LANDED:
                answer(sent.outcomes)
        for sent, verdict in verdicts.items():
            if verdict is not Verdict.LANDED:
                for request, _ in sent.outcomes:
                    request.release(verdict)

    def forget_old(self) -> None:
        """Drop the oldest writes that no caller waits for, as open writes pile up while none gets through."""
        old = [
            sent for sent in self.writes[:-OPEN_WRITES_KEPT] if not any(request.awaited for request, _ in sent.outcomes)
        ]
        if old:
            self.close(dict.fromkeys(old, Verdict.UNKNOWABLE))
