"""One job as JSON values, for `jqueue ls`, `show` and `dead`: everything but its payload and its result."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jqueue.cli.printing import instant
from jqueue.domain.models import Job
from jqueue.domain.selection import phase_of, since


def job_values(job: Job, now: datetime) -> dict[str, Any]:
    """Return the values of a job.

    Args:
        job: the job.
        now: the time by the queue's clock, for its status and its age.
    """
    stored = job.payload_object
    return {
        "id": job.id,
        "entrypoint": job.entrypoint,
        "status": phase_of(job, now).value,
        "since": instant(since(job)),
        "seconds": round((now - since(job)).total_seconds(), 3),
        "priority": job.priority,
        "attempts": job.tries,
        "failures": job.failed_tries,
        "max_attempts": job.max_attempts,
        "created_at": instant(job.created_at),
        "run_at": instant(job.run_at),
        "expires_at": instant(job.expires_at),
        "holder": job.holder,
        "claimed_at": instant(job.claimed_at),
        "heartbeat_at": instant(job.heartbeat_at),
        "cancel_requested": job.cancel_requested,
        "unique_key": job.unique_key,
        "concurrency_key": job.concurrency_key,
        "payload_bytes": len(job.payload) if stored is None else stored.size,
        "error": job.error,
    }
