"""`AllOrNothing`: several operations as one, all or nothing, beside others in one commit.

`apply_each` does each of its operations by itself, and `apply` all of them as one. A batch needs both in its commit:
thousands of jobs, each by itself, and with some of them the jobs that their handlers enqueue with the ack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.operations import Operation, Preparation


@dataclass(frozen=True, slots=True)
class AllOrNothing(Operation):
    """Do several operations, or none of them. The result is the list of their results.

    Attributes:
        operations: in order. None of them claims jobs.
    """

    needs_space: ClassVar[bool] = False

    operations: tuple[Operation, ...]

    def prepared(self, preparation: Preparation) -> AllOrNothing:
        """Return it with each operation checked."""
        return AllOrNothing(tuple(operation.prepared(preparation) for operation in self.operations))

    def change(self, draft: Draft, now: datetime) -> list[Any]:
        """Do the operations in order. The first refusal is the error of all, and the caller takes all of them back."""
        return [operation.change(draft, now) for operation in self.operations]

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs that the operations are about."""
        return [job_id for operation in self.operations for job_id in operation.job_ids()]
