"""A job, an event and a whole queue as programs see them in JSON: from `jqueue ... --json`, and by HTTP.

Each is a record, from which the schema of the HTTP interface is made. None has a payload.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from jqueue.core.view import QueueView
from jqueue.domain.counters import KINDS, Histogram, Totals
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import by_name
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.rules import EntrypointRules, as_shown
from jqueue.domain.selection import Phase, phase_of, since
from jqueue.domain.stats import EntrypointStats, QueueStats, why_waiting

Instant = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""A time in UTC, as text."""


def instant(time: datetime | None) -> str | None:
    """Return a time as a text for JSON, in UTC."""
    return None if time is None else time.astimezone(UTC).isoformat()


def _moment(seconds: float) -> datetime | None:
    """Return a time that is given in seconds since 1970; None for one beyond all years, which nobody writes."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


class ShownError(msgspec.Struct):
    """The error of an attempt."""

    attempt: int
    at: Instant | None
    error: str
    holder: str | None


class ShownProgress(msgspec.Struct):
    """How far the work on a job is."""

    done: int
    total: int | None
    text: str
    at: Instant | None


def progress_text(job: Job) -> str | None:
    """Return how far the work on a job is, as people read it; None if its last claim brought no report."""
    if job.progress is None:
        return None
    done, total, text, _ = job.progress
    return f"{done:,}" + ("" if total is None else f" of {total:,}") + (f", {text}" if text else "")


class ShownStep(msgspec.Struct):
    """A step that is done."""

    name: str
    occurrence: int
    at: Instant | None


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
    group: str | None
    payload_bytes: int
    error: str | None
    progress: ShownProgress | None


class ShownLife(ShownJob):
    """A job with its whole life."""

    attempt: int
    claim_timeout: float | None
    queued_at: Instant | None
    dead_at: Instant | None
    finished_at: Instant | None
    concurrency_limit: int | None
    fair_key: str | None
    fair_weight: float | None
    unique_for: float | None
    keep_result: float | None
    timeout: float | None
    encoding: str | None
    errors: list[ShownError]
    error_bytes_dropped: int
    traceback: str | None
    result_bytes_dropped: int
    steps: list[ShownStep]
    after: list[str]
    waits_for: list[str]
    on_dead: str | None


def _values(kind: type[msgspec.Struct], source: Any, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a record by field: from `made`, or else the attribute of `source` with the same name."""
    values = {name: made[name] if name in made else getattr(source, name) for name in kind.__struct_fields__}
    return {name: instant(value) if isinstance(value, datetime) else value for name, value in values.items()}


