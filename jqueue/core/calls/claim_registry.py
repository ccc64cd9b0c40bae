"""The claims that a queue object handed out, so that a bare id can be fenced, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
ENDED_KEPT = 10_000

NONE_HELD: Mapping[int, HeldClaim] = {}


@dataclass(slots=True)
class HeldClaim:
    """A claim that was handed out and not yet ended here.

    Attributes:
        job_id: of the job.
        attempt: of the claim.
        timeout: seconds without a heartbeat after which the claim is stale.
        confirmed: time at which the store last confirmed it, on the registry's monotonic clock.
    """

    job_id: str
    attempt: int
    timeout: float
    confirmed: float

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
        self._held: OrderedDict[str, dict[int, HeldClaim]] = OrderedDict()
        self._ended: OrderedDict[Claim, HeldClaim | None] = OrderedDict()

    def note(self, operations: Sequence[Operation], outcome: Sequence[Any] | JQueueError) -> None:
        """Note the outcome that a caller gets: the result of each operation, or the error that undid all of them."""
        if isinstance(outcome, JQueueError):
            self.lose(outcome)
            return
        place = 0
        for operation in operations:
            result = outcome[place]
            place += 1  # noqa: SIM113 - `enumerate` costs more for one operation
            if isinstance(result, JQueueError):
                self.lose(result)
            else:
                operation.tell(self, result)

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
            attempts = self._held.get(reference, NONE_HELD)
            return Claim(reference, next(iter(attempts)) if len(attempts) == 1 else 0)
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
            job_id, attempt = job.id, job.attempt
            claim = HeldClaim(job_id, attempt, job.claim_timeout or 0.0, at)
            attempts = held.get(job_id)
            if attempts is None:
                held[job_id] = {attempt: claim}
            else:
                attempts[attempt] = claim
                held.move_to_end(job_id)
        while len(held) > CLAIMS_KEPT:
            held.popitem(last=False)

    def held(self, claim: Claim) -> HeldClaim | None:
        """Return the record of a claim; None if there is none."""
        return self._held.get(claim.job_id, {}).get(claim.attempt)

    def confirm(self, claims: Iterable[Claim]) -> None:
        """Note that the store confirmed these claims."""
        at = self._clock.monotonic()
        for claim in claims:
            held = self.held(claim)
            if held is not None:
                held.confirmed = at

    def end(self, claim: Claim) -> None:
        """Note that a claim was ended through this queue object, by an ack or a nack."""
        attempts = self._held.get(claim.job_id)
        self._ended[claim] = None if attempts is None else attempts.pop(claim.attempt, None)
        if attempts is not None and not attempts:
            del self._held[claim.job_id]
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)

    def reopen(self, operations: Iterable[Operation]) -> None:
        """Restore the claims that these operations ended: their caller was cancelled before it got the answer."""
        for operation in operations:
            claims = operation.references() if operation.ends_claims else ()
            for claim in claims:
                held = self._ended.pop(claim, None) if isinstance(claim, Claim) else None
                if held is not None:
                    self._held.setdefault(held.job_id, {})[held.attempt] = held

    def forget(self, claim: Claim) -> None:
        """Forget a claim."""
        attempts = self._held.get(claim.job_id)
        if attempts is not None:
            attempts.pop(claim.attempt, None)
            if not attempts:
                del self._held[claim.job_id]

    def was_ended(self, claim: Claim) -> bool:
        """True if this claim was ended through this queue object."""
        return claim in self._ended
