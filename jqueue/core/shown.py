"""A job, an event and a whole queue as programs see them in JSON: from `jqueue ... --json`, and by HTTP.

Each is a record, from which the schema of the HTTP interface is made. None has a payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from jqueue.domain.counters import KINDS, Histogram, Totals
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import Header
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, as_shown
from jqueue.domain.selection import Phase, phase_of, since
from jqueue.domain.stats import EntrypointStats, QueueStats, why_waiting

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC, as text."""


def instant(time: datetime | None) -> str | None:
    """Return a time as a text for JSON, in UTC."""
    return None if time is None else time.astimezone(UTC).isoformat()


class ShownError(msgspec.Struct):
    """The error of an attempt."""

    attempt: int
    at: Instant | None
    error: str


class ShownJob(msgspec.Struct):
    """A job in a list."""

    id: str
    entrypoint: str
    status: Phase
    since: Instant | None
    seconds: float
    priority: int
    attempts: int
    failures: int
    max_attempts: int | None
    created_at: Instant | None
    run_at: Instant | None
    expires_at: Instant | None
    holder: str | None
    claimed_at: Instant | None
    heartbeat_at: Instant | None
    cancel_requested: bool
    unique_key: str | None
    concurrency_key: str | None
    payload_bytes: int
    error: str | None


class ShownLife(ShownJob):
    """A job with its whole life."""

    attempt: int
    claim_timeout: float | None
    queued_at: Instant | None
    dead_at: Instant | None
    finished_at: Instant | None
    concurrency_limit: int | None
    unique_for: float | None
    keep_result: float | None
    errors: list[ShownError]
    error_bytes_dropped: int
    traceback: str | None
    result_bytes_dropped: int


