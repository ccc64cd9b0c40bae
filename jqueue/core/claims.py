"""The claims that a queue object handed out, so that a bare id can be fenced, too."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, cast

import msgspec

from jqueue.domain.errors import (
    ClaimLostError,
    InvalidJobError,
    JobCancelledError,
    JQueueError,
)
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import exact
from jqueue.domain.models import Job
from jqueue.domain.operations.base import JobReference, Operation
from jqueue.domain.operations.ends import Heartbeat
from jqueue.ports.clock import Clock
from jqueue.runtime.system import SystemClock

CLAIMS_KEPT = 100_000
"""Number of claims that are remembered at least."""

ENDED_KEPT = 10_000
"""Number of ended claims that are remembered at least."""

OLDER_KEPT = 8
"""Number of earlier claims on one job that are remembered."""

Entry = tuple[int, float, float | None, Any]
"""A claim on a job: its attempt, its timeout, the time at which the store last confirmed it (None if it was not handed
out here), and the entry of an earlier claim on the same job (None in nearly all cases).

Python's garbage collector skips tuples of numbers, and a busy broker has ten thousand of these."""


NOT_HELD: Entry = (0, 0.0, None, None)


class HeldClaim(msgspec.Struct, frozen=True):
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

    Attributes:
        saw_objects: True once a job was handed out whose payload is in an object of its own.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._held: dict[str, Entry] = {}  # by the id of the job
        self._ended: dict[str, Entry] = {}
        self.saw_objects: bool = False

    def note(self, operation: Operation, result: Any) -> None:
        """Note the result of an operation, or its error, which its caller is about to get."""
        if isinstance(result, JQueueError):
            self.lose(result)
        elif operation.ends_claims:
            for claim in operation.references():
                if isinstance(claim, Claim):
                    self.end(claim)
        elif operation.hands_out_jobs and operation.claims_jobs:
            self.remember(result)
        elif isinstance(operation, Heartbeat):
            for error in result:
                self.lose(error)
            lost = {error.job_id for error in result if not isinstance(error, JobCancelledError)}
            claims = (claim for claim in operation.jobs if isinstance(claim, Claim))
            self.confirm(claim for claim in claims if claim.job_id not in lost)

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
            attempt = 0 if held is None or held[3] is not None else held[0]
            return tuple.__new__(Claim, (exact(reference), attempt))  # as `Claim(...)`, without a Python function
        if isinstance(reference, Job):
            return Claim(reference.id, reference.attempt)
        if isinstance(reference, Claim):
            job_id, attempt = cast(tuple[Any, Any], reference)
            if not isinstance(job_id, str) or not isinstance(attempt, int) or isinstance(attempt, bool):
                said = ", ".join(type(field).__name__ for field in reference)
                raise InvalidJobError(f"a Claim takes a job id (str) and an attempt (int), got Claim({said})")
            return Claim(exact(job_id), int(attempt))
        raise InvalidJobError(f"pass a Job, its claim or its id, got {type(reference).__name__}")

    def remember(self, result: Iterable[Any]) -> None:
        """Note that claims on the jobs of a result were handed out."""
        held, at = self._held, self._clock.monotonic()
        for job in result:
            if not isinstance(job, JobRecord):
                continue
            job_id, attempt = job.id, job.attempt
            older = held.pop(job_id, None)
            if older is not None:
                older = _cut(_without(older, attempt), OLDER_KEPT)
            held[job_id] = (attempt, job.claim_timeout or 0.0, at, older)
            if job.payload_object is not None:
                self.saw_objects = True
        if len(held) > CLAIMS_KEPT + CLAIMS_KEPT // 4:
            _drop_oldest(held, CLAIMS_KEPT)

    def held(self, reference: JobReference) -> HeldClaim | None:
        """Return the record of a claim; None if there is none. Errors are as for `find`."""
        claim = self.find(reference)
        entry = _find(self._held.get(claim.job_id), claim.attempt)
        return None if entry is None or entry[2] is None else HeldClaim(claim.job_id, entry[0], entry[1], entry[2])

    def confirm(self, claims: Iterable[Claim]) -> None:
        """Note that the store confirmed these claims."""
        at = self._clock.monotonic()
        for job_id, attempt in claims:
            newest = self._held.get(job_id)
            if newest is not None:
                self._held[job_id] = _confirmed(newest, attempt, at)

    def end(self, claim: Claim) -> None:
        """Note that a claim was ended through this queue object, by an ack or a nack."""
        held, ended, (job_id, attempt) = self._held, self._ended, claim
        entry = held.pop(job_id, None)
        if entry is not None and (entry[0] != attempt or entry[3] is not None):  # there are others
            held[job_id] = entry
            entry = self.forget(claim)
        older = ended.pop(job_id, None)
        if entry is None or older is not None:
            _, timeout, confirmed, _ = entry or NOT_HELD
            entry = (attempt, timeout, confirmed, _cut(_without(older, attempt), OLDER_KEPT))
        ended[job_id] = entry
        if len(ended) > ENDED_KEPT + ENDED_KEPT // 4:
            _drop_oldest(ended, ENDED_KEPT)

    def reopen(self, operations: Iterable[Operation]) -> None:
        """Restore the claims that these operations ended: their caller was cancelled before it got the answer."""
        for operation in operations:
            claims = operation.references() if operation.ends_claims else ()
            for claim in claims:
                if not isinstance(claim, Claim):
                    continue
                ended = _take(self._ended, claim)
                if ended is not None and ended[2] is not None:
                    newest = self._held.get(claim.job_id)
                    self._held[claim.job_id] = ended if newest is None else _beside(newest, ended)

    def forget(self, claim: Claim) -> Entry | None:
        """Forget a claim, and return its entry without earlier ones; None if there was none."""
        return _take(self._held, claim)

    def was_ended(self, claim: Claim) -> bool:
        """True if this claim was ended through this queue object."""
        return _find(self._ended.get(claim.job_id), claim.attempt) is not None


