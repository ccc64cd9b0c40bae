"""What every operation is: a value, checked once, then applied to a draft as often as a commit has to be tried."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Claim, Job, QueueState


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
    find_claim: Callable[[Job | Claim | str], Claim]


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

    def job_ids(self) -> Sequence[str]:
        """The jobs that it is about, as far as they are known before it is done."""
        return ()

    def apply(self, state: QueueState, now: datetime) -> tuple[QueueState, Any]:
        """The transition on values: the next state, and the result. The version is the commit's business: it stays.

        Raises:
            JQueueError: the operation is refused.
        """
        draft = Draft(state)
        result = self.change(draft, now)
        return (draft.freeze() if draft.changed else state), result


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
