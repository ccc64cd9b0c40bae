"""The calls of a history, indexed for the checks, and the error that reports a broken rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from jqueue.domain.models import Claim
from tests.simulation.chain import Version
from tests.simulation.history import Call


class Violation(AssertionError):
    """A rule was broken.

    Attributes:
        rule: number of the rule in docs/reference/protocol.md; 0 for liveness, 13 for lines that stand there twice, 15
            for counters, 16 for the history, 17 for objects, 19 for segments, 20 if a version or an answer is not what
            the model makes of the operations.
        index: place in the chain of the version that shows the violation; None if no version shows it.
        call: the call concerned; None if no single call is.
    """

    def __init__(self, rule: int, what: str, *, version: Version | None = None, call: Call | None = None) -> None:
        where = f" (version {version.number})" if version is not None else ""
        who = f"{call} by {call.process}: " if call is not None else ""
        super().__init__(f"{'liveness' if rule == 0 else f'rule {rule}'}: {who}{what}{where}")
        self.rule = rule
        self.index = version.index if version is not None else None
        self.call = call


class Calls:
    """The calls of a history, indexed by verb, and the heartbeats by claim."""

    def __init__(self, calls: Iterable[Call]) -> None:
        self.all = list(calls)
        self.beating: dict[Claim, list[Call]] = defaultdict(list)
        self.by_verb: dict[str, list[Call]] = defaultdict(list)
        for call in self.all:
            self.by_verb[call.verb].append(call)
            if call.verb in ("heartbeat", "heartbeat_many", "beat_range"):
                for claim in call.claims:
                    self.beating[claim].append(call)