def job_values(job: Job, now: datetime, kind: type[ShownJob] = ShownJob) -> dict[str, Any]:
    """Return the values of a `ShownJob`, or of a `ShownLife`.

    Args:
        job: the job.
        now: the time by the queue's clock, for its status and its age.
        kind: the record.
    """
    stored, progress = job.payload_object, job.progress
    made = {
        "progress": progress and {**progress._asdict(), "at": instant(progress.at)},
        "status": phase_of(job, now).value,
        "since": since(job),
        "seconds": round((now - since(job)).total_seconds(), 3),
        "attempts": job.tries,
        "failures": job.failed_tries,
        "payload_bytes": len(job.payload) if stored is None else stored.size,
        "errors": [
            {"attempt": each.attempt, "at": instant(each.at), "error": each.text, "holder": each.holder}
            for each in job.errors
        ],
        "steps": [{"name": each.name, "occurrence": each.occurrence, "at": instant(each.at)} for each in job.steps],
        "error_bytes_dropped": job.error_dropped,
        "result_bytes_dropped": job.result_dropped,
        "after": list(job.after),
        "waits_for": list(job.waits_for),
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
    asked_by: str | None
    group: str | None


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
    waiting: int
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
    by_operator: bool
    key_rate: int | None
    key_per: float | None


class ShownSchedule(msgspec.Struct):
    """A cron entry."""

    name: str
    cron: str
    timezone: str
    entrypoint: str
    priority: int
    next_at: Instant | None
    paused: bool
    by_operator: bool


class ShownWorker(msgspec.Struct):
    """A worker, or another holder of jobs, of which only the claims are known."""

    holder: str
    worker: bool
    jobs: int
    lost: bool | None
    stopping: bool | None
    oldest_claim_at: Instant | None
    name: str | None
    host: str | None
    pid: int | None
    slots: int | None
    last_commit_at: Instant | None
    last_commit_seconds: float | None
    runs_seconds: float | None
    entrypoints: list[str] | None
    version: str | None


class ShownStats(ShownFigures):
    """A whole queue."""

    queue: str
    version: int | None
    size: int
    size_limit: int | None
    segments: int
    segment_jobs: int
    segment_bytes: int
    kept_keys: int
    kept_key_bytes: int
    unreadable: int
    warnings: list[str]
    workers: int
    workers_lost: int
    workers_seen: list[ShownWorker]
    broker: str | None
    holders: dict[str, int]
    entrypoints: dict[str, ShownEntrypoint]
    schedules: list[ShownSchedule]
    dead_retention: float | None
    blob_bytes: int | None


def stats_values(
    name: str, view: QueueView, stats: QueueStats, now: datetime, *, one_object: bool = True
) -> dict[str, Any]:
    """Return the values of a `ShownStats`.

    Args:
        name: of the queue's object.
        view: the queue.
        stats: its figures.
        now: the time by the queue's clock.
        one_object: True for an object of a store, with a version and a limit; False for the format of an older queue.
    """
    header, waits = view.header, why_waiting(view.header, stats, now)
    seat = header.broker
    by_entrypoint = stats.entrypoints or {}
    entrypoints = {}
    for each in sorted({*by_entrypoint, *header.entrypoints}):  # one with limits and no jobs has zeros
        figures, rules = by_entrypoint.get(each, EntrypointStats()), header.entrypoints.get(each, EntrypointRules())
        entrypoints[each] = {
            **_figures(figures),
            "paused": figures.paused,
            "why_waiting": waits.get(each),
            **{key: getattr(rules, key) for key in ("max_running", "rate", "per", "key_rate", "key_per")},
            "by_operator": rules.declared is not None,
        }
    schedules = [as_shown(schedule, now) for schedule in header.schedules.values()]
    made = {
        **_figures(stats),
        "queue": name,
        "version": stats.version if one_object else None,
        "size_limit": stats.size_limit if one_object else None,
        "warnings": list(stats.warnings),
        "workers": sum(not record.lost for record in stats.workers),
        "workers_lost": sum(record.lost for record in stats.workers),
        "workers_seen": _workers(view, now),
        "broker": None if seat is None or seat.is_doubted(now) else seat.url or None,
        "holders": dict(stats.holders or {}),
        "entrypoints": entrypoints,
        "schedules": [
            _values(ShownSchedule, each, {"by_operator": each.declared is not None})
            for each in sorted(schedules, key=lambda each: (each.next_at, each.name))
        ],
        "dead_retention": header.settings.dead_retention,
        "blob_bytes": header.settings.blob_bytes,
    }
    return _values(ShownStats, stats, made)


def _workers(view: QueueView, now: datetime) -> list[dict[str, Any]]:
    """Return the values of the workers of a queue by name, and of the other holders of jobs after them."""
    claims, workers = view.holders(), []
    for record in by_name(view.header.workers.values()):
        jobs, oldest = claims.pop(record.holder, (0, None))
        made = {
            "worker": True,
            "jobs": jobs,
            "lost": record.is_lost(now.timestamp()),
            "oldest_claim_at": oldest,
            "last_commit_at": _moment(record.at),
            "last_commit_seconds": round(now.timestamp() - record.at, 3),
            "runs_seconds": round(now.timestamp() - record.started, 3),
            "entrypoints": list(record.entrypoints),
        }
        workers.append(_values(ShownWorker, record, made))
    for holder, (jobs, oldest) in sorted(claims.items()):
        unknown: dict[str, Any] = dict.fromkeys(ShownWorker.__struct_fields__)
        values = {"holder": holder, "worker": False, "jobs": jobs, "oldest_claim_at": oldest}
        workers.append(_values(ShownWorker, None, unknown | values))
    return workers


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
