"""One event of a history as JSON values, without its payload."""

from __future__ import annotations

from typing import Any

from jqueue.cli.printing import instant
from jqueue.domain.events import HistoryEvent


def event_values(event: HistoryEvent) -> dict[str, Any]:
    """Return the values of an event."""
    return {
        "number": event.number,
        "at": instant(event.at),
        "event": str(event.verb),
        "id": event.job_id,
        "entrypoint": event.entrypoint,
        "before": event.before,
        "after": event.after,
        "attempt": event.attempt,
        "holder": event.holder,
        "wait_seconds": event.wait_seconds,
        "run_seconds": event.run_seconds,
        "created_at": instant(event.created_at),
        "error": event.error,
        "jobs": event.jobs,
    }
