"""The claims that a queue object handed out, so that a bare id can be fenced, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JQueueError,
)
from jqueue.domain.models import Claim, Job
from jqueue.domain.operations import JobReference, Operation
from jqueue.ports.clock import Clock
from jqueue.runtime.system import SystemClock

CLAIMS_KEPT = 100_000
"""Number of claims that are remembered at least."""

ENDED_KEPT = 10_000
"""Number of ended claims that are remembered at least."""

OLDER_KEPT = 8
"""Number of earlier claims on one job that are remembered."""


@dataclass(slots=True)
class HeldClaim:
    """A claim that was handed out and not yet ended here.

    Attributes:
        job_id: of the job.
        attempt: of the claim.
        timeout: seconds without a heartbeat after which the claim is stale.
        confirmed: time at which the store last confirmed it, on the registry's monotonic clock.
        older: an earlier claim on the same job that was not ended here either; None in nearly all cases.
    """

    job_id: str
    attempt: int
    timeout: float
    confirmed: float
    older: HeldClaim | None = None

    @property
    def claim(self) -> Claim:
        """The claim."""
        return Claim(self.job_id, self.attempt)


class ClaimRegistry:
    """Remembers claims until they are ended through the same queue object.

    It is bounded, and drops the oldest first.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._held: dict[str, HeldClaim] = {}  # the newest claim of each job
        self._ended: dict[tuple[str, int], tuple[float, float] | None] = {}
        """The `timeout` and `confirmed` of each; None if it was unknown. Python's garbage collector skips tuples of
        texts and numbers; records and claims would be a third of what it looks at in a busy broker."""

    def note(self, operations: Sequence[Operation], outcome: Sequence[Any] | JQueueError) -> None:
        """Note the outcome that a caller gets: the result of each operation, or the error that undid all of them."""
        if outcome.__class__ is not list:
            assert isinstance(outcome, JQueueError)
            self.lose(outcome)
            return
        place = 0
        for result in outcome:
            if isinstance(result, JQueueError):
                self.lose(result)
            else:
                operations[place].tell(self, result)
            place += 1  # noqa: SIM113 - `enumerate` costs more for one operation

    def lose(self, error: JQueueError) -> None:
        """Forget the claim that an error reports as lost."""
        if isinstance(error, JobCancelledError):
            return  # the claim is still held
        if isinstance(error, ClaimLostError) and error.attempt is not None:
            claim = Claim(error.job_id, error.attempt)
            error.ended_here = self.was_ended(claim)
            self.forget(claim)

    def find(self, reference: JobReference) -> Claim:
        """Return the claim that a caller refers to.

        A bare id with no claim or several becomes attempt 0, which no claim has.

        Raises:
            InvalidJobError: the reference is not a job, a claim or an id.
        """
        if isinstance(reference, str):
            held = self._held.get(reference)
            attempt = 0 if held is None or held.older is not None else held.attempt
            return tuple.__new__(Claim, (reference, attempt))  # as `Claim(...)`, without a call of a Python function
        if isinstance(reference, Job):
            return Claim(reference.id, reference.attempt)
        if isinstance(reference, Claim):
            kinds = [type(field) for field in reference]
            if not issubclass(kinds[0], str) or kinds[1] is not int:
                said = ", ".join(kind.__name__ for kind in kinds)
                raise InvalidJobError(f"a Claim takes a job id (str) and an attempt (int), got Claim({said})")
            return reference
        raise InvalidJobError(f"pass a Job, its claim or its id, got {type(reference).__name__}")

    def remember(self, jobs: Iterable[Job]) -> None:
        """Note that claims on these jobs were handed out."""
        held, at = self._held, self._clock.monotonic()
        for job in jobs:
            values = job.__dict__  # see `fields_of`
            job_id, attempt = values["id"], values["attempt"]
            claim = HeldClaim(job_id, attempt, values["claim_timeout"] or 0.0, at)
            older = held.pop(job_id, None)
            held[job_id] = claim
            if older is not None:
                claim.older = _without(older, attempt)
                _cut(claim)
        if len(held) > CLAIMS_KEPT + CLAIMS_KEPT // 4:
            _drop_oldest(held, CLAIMS_KEPT)

    def held(self, claim: Claim) -> HeldClaim | None:
        """Return the record of a claim; None if there is none."""
        held = self._held.get(claim.job_id)
        while held is not None and held.attempt != claim.attempt:
            held = held.older
        return held

    def confirm(self, claims: Iterable[Claim]) -> None:
        """Note that the store confirmed these claims."""
        at = self._clock.monotonic()
        for claim in claims:
            held = self.held(claim)
            if held is not None:
                held.confirmed = at

    def end(self, claim: Claim) -> None:
        """Note that a claim was ended through this queue object, by an ack or a nack."""
        ended, (job_id, attempt) = self._ended, claim
        held = self._held.get(job_id)
        if held is not None and held.attempt == attempt and held.older is None:
            del self._held[job_id]  # as `forget` does
        else:
            held = self.forget(claim)
        ended[job_id, attempt] = None if held is None else (held.timeout, held.confirmed)
        if len(ended) > ENDED_KEPT + ENDED_KEPT // 4:
            _drop_oldest(ended, ENDED_KEPT)

    def reopen(self, operations: Iterable[Operation]) -> None:
        """Restore the claims that these operations ended: their caller was cancelled before it got the answer."""
        for operation in operations:
            claims = operation.references() if operation.ends_claims else ()
            for claim in claims:
                times = self._ended.pop((*claim,), None) if isinstance(claim, Claim) else None
                if isinstance(claim, Claim) and times is not None:
                    held = HeldClaim(claim.job_id, claim.attempt, *times)
                    newest = self._held.setdefault(held.job_id, held)
                    if newest is not held:
                        held.older, newest.older = _without(newest.older, held.attempt), held

    def forget(self, claim: Claim) -> HeldClaim | None:
        """Forget a claim, and return its record; None if there was none."""
        job_id, attempt = claim
        newest = self._held.pop(job_id, None)
        if newest is None or (newest.attempt == attempt and newest.older is None):
            return newest
        self._held[job_id] = newest
        found = self.held(claim)
        rest = _without(newest, attempt)
        if rest is None:
            del self._held[job_id]
        else:
            self._held[job_id] = rest
        if found is not None:
            found.older = None
        return found

    def was_ended(self, claim: Claim) -> bool:
        """True if this claim was ended through this queue object."""
        return (*claim,) in self._ended


def _without(newest: HeldClaim | None, attempt: int) -> HeldClaim | None:
    """Return a chain of claims on one job, the newest first, without the claim of an attempt."""
    if newest is None or newest.attempt == attempt:
        return None if newest is None else newest.older
    before = newest
    while before.older is not None and before.older.attempt != attempt:
        before = before.older
    if before.older is not None:
        before.older = before.older.older
    return newest


def _cut(newest: HeldClaim) -> None:
    """Drop the oldest claims of a chain that is too long: its holder never ends one, and claims it again and again."""
    last: HeldClaim | None = newest
    for _ in range(OLDER_KEPT):
        last = None if last is None else last.older
    if last is not None:
        last.older = None


def _drop_oldest(table: dict[Any, Any], kept: int) -> None:
    """Drop the oldest entries of a table. It is called for many of them at once, as it looks at all dropped before."""
    for key in list(islice(table, len(table) - kept)):
        del table[key]
