"""`Together`: several operations as one, all or nothing, beside others in one commit.

`apply_each` takes each of its operations for itself, and `apply` all of them as one. A batch has both in its commit:
thousands of jobs, each for itself, and with some of them the jobs that their handlers enqueue with the ack.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.operations import Operation, Preparation


@dataclass(frozen=True, slots=True)
class Together(Operation):
    """Do several things, or none of them. Its result is the list of theirs.

    Attributes:
        operations: in order. None of them claims jobs.
    """

    needs_room: ClassVar[bool] = False

    operations: tuple[Operation, ...]

    def prepared(self, preparation: Preparation) -> Together:
        """With each of them checked."""
        return Together(tuple(operation.prepared(preparation) for operation in self.operations))

    def change(self, draft: Draft, now: datetime) -> list[Any]:
        """Do them in order. The first that is refused is the error of all, and whoever asked takes all back."""
        return [operation.change(draft, now) for operation in self.operations]

    def job_ids(self) -> Sequence[str]:
        """The jobs that they are about."""
        return [job_id for operation in self.operations for job_id in operation.job_ids()]
