"""The operation that claims jobs: dequeue. It keeps the limits of the queue, and fires cron entries that are due."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence, Set
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, ClassVar, TypedDict

from msgspec import Meta
from msgspec.structs import replace

from jqueue.domain.draft import Draft
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import LARGEST, Count, Duration, GivenDuration
from jqueue.domain.job import IN_PROGRESS, Claim, JobRecord
from jqueue.domain.job_options import Option
from jqueue.domain.limits import check_integer, check_name, exact
from jqueue.domain.operations.base import GivenNames, Operation, Preparation
from jqueue.domain.operations.enqueue import drop_outlived
from jqueue.domain.operations.parents import end_gone_parents
from jqueue.domain.operations.rules import fire_due
from jqueue.domain.rules import KEY_SPANS, RatedKey, are_full, keys_over, with_claim
from jqueue.domain.transitions import CLAIM
from jqueue.domain.turns import note_turn


def sought_names(names: object) -> tuple[str, ...]:
    """Return one or several entrypoints as a tuple, each once.

    Any str is accepted, because jobs of 1.0.0 may have names that enqueue refuses.

    Raises:
        InvalidJobError: the value is neither a str nor several of them.
    """
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Sequence | Set) or not several or not all(isinstance(name, str) for name in several):
        raise InvalidJobError("entrypoint must be a str, a list of at least one str, or None for all")
    return tuple(dict.fromkeys(map(exact, several)))


class DequeueOptions(TypedDict, total=False):
    """Keyword options of `dequeue` for the jobs to claim, without the options for its own time."""

    batch_size: Annotated[int, Option("largest number of jobs to claim, at most `Limits.batch_size`.", default=1)]
    claim_timeout: Annotated[
        GivenDuration | None,
        Option("time that a claim lasts without a heartbeat; the queue's `stale_timeout` by default."),
    ]
    holder: Annotated[
        str | None,
        Option("name kept with the claims: who works on the jobs; the queue's `holder` by default.", check_name),
    ]


class Claims(Operation, frozen=True, kw_only=True):
    """Base of the operations that claim jobs.

    Attributes:
        claim_timeout: time that a claim lasts without a heartbeat; None means the queue's own.
        holder: name kept with the jobs while the claim lasts: who works on them. A restarted caller finds its claims
            by it. None: the queue object's own.
        through: claim only jobs whose `sequence` is not larger, which were enqueued before a certain moment.
    """

    claims_jobs = True
    is_batch: ClassVar[bool] = False
    """True if its caller does a job whose last workers were lost in a process of its own."""

    claim_timeout: Duration | None = None
    holder: str | None = None
    through: Count | None = None

    def completed(self, preparation: Preparation) -> dict[str, Any]:
        """Return the values of these fields in the prepared operation."""
        timeout = preparation.claim_timeout if self.claim_timeout is None else self.claim_timeout
        holder = preparation.holder() if self.holder is None else self.holder
        return {
            "claim_timeout": to_seconds("claim_timeout", timeout),
            "holder": None if holder is None else check_name("holder", holder, preparation.limits),
            "through": None if self.through is None else check_integer("through", self.through, 0, LARGEST),
        }

    def claims(self, result: list[Any]) -> Sequence[Claim]:
        """Return the claims of the jobs and of the leases."""
        return [each.claim for each in result]

    def tidy(self, draft: Draft, now: datetime) -> None:
        """Remove expired jobs, enqueue those of cron entries that are due, and forget keys if too many are counted."""
        draft.jobs.order.claim_for(self.holder, is_batch=self.is_batch)
        drop_outlived(draft, now)
        if draft.jobs.order.unseen:
            end_gone_parents(draft)
        header = draft.header
        if header.schedules:
            fire_due(draft, now)
        if are_full(header.recent_keys):
            for name, key in keys_over(header.recent_keys, header.entrypoints, now.timestamp()):
                draft.forget(header.recent_keys[name], key)


CALL_BYTES = 32 << 20
"""Bytes of payloads after which a broker claims no further jobs for a call: they must fit into its answer."""

CallName = Annotated[str, Meta(max_length=200)]


class Dequeue(Claims, frozen=True):
    """Claim ready jobs, by priority and then by commit order. Its result is the list of claimed jobs.

    Attributes:
        entrypoints: the entrypoints of the jobs: one name, several, or None for all.
        batch_size: largest number of jobs to claim.
        call: the call of another process for which a broker does it; kept with the claims.
    """

    hands_out_jobs = True

    entrypoints: GivenNames | None = None
    batch_size: Count = 1
    call: CallName | None = None

    def prepared(self, preparation: Preparation) -> Dequeue:
        """Return the operation, checked, with the entrypoints as a tuple and the timeout in seconds."""
        return Dequeue(
            None if self.entrypoints is None else sought_names(self.entrypoints),
            check_integer("batch_size", self.batch_size, 0, preparation.limits.batch_size),
            self.call,
            **self.completed(preparation),
        )

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield `claim_timeout` for a timeout other than the queue's own, and `holders` for `holder` or `through`."""
        if self.claim_timeout != claim_timeout:
            yield "claim_timeout"
        if self.holder is not None or self.through is not None:
            yield "holders"

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Remove expired jobs, enqueue the jobs of cron entries that are due, then claim."""
        self.tidy(draft, now)
        return self.claim(draft, now)

    def claim(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Claim ready jobs."""
        if self.through is None:
            return self.claim_next(draft, now, self.batch_size)
        with draft.jobs.order.only_through(self.through):
            return self.claim_next(draft, now, self.batch_size)

    def claim_next(self, draft: Draft, now: datetime, most: int) -> list[JobRecord]:
        """Claim the next jobs, at most a number of them."""
        assert self.entrypoints is None or isinstance(self.entrypoints, tuple)
        claimed, left = list[JobRecord](), math.inf if self.call is None else CALL_BYTES
        while len(claimed) < most and left > 0 and (ready := draft.jobs.order.take(self.entrypoints, now)) is not None:
            job = replace(
                ready,
                status=IN_PROGRESS,
                attempt=ready.attempt + 1,
                failures=ready.failures + 1,
                heartbeat_at=now,
                claim_timeout=self.claim_timeout,
                holder=self.holder,
                claim_call=self.call,
                claimed_at=None if self.holder is None else now,
                queued_at=None,
                progress=None,
            )
            draft.move(ready, CLAIM, job, IN_PROGRESS)
            if draft.header.turns:
                note_turn(draft, job.entrypoint, job.priority, job.fair_key, job.sequence)
            if draft.header.entrypoints:
                count_claims(draft, job.entrypoint, now, 1)
                if (rated := draft.jobs.order.rated_key(job)) is not None:
                    count_key(draft, rated, now)
            claimed.append(job)
            left -= len(job.payload)
        return claimed

    def search_key(self) -> Hashable | None:
        """Return what it looks for; None if it always finds nothing, or may find what another one would not."""
        return _SEARCHED(self) if self.batch_size else None