def _find(newest: Entry | None, attempt: int) -> Entry | None:
    """Return the entry of an attempt, among those of one job."""
    while newest is not None and newest[0] != attempt:
        newest = newest[3]
    return newest


def _without(newest: Entry | None, attempt: int) -> Entry | None:
    """Return the entries of one job, the newest first, without that of an attempt."""
    if newest is None or newest[0] == attempt:
        return None if newest is None else newest[3]
    return (*newest[:3], _without(newest[3], attempt))


def _confirmed(newest: Entry, attempt: int, at: float) -> Entry:
    """Return the entries of one job, with that of an attempt confirmed at this time."""
    if newest[0] == attempt:
        return (attempt, newest[1], at, newest[3])
    return newest if newest[3] is None else (*newest[:3], _confirmed(newest[3], attempt, at))


def _beside(newest: Entry, other: Entry) -> Entry:
    """Return the entries of one job, with another one behind the newest."""
    return (*newest[:3], (*other[:3], _without(newest[3], other[0])))


def _cut(newest: Entry | None, limit: int) -> Entry | None:
    """Drop the oldest entries of too many: their holder never ends one, and claims the job again and again."""
    if newest is None or newest[3] is None or limit == 0:
        return None if limit == 0 else newest
    return (*newest[:3], _cut(newest[3], limit - 1))


def _take(table: dict[str, Entry], claim: Claim) -> Entry | None:
    """Remove the entry of a claim from a table, and return it without the others of its job."""
    job_id, attempt = claim
    newest = table.pop(job_id, None)
    if newest is None or (newest[0] == attempt and newest[3] is None):
        return newest
    entry, rest = _find(newest, attempt), _without(newest, attempt)
    if rest is not None:
        table[job_id] = rest
    return None if entry is None else (*entry[:3], None)


def _drop_oldest(table: dict[Any, Any], limit: int) -> None:
    """Drop the oldest entries of a table. It is called for many of them at once, as it looks at all dropped before."""
    for key in list(islice(table, len(table) - limit)):
        del table[key]
