"""Applications that enqueue in bulk, and the jobs staged for them. Both outlive the processes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.domain.operations import StagedJobs

APPS = ("app 1", "app 2")
STAGED = "staged:"
"""Prefix of the ids of staged jobs. No other actor makes such ids."""

DRAWN = "process "
"""Prefix of the ids that queue objects draw. The only jobs with such ids are staged jobs with a key."""

KEYED = b"keyed "
"""Prefix of the payloads of staged jobs with a unique key, whose ids are unknown until they are added."""


@dataclass
class Content:
    """Jobs staged for one version of an application.

    Attributes:
        staged: the staged jobs, as they were read back; or those of each task, in segments that exist.
        ids: ids of the jobs without a key.
        keyed: a mark that identifies each job with a key.
        staged_at: the time at which their staging began, on the clock of the event loop.
    """

    staged: tuple[StagedJobs, ...] | tuple[StagedTask, ...]
    ids: tuple[str, ...]
    keyed: tuple[str, ...]
    staged_at: float = 0.0

    @property
    def tasks(self) -> tuple[StagedTask, ...]:
        """The tasks, if the jobs are in segments; otherwise nothing."""
        return tuple(each for each in self.staged if isinstance(each, StagedTask))


@dataclass
class Applications:
    """State of the applications, which outlives the processes.

    Attributes:
        versions: current version of each application.
        contents: jobs staged for each version of each application.
    """

    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(APPS, 1))
    contents: dict[tuple[str, int], list[Content]] = field(default_factory=lambda: defaultdict(list))
