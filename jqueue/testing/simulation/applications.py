"""What outlives the processes: the applications that enqueue in bulk, and what was staged for them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from jqueue.domain.operations import StagedJobs

APPS = ("app 1", "app 2")
STAGED = "staged:"
"""Begins the ids of staged jobs. Nobody else makes such ids, as nobody else draws theirs."""

DRAWN = "process "
"""Begins the ids that queue objects draw: those of staged jobs with a key."""

KEYED = b"keyed "
"""Begins the payloads of staged jobs with a unique key, whose ids nobody knows before they are added."""


@dataclass
class Content:
    """What was staged for one version of an application.

    Attributes:
        staged: as it was read back.
        ids: the jobs without a key.
        keyed: what tells each of the others.
    """

    staged: tuple[StagedJobs, ...]
    ids: tuple[str, ...]
    keyed: tuple[str, ...]


@dataclass
class Applications:
    """What outlives the processes: where each application is, and what was staged for it.

    Attributes:
        versions: the version that each is at.
        contents: what was staged for each version.
    """

    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(APPS, 1))
    contents: dict[tuple[str, int], list[Content]] = field(default_factory=lambda: defaultdict(list))
