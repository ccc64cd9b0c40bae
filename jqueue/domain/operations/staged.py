"""Operations that add jobs in bulk: encoded elsewhere, by the thousands, and added in exactly one commit.

A bulk enqueue runs on many machines, is repeated if one of them fails, and ends with one commit. Its transaction keeps
a repeated write from adding anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import OnConflict, check_conflict
from jqueue.domain.limits import Limits, check_integer, enqueue_share
from jqueue.domain.models import COUNT_MAX, QueueState
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.operations.jobs import NewJob, drop_outlived, new_job
from jqueue.domain.operations.transactions import Transaction, checked, is_repeated, last_version, remember
from jqueue.domain.printable import counted
from jqueue.domain.sequence_numbers import EncodedJobs
from jqueue.domain.size_limit import enqueue_limit, take_space


@dataclass(frozen=True, slots=True)
class StagedJobs:
    """The jobs that one task has staged.

    Attributes:
        encoded: the jobs without a key, as lines: no job in the queue can conflict with them.
        keyed: the arguments of an `Enqueue` for each job with a unique key or a concurrency key.
    """

    encoded: EncodedJobs
    keyed: Sequence[Mapping[str, Any]] = field(default=(), repr=False)

    @property
    def jobs(self) -> int:
        """Number of jobs, of both kinds."""
        return self.encoded.jobs + len(self.keyed)

    @property
    def size(self) -> int:
        """About how many bytes the encoded jobs take in the blob."""
        return self.encoded.size


@dataclass(frozen=True, slots=True)
class StagedReceipt:
    """The outcome of adding staged jobs.

    Attributes:
        added: number of jobs that were added.
        taken: number of jobs that were not added because their unique key is taken.
        repeated: True if the same write was done before, and nothing was added.
        version: the version of the application's last transaction before this one; None if none is known.
    """

    added: int = 0
    taken: int = 0
    repeated: bool = False
    version: int | None = None


@dataclass(frozen=True, slots=True)
class EnqueueStaged(Operation):
    """Add staged jobs, all or none. Its result is a `StagedReceipt`.

    Encoded jobs can be claimed, and are seen by other operations, from the next commit on.

    Attributes:
        staged: the jobs, by task.
        transaction: the identity of this write; a repeated write adds nothing. None: it is not remembered.
        on_conflict: see `Enqueue`.
        blob_bytes: the new size limit of the queue, for every writer, if the jobs do not fit within its present one:
            as by `configure(blob_bytes=...)`. A larger limit stays. None: the jobs must fit.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("staged",)

    staged: Sequence[StagedJobs]
    _: KW_ONLY
    transaction: Transaction | tuple[str, int] | None = None
    on_conflict: OnConflict = "return"
    blob_bytes: int | None = None
    new_jobs: Sequence[NewJob] = field(default=(), repr=False)
    enqueue_bytes: int = Limits().enqueue_bytes

    def prepared(self, preparation: Preparation) -> EnqueueStaged:
        """Return the operation, checked, with a `NewJob` for each job with a unique key."""
        several: object = self.staged
        given = tuple(several) if isinstance(several, Iterable) else (several,)
        if given == (several,) or not all(isinstance(staged, StagedJobs) for staged in given):
            raise InvalidJobError("EnqueueStaged takes a sequence of StagedJobs, as read_staged gives them")
        check_conflict(self.on_conflict)
        if self.blob_bytes is not None:
            check_integer("blob_bytes", self.blob_bytes, 1, COUNT_MAX)
        return replace(
            self,
            staged=given,
            transaction=None if self.transaction is None else checked(self.transaction, preparation.limits),
            new_jobs=tuple(
                new_job(preparation, **values, on_conflict=self.on_conflict)
                for staged in given
                for values in staged.keyed
            ),
            enqueue_bytes=preparation.limits.enqueue_bytes,
        )

    def apply(self, state: QueueState, now: datetime) -> NoReturn:
        """Refuse: jobs that are already lines can be added to a blob, but not to a state.

        Raises:
            InvalidJobError: always.
        """
        raise InvalidJobError("EnqueueStaged cannot be applied to a QueueState: pass it to a queue's apply")

    def change(self, draft: Draft, now: datetime) -> StagedReceipt:
        """Add the jobs, unless the transaction shows that they were added before."""
        last = last_version(draft, self.transaction)
        if is_repeated(self.transaction, last):
            return StagedReceipt(repeated=True, version=last)
        remember(draft, self.transaction, now)
        drop_outlived(draft, now)
        blocks = [staged.encoded for staged in self.staged if staged.encoded.jobs]
        self._take_space(draft, blocks)
        for block in blocks:
            draft.place(block, now)
        taken = sum(new.change(draft, now).id != new.values["id"] for new in self.new_jobs)
        return StagedReceipt(sum(staged.jobs for staged in self.staged) - taken, taken, version=last)

    def _take_space(self, draft: Draft, blocks: Sequence[EncodedJobs]) -> None:
        """Count the bytes of the encoded jobs. First raise the queue's limit to `blob_bytes` if the jobs need it."""
        jobs, size = sum(block.jobs for block in blocks), sum(block.size for block in blocks)
        if self.blob_bytes is not None:
            needed = draft.taken_bytes + size + sum(new.stored_bytes() for new in self.new_jobs)
            if enqueue_limit(draft, self.enqueue_bytes) < min(needed, enqueue_share(self.blob_bytes)):
                draft.set_settings(draft.header.settings.model_copy(update={"blob_bytes": self.blob_bytes}))
        take_space(draft, size, self.enqueue_bytes, f"{counted(jobs, 'job')} of {size} bytes in total")
