"""Jobs out: dequeue, under the limits of the queue, with the cron entries that are due."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import KW_ONLY, dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from typing import Annotated, ClassVar, TypedDict

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import Option
from jqueue.domain.limits import Limits, check_integer, check_name
from jqueue.domain.models import LARGEST, Claim, Job, JobStatus
from jqueue.domain.operations.base import ClaimLog, Operation, Preparation
from jqueue.domain.operations.jobs import drop_outlived
from jqueue.domain.operations.schedules import fire_due
from jqueue.domain.option_names import names_its_options
from jqueue.domain.rates import with_claim
from jqueue.domain.transitions import Verb


def sought_names(names: object) -> tuple[str, ...]:
    """One entrypoint, or several, each once. Any str will do: jobs of 1.0.0 may have names that enqueue refuses.

    Raises:
        InvalidJobError: it is neither.
    """
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Sequence | Set) or not several or not all(isinstance(name, str) for name in several):
        raise InvalidJobError("entrypoint must be a str, several of them, or None for all")
    return tuple(dict.fromkeys(several))


class DequeueOptions(TypedDict, total=False):
    """What `dequeue` takes by name of the jobs to claim, besides how long it may take."""

    batch_size: Annotated[int, Option("how many at the most.", default=1)]
    claim_timeout: Annotated[
        Duration | None, Option("how long a claim lasts without a heartbeat; the queue's `stale_timeout` by default.")
    ]


@names_its_options
@dataclass(frozen=True, slots=True)
class Dequeue(Operation):
    """Claim ready jobs, by priority and then by commit order. Its result is the list of claimed jobs.

    Attributes:
        entrypoints: whose jobs; one name, several, or None for all.
        batch_size: how many at the most.
        claim_timeout: how long a claim lasts without a heartbeat; None means the queue's own.
        holder: kept with the jobs as long as the claim lasts, so that who lost its memory finds what it had claimed.
        through: only jobs whose `sequence` is not larger: those that were there at some moment.
        enqueue_bytes: cron entries enqueue nothing while the jobs take more than that.
    """

    claims_jobs: ClassVar[bool] = True

    entrypoints: str | Sequence[str] | None = None
    _: KW_ONLY
    batch_size: int = 1
    claim_timeout: Duration | None = None
    holder: str | None = None
    through: int | None = None
    enqueue_bytes: int = Limits().enqueue_bytes

    def prepared(self, preparation: Preparation) -> Dequeue:
        """Checked, with the entrypoints as a tuple and the timeout in seconds."""
        timeout = preparation.claim_timeout if self.claim_timeout is None else self.claim_timeout
        return Dequeue(
            None if self.entrypoints is None else sought_names(self.entrypoints),
            batch_size=check_integer("batch_size", self.batch_size, 0, preparation.limits.batch_size),
            claim_timeout=to_seconds("claim_timeout", timeout),
            holder=None if self.holder is None else check_name("holder", self.holder, preparation.limits),
            through=None if self.through is None else check_integer("through", self.through, 0, LARGEST),
            enqueue_bytes=preparation.limits.enqueue_bytes,
        )

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """`claim_timeout` for a timeout that is not the queue's own; `holders` for a holder or a bound."""
        if self.claim_timeout != claim_timeout:
            yield "claim_timeout"
        if self.holder is not None or self.through is not None:
            yield "holders"

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Remove what has expired, enqueue what cron entries say, then claim."""
        self.tidy(draft, now)
        return self.claim(draft, now)

    def tidy(self, draft: Draft, now: datetime) -> None:
        """Remove what has expired, and enqueue what cron entries say."""
        drop_outlived(draft, now)
        fire_due(draft, now, self.enqueue_bytes)

    def claim(self, draft: Draft, now: datetime) -> list[Job]:
        """Claim what is ready."""
        if self.through is None:
            return self._claim(draft, now)
        with draft.jobs.order.only_through(self.through):
            return self._claim(draft, now)

    def _claim(self, draft: Draft, now: datetime) -> list[Job]:
        assert self.entrypoints is None or isinstance(self.entrypoints, tuple)
        claimed: list[Job] = []
        while len(claimed) < self.batch_size and (ready := draft.take_ready(self.entrypoints, now)) is not None:
            job = ready.evolve(
                status=JobStatus.IN_PROGRESS,
                attempt=ready.attempt + 1,
                failures=ready.failures + 1,
                heartbeat_at=now,
                claim_timeout=self.claim_timeout,
                holder=self.holder,
            )
            draft.move(ready, Verb.CLAIM, job, JobStatus.IN_PROGRESS)
            if draft.header.entrypoints:
                _count_claim(draft, job.entrypoint, now)
            claimed.append(job)
        return claimed

    def search_key(self) -> Hashable | None:
        """Every field but the number of jobs; None if it asks for no job, and so finds none."""
        return _SEARCHED(self) if self.batch_size else None

    def claims(self, result: list[Job]) -> Sequence[Claim]:
        """One for each job."""
        return [job.claim for job in result]

    def rest(self, claimed: int) -> Dequeue:
        """As many as are left."""
        return replace(self, batch_size=self.batch_size - claimed)

    def tell(self, claims: ClaimLog, result: list[Job]) -> None:
        """These are handed out."""
        if result:
            claims.remember(result)

    def may_miss(self, result: list[Job]) -> bool:
        """True if they are fewer than were asked for."""
        return len(result) < self.batch_size


_SEARCHED = attrgetter(*(field.name for field in fields(Dequeue) if field.name != "batch_size"))


def _count_claim(draft: Draft, entrypoint: str, now: datetime) -> None:
    """Note a claim that counts against a rate limit."""
    rules = draft.header.entrypoints.get(entrypoint)
    if rules is not None and rules.rate is not None and rules.per is not None:
        usage = with_claim(draft.header.recent.get(entrypoint, ()), now.timestamp(), rules.per)
        draft.note(draft.header.recent, entrypoint, usage)