class NamedDequeue(Dequeue, frozen=True):
    """A dequeue whose caller repeats it under its `call`. If it has claimed jobs before, they are its result again."""

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Find the jobs that are in progress for the call, or else claim."""
        made = [draft.jobs[job_id] for job_id in draft.jobs.called.get(self.call or "", ())]
        return sorted(made, key=attrgetter("priority", "sequence")) or super().change(draft, now)

    def search_key(self) -> Hashable | None:
        """Return what it looks for: the jobs of the call, too."""
        return self.call if self.batch_size else None


_SEARCHED = attrgetter(*(name for name in Dequeue.__struct_fields__ if name not in ("batch_size", "call")))


def count_claims(draft: Draft, entrypoint: str, now: datetime, claims: int) -> None:
    """Note claims of jobs whose entrypoint may have a rate limit."""
    rules = draft.header.entrypoints.get(entrypoint)
    if rules is not None and rules.rate is not None and rules.per is not None:
        usage = with_claim(draft.header.recent.get(entrypoint, ()), now.timestamp(), rules.per, claims)
        draft.note(draft.header.recent, entrypoint, usage)


def count_key(draft: Draft, rated: RatedKey, now: datetime) -> None:
    """Note the claim of a job whose key has a rate limit."""
    (entrypoint, key), header = rated, draft.header
    usage, per = header.recent_keys, header.entrypoints[entrypoint].key_per
    if entrypoint not in usage:
        draft.note(usage, entrypoint, {})
    spans = with_claim(usage[entrypoint].get(key, ()), now.timestamp(), per or 0.0, parts=KEY_SPANS)
    draft.note(usage[entrypoint], key, spans)
