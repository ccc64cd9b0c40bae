"""Jobs on their way from one queue to another: how they are known, wherever they are kept.

While it is moved, a job is claimed in the queue that it leaves, and in the one that it comes to: no worker gets it.
Such a claim is known by how long it lasts, which every format of a queue keeps, so that a move that was cut short is
found and finished by the next. Where it ends otherwise, the job stands as it did before.
"""

from __future__ import annotations

from jqueue.domain.models import Job, JobStatus

HOLD = 86_413.0
"""Seconds, about a day: claims of exactly this length are those of a move. Until then it can be taken up again."""

MOVER = "jqueue migrate"
"""How the holders of such claims are called, where a claim has one."""


def is_moving(job: Job) -> bool:
    """Whether a job is claimed in order to be moved."""
    return job.claim_timeout == HOLD and job.status is JobStatus.IN_PROGRESS
