"""The claims that a queue object handed out, so that a bare id can be fenced too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Claim, Job

CLAIMS_KEPT = 100_000
ENDED_KEPT = 10_000


@dataclass(slots=True)
class HeldClaim:
    """A claim handed out and not yet ended here.

    Attributes:
        claim: the claim.
        timeout: seconds without a heartbeat after which it is stale.
        confirmed: when the store last confirmed it, on the clock of whoever remembers.
    """

    claim: Claim
    timeout: float
    confirmed: float


class ClaimRegistry:
    """Remembers claims handed out, until they are ended through the same queue object. Bounded: the oldest go first."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, dict[int, HeldClaim]] = OrderedDict()
        self._ended: OrderedDict[Claim, None] = OrderedDict()

    def find(self, reference: Job | Claim | str) -> Claim:
        """The claim that a caller means. A bare id with no claim, or several, becomes attempt 0: nobody's claim.

        Raises:
            InvalidJobError: it is none of the three.
        """
        if isinstance(reference, Job):
            return reference.claim
        if isinstance(reference, Claim):
            kinds = [type(field) for field in reference]
            if not issubclass(kinds[0], str) or kinds[1] is not int:
                said = ", ".join(kind.__name__ for kind in kinds)
                raise InvalidJobError(f"a claim is a job's id and the number of its attempt, got Claim({said})")
            return reference
        if not isinstance(reference, str):
            raise InvalidJobError(f"a Job, its claim or its id is needed, got {type(reference).__name__}")
        attempts = self._held.get(reference, {})
        return Claim(reference, next(iter(attempts)) if len(attempts) == 1 else 0)

    def remember(self, jobs: Iterable[Job], at: float) -> None:
        """Claims were handed out."""
        for job in jobs:
            self._held.setdefault(job.id, {})[job.attempt] = HeldClaim(job.claim, job.claim_timeout or 0.0, at)
            self._held.move_to_end(job.id)
        while len(self._held) > CLAIMS_KEPT:
            self._held.popitem(last=False)

    def held(self, claim: Claim) -> HeldClaim | None:
        """What is remembered of a claim; None if nothing is."""
        return self._held.get(claim.job_id, {}).get(claim.attempt)

    def confirm(self, claim: Claim, at: float) -> None:
        """The store confirmed a claim."""
        held = self.held(claim)
        if held is not None:
            held.confirmed = at

    def end(self, claim: Claim) -> None:
        """A claim was ended through this queue object, by an ack or a nack."""
        self.forget(claim)
        self._ended[claim] = None
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)

    def forget(self, claim: Claim) -> None:
        """A claim was found to be lost: its holder knows."""
        attempts = self._held.get(claim.job_id)
        if attempts is not None:
            attempts.pop(claim.attempt, None)
            if not attempts:
                del self._held[claim.job_id]

    def was_ended(self, claim: Claim) -> bool:
        """Whether this very claim was ended through this queue object."""
        return claim in self._ended
