"""The fields by which a record of the log names its job, for programs that log in JSON."""

from __future__ import annotations

from typing import Any

from jqueue.domain.models import Job


def about(job: Job) -> dict[str, Any]:
    """Return the `extra` of a record about a job. It has no payload."""
    return {"job_id": job.id, "entrypoint": job.entrypoint, "attempt": job.tries}
