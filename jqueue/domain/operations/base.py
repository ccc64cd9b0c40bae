"""The base of every operation: a record, checked once, then applied to a draft at each try of a commit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args, get_type_hints

import msgspec

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError, JQueueError, UnknownOutcomeError
from jqueue.domain.groups import count_members
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, Claim, JobRecord, StoredObject
from jqueue.domain.large_values import LargeValue, PayloadSource
from jqueue.domain.limits import Limits, check_name, cut_error
from jqueue.domain.models import AnyJob, Job, QueueState, for_callers
from jqueue.domain.printable import printable
from jqueue.domain.segment_rows import RowsMissingError, Wanted

JobReference = Job | Claim | str
"""A claim as callers name it: the dequeued job, its claim, or the bare id of a job that the queue object handed out."""

if TYPE_CHECKING:  # a field as callers give it; when the operation is prepared, it has the type below, and can travel
    GivenClaim = JobReference
    GivenError = BaseException | str
    GivenJob = AnyJob
    GivenNames = str | Sequence[str]
    GivenPayload = PayloadSource
else:
    GivenClaim, GivenError, GivenJob, GivenPayload = Claim, str, JobRecord, bytes
    GivenNames = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


ASKED_BYTES = 100
"""Size of the longest `asked_by`: the name, for the history, of a person or program that orders an operation."""


def asker(name: str) -> str:
    """Return the name of a person or program as the history keeps it: printable, and cut."""
    return cut_error(printable(str(name)), ASKED_BYTES)


class Preparation(msgspec.Struct, frozen=True):
    """Values and functions of a queue object that complete an operation's arguments.

    Attributes:
        limits: the size limits of the queue object.
        claim_timeout: seconds that a claim lasts if the operation does not say.
        new_id: returns a new job id.
        find_claim: turns a job, a claim or a bare id into a claim; raises ClaimLostError.
        holder: returns the name that claims keep if the operation gives none; None: they keep none.
        object_bytes: number of bytes above which a payload or a result gets an object of its own; None: none does.
    """

    limits: Limits
    claim_timeout: float
    new_id: Callable[[], str]
    find_claim: Callable[[JobReference], Claim]
    holder: Callable[[], str | None] = lambda: None
    object_bytes: int | None = None


class Operation(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """A change of the queue, as a record.

    `prepared` checks and completes the arguments, once, before anything is sent. Prepared, it is nothing but values,
    and can travel: see `jqueue.domain.operations.codec`. `change` is the transition: it may run several times, on
    different drafts, before one of its results is committed. It reads no clock and uses no randomness.
    """

    claims_jobs: ClassVar[bool] = False
    """True if it hands out claims, or must come last for another reason: after the other operations and the sweep."""

    hands_out_jobs: ClassVar[bool] = False
    """True if its result is a list of claimed jobs for their holder, who needs their payloads."""

    needs_space: ClassVar[bool] = True
    """True if it waits for room in a full buffer. Operations that keep or end a claim do not wait."""

    ends_claims: ClassVar[bool] = False
    """True if it ends the claims that it names."""

    always_needs: ClassVar[tuple[str, ...]] = ()
    """Names of the capabilities that a queue needs for it, whatever its arguments."""

    checked_names: ClassVar[tuple[str, ...]] = ()
    """Names of its arguments that must be names."""

    optional_names: ClassVar[tuple[str, ...]] = ()
    """Names of its arguments that must be names or None."""

    @property
    def large(self) -> LargeValue | None:
        """The value of the prepared operation that must be stored in an object of its own before the commit."""
        return None

    def prepared(self, preparation: Preparation) -> Self:
        """Return the operation with its arguments checked and completed.

        A prepared operation can be prepared again: it keeps its ids and its objects, and is held to other limits.

        Raises:
            InvalidJobError: an argument is wrong.
            ClaimLostError: it names a claim that the queue object cannot know.
        """
        names = {}
        if (asked_by := getattr(self, "asked_by", None)) is not None:
            names["asked_by"] = asker(asked_by)
        for name in (*self.checked_names, *self.optional_names):
            value = getattr(self, name)
            if value is not None or name in self.checked_names:
                names[name] = check_name(name, value, preparation.limits)
        return msgspec.structs.replace(self, **names) if names else self

    def storing(self, stored: StoredObject, name_before: datetime) -> Self:
        """Return the prepared operation that names the object of its `large` value.

        Args:
            stored: the object, which exists.
            name_before: time until which a commit may name it.
        """
        raise NotImplementedError

    def needs(self, claim_timeout: float) -> Iterable[str]:
        """Return the names of the capabilities (see `jqueue.ports.queue`) that the prepared operation needs.

        Args:
            claim_timeout: the queue's own timeout in seconds, which needs no capability.
        """
        return self.always_needs

    def change(self, draft: Draft, now: datetime) -> Any:
        """Change the draft and return the result. A raised JQueueError is a refusal: the caller rolls back."""
        raise NotImplementedError

    def recovered(self, draft: Draft, at: datetime) -> Any:
        """Return the result of this operation, which an earlier commit did and did not refuse, if it can still be told.

        Args:
            draft: the queue as it is now.
            at: the time of that commit.
        """
        [returned] = get_args(result_type(type(self)))
        return None if type(None) in (returned, *get_args(returned)) else self.lost_answer()

    def lost_answer(self) -> UnknownOutcomeError:
        """Return the error for a caller whose operation was done, and whose answer cannot be told any more."""
        return UnknownOutcomeError(f"{type(self).__name__} was done or refused, and its answer was lost")

    def search_key(self) -> Hashable | None:
        """Return the key of the prepared operation's search; None if it does anything but search and claim.

        If one operation finds nothing, later operations of the same commit with an equal key are not applied: they
        would find nothing either. So the key must name every condition on a job, and an operation with a key must not
        make a job ready. Its result is a list, empty if nothing was found.
        """
        return None

    def claims(self, result: Any) -> Sequence[Claim]:
        """Return the claims that a result of this operation hands out."""
        return ()

    def references(self) -> Sequence[JobReference]:
        """Return the jobs or claims that its caller named. A job that it adds is not among them."""
        return ()

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs that it adds or names, as far as they are known before it is applied."""
        return [_id_of(reference) for reference in self.references()]

    def apply(self, state: QueueState, now: datetime) -> tuple[QueueState, Any]:
        """Apply the transition to a value: return the next state and the result. Only a commit changes the version.

        The arguments are checked and completed as a queue with default limits would do, but no new id is drawn.

        Raises:
            JQueueError: the operation is refused.
        """
        preparation = Preparation(Limits(), DEFAULT_CLAIM_TIMEOUT.total_seconds(), str, claim_of)
        draft = Draft(state)
        result = carry_out(self.prepared(preparation), draft, now)
        count_members(draft, now)
        return (draft.freeze() if draft.changed else state), for_callers(result)

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in self.__struct_fields__ if name not in HIDDEN)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown if value is not None)})"


