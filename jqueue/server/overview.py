"""The figures of a queue as JSON for the page: counts, rates, histograms, workers, cron entries, limits, the store.

Times are seconds since 1970, durations seconds. Nothing here grows with the number of jobs.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict

from jqueue.core.view import WARNING
from jqueue.domain.counters import OTHERS, Histogram, Rates, Totals, totals_of
from jqueue.domain.header import Header, writer_names
from jqueue.domain.rules import EntrypointRules, as_shown
from jqueue.domain.stats import EntrypointStats, QueueStats, why_waiting
from jqueue.server.view import View

SCHEDULES_SHOWN = 1000
"""Maximum number of cron entries in the page."""

COUNTED = (
    "enqueued", "claimed", "done", "failed", "retried", "dead", "cancelled", "expired", "recovered", "removed",
)  # fmt: skip


def overview(view: View) -> dict[str, Any]:
    """Return everything that the page shows of a queue, except its jobs."""
    header, stats = view.header, view.stats
    return {
        "now": view.now.timestamp(),
        "version": header.version,
        "figures": _figures(stats, view.now),
        "entrypoints": _entrypoints(stats, header, view.now),
        "workers": [asdict(record) | {"holder": record.holder} for record in stats.workers],
        "holders": dict(stats.holders or {}),
        "why_waiting": why_waiting(header, stats, view.now),
        "schedules": _schedules(header, view.now),
        "schedules_total": len(header.schedules),
        "store": _store(header, stats),
        "alerts": [f"{each[0].upper()}{each[1:]}. All other jobs go on." for each in view.queue.damage()],
    }


def _figures(stats: EntrypointStats, now: datetime) -> dict[str, Any]:
    return {
        "ready": stats.ready,
        "scheduled": stats.scheduled,
        "in_progress": stats.in_progress,
        "dead": stats.dead,
        "completed": stats.completed,
        "oldest_ready": _since(stats.oldest_ready_age, now),
        "oldest_claim": _since(stats.oldest_claim_age, now),
        "totals": None if stats.totals is None else _totals(stats.totals),
    }


def _since(age: timedelta | None, now: datetime) -> float | None:
    return None if age is None else (now - age).timestamp()


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        **{name: getattr(totals, name) for name in COUNTED},
        "waits": _histogram(totals.waits),
        "runs": _histogram(totals.runs),
        "rates": {
            "minute": _rates(totals.last_minute),
            "hour": _rates(totals.last_hour),
            "day": _rates(totals.last_day),
        },
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"seconds": histogram.seconds, "counts": sorted(histogram.counts.items())}


def _rates(rates: Rates) -> dict[str, float]:
    return {name: getattr(rates, name) for name in ("enqueued", "claimed", "done", "failed")}


def _entrypoints(stats: QueueStats, header: Header, now: datetime) -> list[dict[str, Any]]:
    known = stats.entrypoints or {}
    rows = []
    for name in sorted({*known, *header.entrypoints}):
        rules = header.entrypoints.get(name, EntrypointRules())
        limits = {"paused": rules.paused, "running": rules.max_running, "rate": rules.rate, "per": rules.per}
        rows.append({"name": name, **_figures(known.get(name, EntrypointStats()), now), "limits": limits})
    if OTHERS in header.counters:
        rest = EntrypointStats(totals=totals_of(header.counters[OTHERS], now))
        rows.append({"name": None, **_figures(rest, now), "limits": None})
    return rows


def _schedules(header: Header, now: datetime) -> list[dict[str, Any]]:
    shown = [as_shown(schedule, now) for schedule in list(header.schedules.values())[:SCHEDULES_SHOWN]]
    return [
        {
            "name": schedule.name,
            "cron": schedule.cron,
            "timezone": schedule.timezone,
            "entrypoint": schedule.entrypoint,
            "next_at": schedule.next_at.timestamp(),
            "priority": schedule.priority,
        }
        for schedule in sorted(shown, key=lambda each: (each.next_at, each.name))
    ]


def _store(header: Header, stats: QueueStats) -> dict[str, Any]:
    """Return the facts about the object and the commits to it."""
    settings, history, names = header.settings, header.history, writer_names(header)
    return {
        "size": stats.size,
        "size_limit": stats.size_limit,
        "segments": stats.segments,
        "segment_jobs": stats.segment_jobs,
        "segment_bytes": stats.segment_bytes,
        "unreadable": stats.unreadable,
        "warnings": [each for each in stats.warnings if not each.startswith(WARNING)],
        "queue": header.queue,
        "critical": list(header.critical),
        "settings": {
            "dead_retention": settings.dead_retention,
            "blob_bytes": settings.blob_bytes,
            "history": settings.history,
            "history_bytes": settings.history_bytes,
            "history_payloads": settings.history_payloads,
        },
        "history_events": 0 if history is None else history.last,
        "history_lost": 0 if history is None else history.lost,
        "commits": [
            {"writer": writer, "name": names.get(writer), "sequence": record.sequence, "version": record.version,
             "at": record.at, "cycle": record.cycle}
            for writer, record in sorted(header.commits.items(), key=lambda row: -row[1].version)
        ],
        "finished": len(header.finished),
        "holds": len(header.holds),
    }  # fmt: skip
