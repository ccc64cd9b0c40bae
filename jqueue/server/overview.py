"""The figures of a queue as JSON for the page: counts, rates, histograms, workers, cron entries, limits, the store.

Times are seconds since 1970, durations seconds. Nothing here grows with the number of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import asdict

from jqueue.core.view import WARNING
from jqueue.domain.counters import OTHERS, Totals, totals_of
from jqueue.domain.header import Header, writer_names
from jqueue.domain.rules import SETTINGS, EntrypointRules, as_shown
from jqueue.domain.stats import EntrypointStats, QueueStats, why_waiting
from jqueue.server.view import View

SCHEDULES_SHOWN = 1000
"""Maximum number of cron entries in the page."""

_STATES = ("ready", "scheduled", "in_progress", "dead", "completed")
_TOTALS = (
    "enqueued", "claimed", "done", "failed", "retried", "dead", "cancelled", "expired", "recovered", "removed",
)  # fmt: skip
_RATES = ("enqueued", "claimed", "done", "failed")
_ENTRY = ("name", "cron", "timezone", "entrypoint", "priority")
_STORE = ("size", "size_limit", "segments", "segment_jobs", "segment_bytes", "unreadable")


def picked(value: object, names: Iterable[str]) -> dict[str, Any]:
    """Return some attributes of a value by their names."""
    return {name: getattr(value, name) for name in names}


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
        **picked(stats, _STATES),
        "oldest_ready": _since(stats.oldest_ready_age, now),
        "oldest_claim": _since(stats.oldest_claim_age, now),
        "totals": None if stats.totals is None else _totals(stats.totals),
    }


def _since(age: timedelta | None, now: datetime) -> float | None:
    return None if age is None else (now - age).timestamp()


def _totals(totals: Totals) -> dict[str, Any]:
    times = {"waits": totals.waits, "runs": totals.runs}
    rates = {"minute": totals.last_minute, "hour": totals.last_hour, "day": totals.last_day}
    return {
        **picked(totals, _TOTALS),
        **{name: {"seconds": each.seconds, "counts": sorted(each.counts.items())} for name, each in times.items()},
        "rates": {name: picked(each, _RATES) for name, each in rates.items()},
    }


def _entrypoints(stats: QueueStats, header: Header, now: datetime) -> list[dict[str, Any]]:
    known = stats.entrypoints or {}
    rows = []
    for name in sorted({*known, *header.entrypoints}):
        limits = rules_seen(header.entrypoints.get(name, EntrypointRules()))
        rows.append({"name": name, **_figures(known.get(name, EntrypointStats()), now), "limits": limits})
    if OTHERS in header.counters:
        rest = EntrypointStats(totals=totals_of(header.counters[OTHERS], now))
        rows.append({"name": None, **_figures(rest, now), "limits": None})
    return rows


def _schedules(header: Header, now: datetime) -> list[dict[str, Any]]:
    shown = [as_shown(schedule, now) for schedule in list(header.schedules.values())[:SCHEDULES_SHOWN]]
    in_order = sorted(shown, key=lambda each: (each.next_at, each.name))
    return [{**picked(each, _ENTRY), "next_at": each.next_at.timestamp()} for each in in_order]


def _store(header: Header, stats: QueueStats) -> dict[str, Any]:
    """Return the facts about the object and the commits to it."""
    history, names = header.history, writer_names(header)
    return {
        **picked(stats, _STORE),
        "warnings": [each for each in stats.warnings if not each.startswith(WARNING)],
        "queue": header.queue,
        "critical": list(header.critical),
        "settings": picked(header.settings, SETTINGS),
        "history_events": 0 if history is None else history.last,
        "history_lost": 0 if history is None else history.lost,
        "commits": [
            {"writer": writer, "name": names.get(writer), **picked(record, ("sequence", "version", "at", "cycle"))}
            for writer, record in sorted(header.commits.items(), key=lambda row: -row[1].version)
        ],
        "finished": len(header.finished),
        "holds": len(header.holds),
    }


def rules_seen(rules: EntrypointRules) -> dict[str, Any]:
    """Return the rules of an entrypoint as the page shows them and sends them back."""
    return {"paused": rules.paused, "running": rules.max_running, "rate": rules.rate, "per": rules.per}
