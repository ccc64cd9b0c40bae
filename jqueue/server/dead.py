"""Dead letters grouped by their error. Numbers and ids in an error do not make another group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from jqueue.domain.models import Job
from jqueue.domain.selection import Phase, Selection
from jqueue.server.jobs import ERROR_SHOWN
from jqueue.server.view import View

GROUPS_SHOWN = 200
"""Maximum number of groups in the page, the largest first."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9]+")


def pattern_of(job: Job) -> str:
    """Return the first line of a job's error, with a sign in place of each number and id."""
    lines = (job.error or "").strip().splitlines()
    return _VARYING.sub("#", lines[0][:ERROR_SHOWN]) if lines else ""


@dataclass
class _Group:
    entrypoint: str
    pattern: str
    jobs: int
    first: float
    last: float
    example: str


async def dead_groups(view: View) -> dict[str, Any]:
    """Return the groups of dead jobs by entrypoint and error, the largest first."""
    groups: dict[tuple[str, str], _Group] = {}
    total = 0
    async for job in view.queue.jobs(view.now, Selection(frozenset({Phase.DEAD}))):
        total += 1
        at = (job.dead_at or job.created_at).timestamp()
        key = job.entrypoint, pattern_of(job)
        group = groups.setdefault(key, _Group(*key, 0, at, at, job.id))
        group.jobs += 1
        if at >= group.last:
            group.last, group.example = at, job.id
        group.first = min(group.first, at)
    largest = sorted(groups.values(), key=lambda group: (-group.jobs, group.entrypoint, group.pattern))
    return {
        "now": view.now.timestamp(),
        "total": total,
        "groups_total": len(groups),
        "groups": [vars(group) for group in largest[:GROUPS_SHOWN]],
    }