def _values(kind: type[msgspec.Struct], source: Any, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record: those that were made for it, and attributes of the same names for the others."""
    found = {name: made[name] if name in made else getattr(source, name) for name in kind.__struct_fields__}
    return {name: instant(value) if isinstance(value, datetime) else value for name, value in found.items()}


def job_values(job: Job, now: datetime, kind: type[ShownJob] = ShownJob) -> dict[str, Any]:
    """Return the values of a `ShownJob`, or of a `ShownLife`.

    Args:
        job: the job.
        now: the time by the queue's clock, for its status and its age.
        kind: the record.
    """
    stored = job.payload_object
    made = {
        "status": phase_of(job, now).value,
        "since": since(job),
        "seconds": round((now - since(job)).total_seconds(), 3),
        "attempts": job.tries,
        "failures": job.failed_tries,
        "payload_bytes": len(job.payload) if stored is None else stored.size,
        "errors": [{"attempt": each.attempt, "at": instant(each.at), "error": each.text} for each in job.errors],
        "error_bytes_dropped": job.error_dropped,
        "result_bytes_dropped": job.result_dropped,
    }
    return _values(kind, job, made)


class ShownEvent(msgspec.Struct):
    """An event of a history."""

    number: int
    at: Instant | None
    event: str
    id: str | None
    entrypoint: str | None
    before: JobStatus | None
    after: JobStatus | None
    attempt: int
    holder: str | None
    wait_seconds: float | None
    run_seconds: float | None
    created_at: Instant | None
    error: str | None
    jobs: int


def event_values(event: HistoryEvent) -> dict[str, Any]:
    """Return the values of a `ShownEvent`."""
    return _values(ShownEvent, event, {"event": str(event.verb), "id": event.job_id})


class ShownTimes(msgspec.Struct):
    """The mean of some times, and the bounds below which half and 95% of them are, in seconds."""

    count: int
    mean: float | None
    median: float | None
    p95: float | None


class ShownFigures(msgspec.Struct):
    """Figures of the jobs of an entrypoint, or of all jobs. Those of a queue that does not count are null."""

    ready: int
    scheduled: int
    in_progress: int
    dead: int
    completed: int
    results_dropped: int
    errors_dropped: int
    oldest_ready_seconds: float | None
    oldest_claim_seconds: float | None
    totals: dict[str, int] | None
    rates: dict[str, dict[str, float]] | None
    wait_seconds: ShownTimes | None
    run_seconds: ShownTimes | None


class ShownEntrypoint(ShownFigures):
    """Figures and limits of an entrypoint."""

    paused: bool
    why_waiting: str | None
    max_running: int | None
    rate: int | None
    per: float | None


class ShownSchedule(msgspec.Struct):
    """A cron entry."""

    name: str
    cron: str
    timezone: str
    entrypoint: str
    next_at: Instant | None


class ShownStats(ShownFigures):
    """A whole queue."""

    queue: str
    version: int | None
    size: int
    size_limit: int | None
    segments: int
    segment_jobs: int
    segment_bytes: int
    unreadable: int
    warnings: list[str]
    workers: int
    workers_lost: int
    broker: str | None
    holders: dict[str, int]
    entrypoints: dict[str, ShownEntrypoint]
    schedules: list[ShownSchedule]
    dead_retention: float | None
    blob_bytes: int | None


@dataclass(frozen=True)
class QueueInfo:
    """The facts about a queue.

    Attributes:
        name: of the queue's object.
        stats: its figures.
        rules: the rules of each entrypoint that has limits, or is paused.
        settings: the settings of the queue as a whole.
        schedules: its cron entries, the next one first.
        why_waiting: the reasons why ready jobs are not claimed, by entrypoint.
        now: the time by the queue's clock.
        one_object: True for an object of a store, with a version and a limit; False for the format of an older queue.
        broker: URL of the broker whose seat stands in the queue; None if there is none.
    """

    name: str
    stats: QueueStats
    rules: dict[str, EntrypointRules]
    settings: QueueSettings
    schedules: Sequence[Schedule]
    why_waiting: Mapping[str, str]
    now: datetime
    one_object: bool
    broker: str | None

    @classmethod
    def of(cls, name: str, header: Header, stats: QueueStats, now: datetime, *, one_object: bool = True) -> Self:
        """Return the facts about a queue that was read."""
        schedules = [as_shown(schedule, now) for schedule in header.schedules.values()]
        return cls(
            name=name,
            stats=stats,
            why_waiting=why_waiting(header, stats, now),
            one_object=one_object,
            rules=dict(header.entrypoints),
            settings=header.settings,
            schedules=sorted(schedules, key=lambda schedule: (schedule.next_at, schedule.name)),
            now=now,
            broker=(header.broker.url or None) if header.broker is not None else None,
        )

    @property
    def entrypoints(self) -> dict[str, EntrypointStats]:
        """The figures of each entrypoint; an entrypoint with limits and no jobs has zeros."""
        known = self.stats.entrypoints or {}
        return {name: known.get(name, EntrypointStats()) for name in sorted({*known, *self.rules})}

    def values(self) -> dict[str, Any]:
        """Return the values of a `ShownStats`."""
        figures = self.stats
        return {
            "queue": self.name,
            "version": figures.version if self.one_object else None,
            "size": figures.size,
            "size_limit": figures.size_limit if self.one_object else None,
            "segments": figures.segments,
            "segment_jobs": figures.segment_jobs,
            "segment_bytes": figures.segment_bytes,
            "unreadable": figures.unreadable,
            "warnings": list(figures.warnings),
            **_figures(figures),
            "workers": sum(not record.lost for record in figures.workers),
            "workers_lost": sum(record.lost for record in figures.workers),
            "broker": self.broker,
            "holders": dict(figures.holders or {}),
            "entrypoints": {
                name: {
                    **_figures(known),
                    "paused": known.paused,
                    "why_waiting": self.why_waiting.get(name),
                    **{key: getattr(self.rules.get(name), key, None) for key in ("max_running", "rate", "per")},
                }
                for name, known in self.entrypoints.items()
            },
            "schedules": [_values(ShownSchedule, schedule, {}) for schedule in self.schedules],
            "dead_retention": self.settings.dead_retention,
            "blob_bytes": self.settings.blob_bytes,
        }


def _figures(figures: EntrypointStats) -> dict[str, Any]:
    oldest, claim = figures.oldest_ready_age, figures.oldest_claim_age
    made = {
        "oldest_ready_seconds": None if oldest is None else oldest.total_seconds(),
        "oldest_claim_seconds": None if claim is None else claim.total_seconds(),
    }
    return _values(ShownFigures, figures, made | _totals(figures.totals))


def _totals(totals: Totals | None) -> dict[str, Any]:
    if totals is None:
        return dict.fromkeys(("totals", "rates", "wait_seconds", "run_seconds"))
    return {
        "totals": {kind: getattr(totals, kind) for kind in KINDS},
        "rates": {window: asdict(getattr(totals, window)) for window in ("last_minute", "last_hour", "last_day")},
        "wait_seconds": _times(totals.waits),
        "run_seconds": _times(totals.runs),
    }


def _times(times: Histogram) -> dict[str, Any]:
    mean = times.mean
    return {
        "count": times.count,
        "mean": None if mean is None else round(mean, 6),
        "median": times.quantile(0.5),
        "p95": times.quantile(0.95),
    }
