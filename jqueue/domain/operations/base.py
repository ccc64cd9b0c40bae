"""What every operation is: a value, checked once, then applied to a draft as often as a commit has to be tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, QueueState

JobReference = Job | Claim | str
"""How callers name a claim: the job as dequeued, its claim, or a bare id that the queue object handed out."""


class ClaimLog(Protocol):
    """A registry of claims, as operations see it: they tell it what their results say of claims."""

    def remember(self, jobs: Iterable[Job]) -> None:
        """Note that claims on these jobs were handed out."""

    def confirm(self, claims: Iterable[Claim]) -> None:
        """Note that the store confirmed these claims."""

    def end(self, claim: Claim) -> None:
        """Note that a claim was ended by its holder."""

    def lose(self, error: JQueueError) -> None:
        """Note the claim that an error names as lost, if it names one."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What an operation needs to become complete: the queue's settings, ids, and the claims that it handed out.

    Attributes:
        limits: what the queue accepts.
        claim_timeout: seconds that a claim lasts when the operation does not say.
        new_id: makes a job id.
        find_claim: turns a job, a claim or a bare id into a claim; raises ClaimLostError.
    """

    limits: Limits
    claim_timeout: float
    new_id: Callable[[], str]
    find_claim: Callable[[JobReference], Claim]


class Operation:
    """A change of the queue, as a value.

    `prepared` checks the arguments, once, before anything is sent. `change` is the transition: it may run several
    times, on other drafts, before one of its results is committed. It reads no clock and draws no lots.
    """

    __slots__ = ()

    claims_jobs: ClassVar[bool] = False
    """Whether it hands out claims: such operations come after all others of a commit, and after the sweep."""

    needs_room: ClassVar[bool] = True
    """Whether it waits for room in a full buffer: what keeps or ends a claim does not."""

    ends_claims: ClassVar[bool] = False
    """True if it ends the claims that it names."""

    arrives: ClassVar[bool] = False
    """True if its job comes from another queue, and keeps its id and what has become of it."""

    surveys: ClassVar[bool] = False
    """True if its result tells what there is, or what was done with all that there is."""

    always_needs: ClassVar[tuple[str, ...]] = ()
    """Names of the capabilities that it needs of a queue, whatever its arguments."""

    def prepared(self, preparation: Preparation) -> Operation:
        """The operation with its arguments checked and completed.

        Raises:
            InvalidJobError: an argument is wrong.
            ClaimLostError: it names a claim that the queue object cannot know.
        """
        return self

    def needs(self, claim_timeout: float) -> Iterable[str]:
        """Return the names of the capabilities (see `jqueue.ports.queue`) that the prepared operation needs.

        Args:
            claim_timeout: the queue's own in seconds, which needs no capability.
        """
        return self.always_needs

    def change(self, draft: Draft, now: datetime) -> Any:
        """Change the draft and return the result. A raised JQueueError means: refused; the caller rolls back."""
        raise NotImplementedError

    def search_key(self) -> Hashable | None:
        """Return what the prepared operation searches for; None if it does anything but search and claim.

        If an operation finds nothing, neither do those with an equal key that are applied after it in the same commit:
        they are not applied any more. So a key says all that a job must be, and an operation that has one makes no job
        ready. Its result is a list, empty if nothing was found.
        """
        return None

    def claims(self, result: Any) -> Sequence[Claim]:
        """The claims that a result of this operation hands out."""
        return ()

    def rest(self, claimed: int) -> Operation | None:
        """Return the operation for the rest, once it has claimed some of its jobs; None if it is not done in parts.

        Args:
            claimed: how many it has claimed.
        """
        return None

    def references(self) -> Sequence[JobReference]:
        """Return the jobs that it is about, as its caller named them; a job that it adds is not among them."""
        return ()

    def job_ids(self) -> Sequence[str]:
        """The jobs that it is about, as far as they are known before it is done."""
        return [_id_of(reference) for reference in self.references()]

    @property
    def keeps_place(self) -> bool:
        """True if a job whose claim it ends keeps its place among the others."""
        return False

    def tell(self, claims: ClaimLog, result: Any) -> None:
        """Tell a registry of claims what the result, which its caller gets now, says of claims.

        Args:
            claims: the registry.
            result: of this operation; no error.
        """

    def may_miss(self, result: Any) -> bool:
        """Return True if the result may be another one where jobs, or claims, are there that the draft misses.

        Args:
            result: of this operation; no error.
        """
        return self.surveys or (isinstance(result, list) and any(isinstance(entry, JQueueError) for entry in result))

    def apply(self, state: QueueState, now: datetime) -> tuple[QueueState, Any]:
        """The transition on values: the next state, and the result. The version is the commit's business: it stays.

        Raises:
            JQueueError: the operation is refused.
        """
        draft = Draft(state)
        result = self.change(draft, now)
        return (draft.freeze() if draft.changed else state), result


def _id_of(reference: JobReference) -> str:
    if isinstance(reference, str):
        return reference
    return reference.id if isinstance(reference, Job) else reference.job_id


def perform(operation: Operation, draft: Draft, now: datetime) -> Any:
    """Apply an operation to a draft: its result, or the error that refused it, with nothing changed."""
    savepoint = draft.savepoint()
    try:
        return operation.change(draft, now)
    except JQueueError as error:
        draft.rollback(savepoint)
        return error
    except Exception as error:  # a mistake of ours must not fail the other operations of the commit
        draft.rollback(savepoint)
        refusal = JQueueError(f"{type(operation).__name__} failed inside jqueue: {type(error).__name__}")
        refusal.__cause__ = error
        return refusal
