"""Recognises jobs on their way from one queue to another, by the length of their claims.

While a job is moved, it is claimed in both queues, so that no worker gets it. Such a claim lasts exactly
`MOVE_CLAIM_TIMEOUT` seconds. Every format of a queue keeps this length, so the next move finds and finishes an
interrupted one. If such a claim ends in another way, the job is as it was before.
"""

from __future__ import annotations

from jqueue.domain.models import Job, JobStatus

MOVE_CLAIM_TIMEOUT = 86_413.0
"""Seconds that the claim of a move lasts, about a day: the time to resume a move. No other claim has this length."""

MOVER = "jqueue migrate"
"""Name of the holder of such claims, in queues whose claims have a holder."""


def is_moving(job: Job) -> bool:
    """Return True if the job is claimed by a move."""
    return job.claim_timeout == MOVE_CLAIM_TIMEOUT and job.status is JobStatus.IN_PROGRESS
