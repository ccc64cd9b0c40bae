"""One event of a history, in words."""

from __future__ import annotations

from jqueue.cli.printing import brief
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.transitions import Verb

PLAIN = frozenset((Verb.ENQUEUE, Verb.CLAIM, Verb.ACK))
"""The events that go without the new status of the job."""


def outcome(event: HistoryEvent) -> str:
    """Return the new status of a job after an event, with its error, its holder and its times, in words."""
    parts = []
    if event.verb not in PLAIN:
        parts.append("gone" if event.after is None and event.before is not None else _words(event.after))
    if event.error:
        error = " ".join(event.error.split())
        parts = [f"{parts[0]}: {error}" if parts else error]
    if event.holder:
        parts.append(f"by {event.holder}")
    if event.wait_seconds is not None:
        parts.append(f"waited {brief(event.wait_seconds)}")
    if event.run_seconds is not None:
        parts.append(f"ran {brief(event.run_seconds)}")
    return ", ".join(filter(None, parts))


def _words(status: JobStatus | None) -> str:
    return "" if status is None else status.replace("_", " ")