@cache
def result_type(kind: type[Operation]) -> Any:
    """Return the type of an operation's result, as a tuple of it: what its `change` says."""
    returned = get_type_hints(kind.change)["return"]
    return tuple.__class_getitem__(returned)


HIDDEN = frozenset({"payload", "headers", "result", "results", "result_to_store"})
"""Fields that no log shows."""


class OnJob(Operation, frozen=True):
    """Base of the operations on one job that the caller does not hold."""

    checked_names: ClassVar[tuple[str, ...]] = ("job_id",)

    job_id: str

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)


def claim_of(reference: JobReference) -> Claim:
    """Return the claim that a caller names, where no queue object could know that of a bare id."""
    if isinstance(reference, str):
        raise InvalidJobError("an operation that is applied to a state needs a job or its claim, not a bare id")
    return reference.claim if isinstance(reference, Job) else reference


def _id_of(reference: JobReference) -> str:
    if isinstance(reference, str):
        return reference
    return reference.id if isinstance(reference, Job) else reference.job_id


def carry_out(operation: Operation, draft: Draft, now: datetime) -> Any:
    """Apply an operation to a draft, and return its result. Its transitions name who asked for it."""
    draft.asked_by, draft.now = getattr(operation, "asked_by", None), now
    return operation.change(draft, now)


def perform(
    operations: Sequence[Operation], draft: Draft, now: datetime, *, atomic: bool = False
) -> list[Any] | JQueueError:
    """Apply operations to a draft. Return the result of each, or the error that refused it, which changes nothing.

    Args:
        operations: in order.
        draft: the draft.
        now: the time.
        atomic: True if one refused operation undoes the others, so that its error alone is returned.

    Raises:
        RowsMissingError: one needs rows that are not loaded and can be. The draft is unchanged.
    """
    results: list[Any] = []
    missing: set[Wanted] = set()
    begin = savepoint = draft.savepoint()
    for operation in operations:
        if results:
            savepoint = draft.savepoint()
        try:
            result = carry_out(operation, draft, now)
            if draft.header.groups and not (atomic and len(results) + 1 < len(operations)):
                count_members(draft, now)  # once all parts are done: a member that ends may add members
            if draft.check is not None:
                draft.check(draft.changed_since(savepoint))
            results.append(result)
        except Exception as error:  # a bug in jqueue must not fail the other operations of the commit
            refusal = _refusal(operation, draft, error)
            draft.rollback(begin if atomic else savepoint)
            if isinstance(error, RowsMissingError) and refusal is None:
                missing |= error.wanted  # all operations ask at once, since all are applied anew
            if atomic and refusal is not None:
                return refusal
            if atomic:
                break
            results.append(refusal)
    if missing:
        draft.rollback(begin)
        raise RowsMissingError(missing)
    return results


def _refusal(operation: Operation, draft: Draft, error: Exception) -> JQueueError | None:
    """Return the error that refuses an operation, or None if it must be applied again with more rows."""
    if isinstance(error, JQueueError):
        return error
    refusal = JQueueError(
        f"{type(operation).__name__} failed because of a bug in jqueue ({type(error).__name__}), and changed "
        "nothing: please report it with its traceback"
    )
    refusal.__cause__ = error
    if isinstance(error, RowsMissingError):
        rows = draft.jobs.rows
        if not all(rows.is_loaded(each) for each in error.wanted):
            return None
        damaged = (rows.damage_of(each.segment) for each in sorted(error.wanted, key=str))
        return next((damage for damage in damaged if damage is not None), refusal)  # else it would ask for ever
    return refusal
