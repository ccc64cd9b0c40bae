"""`jqueue stats URL`: a queue in figures, with its limits and its cron entries. It only reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jqueue.cli.figures import totals_values
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.printing import count, instant, length, moment, show, show_json, size, table
from jqueue.domain.printable import counted, printable
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, as_shown
from jqueue.domain.stats import EntrypointStats, QueueStats, why_waiting

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COUNTS = ("ready", "scheduled", "in progress", "dead", "completed", "oldest")


@dataclass(frozen=True)
class QueueInfo:
    """The facts to show.

    Attributes:
        name: of the queue's object.
        stats: its figures.
        rules: the rules of each entrypoint that has limits, or is paused.
        settings: the settings of the queue as a whole.
        schedules: its cron entries, the next one first.
        why_waiting: the reasons why ready jobs are not claimed, by entrypoint.
        now: the time by the queue's clock.
        one_object: True for an object of a store, with a version and a limit; False for the format of an older queue.
    """

    name: str
    stats: QueueStats
    rules: dict[str, EntrypointRules]
    settings: QueueSettings
    schedules: Sequence[Schedule]
    why_waiting: Mapping[str, str]
    now: datetime
    one_object: bool

    @property
    def entrypoints(self) -> dict[str, EntrypointStats]:
        """The figures of each entrypoint; an entrypoint with limits and no jobs has zeros."""
        known = self.stats.entrypoints or {}
        return {name: known.get(name, EntrypointStats()) for name in sorted({*known, *self.rules})}


def stats(url: URL, as_json: AsJSON = False) -> None:
    """Show the figures of a queue: jobs by entrypoint, rates, times, limits, size.

    Jobs wait from the moment they are ready until they are claimed, and run until they are acked or nacked. The median
    and the 95% are rounded up to a power of two, in milliseconds.

    If ready jobs wait because of a pause, a limit or a missing worker, a line says so.

    This command only reads, and shows no payloads.

    Exits with 2 if the queue does not exist or cannot be read.
    """
    info = on_queue(url, _read_info, as_json=as_json)
    if as_json:
        show_json(as_values(info))
        return
    from rich.text import Text

    from jqueue.cli.throughput import claims_line, rates, times

    figures = info.stats
    show(Text(info.name, "bold"), f"{_extent(info)}\n")
    show(_jobs(info))
    if info.why_waiting:
        show("", *(Text(line, "yellow") for line in _reasons(info)))
    for figured in (rates(figures.totals), times(info.entrypoints, figures.totals), claims_line(figures)):
        if figured is not None:
            show("", figured)
    if limits := _limits(info):
        show("", limits)
    if info.schedules:
        show("", _schedules(info))
    for line in _settings(info.settings):
        show(f"\n{line}")
    for warning in figures.warnings:
        show(Text(f"\nwarning: {printable(warning)}", "yellow"))


def _extent(info: QueueInfo) -> str:
    """Return the size of the queue. In the format of an older queue, only payloads count, and there are no versions."""
    figures = info.stats
    if info.one_object:
        said = f"{size(figures.size)} of {size(figures.size_limit)}, version {figures.version}"
        if figures.segments:
            segments = counted(figures.segments, "segment")
            jobs = counted(figures.segment_jobs, "waiting job")
            said += f"\n{jobs} in {segments} beside it, {size(figures.segment_bytes)}"
        return said
    return f"{size(figures.size)} of payloads"


async def _read_info(opened: OpenedQueue) -> QueueInfo:
    state, now = opened.view.header, opened.now()
    schedules = [as_shown(schedule, now) for schedule in state.schedules.values()]
    await opened.view.list_segments()
    figures = await opened.stats()
    return QueueInfo(
        name=opened.name,
        stats=figures,
        why_waiting=why_waiting(state, figures, now),
        one_object=opened.queue.capabilities.size_limit,
        rules=dict(state.entrypoints),
        settings=state.settings,
        schedules=sorted(schedules, key=lambda schedule: (schedule.next_at, schedule.name)),
        now=now,
    )


def as_values(info: QueueInfo) -> dict[str, Any]:
    """Return the facts as JSON values."""
    figures = info.stats
    return {
        "queue": info.name,
        "version": figures.version if info.one_object else None,
        "size": figures.size,
        "size_limit": figures.size_limit if info.one_object else None,
        "segments": figures.segments,
        "segment_jobs": figures.segment_jobs,
        "segment_bytes": figures.segment_bytes,
        "unreadable": figures.unreadable,
        "warnings": list(figures.warnings),
        **_counts(figures),
        **totals_values(figures.totals),
        "workers": sum(not record.lost for record in figures.workers),
        "workers_lost": sum(record.lost for record in figures.workers),
        "holders": dict(figures.holders or {}),
        "entrypoints": {
            name: {
                **_counts(known),
                **totals_values(known.totals),
                "paused": known.paused,
                "why_waiting": info.why_waiting.get(name),
                **{key: getattr(info.rules.get(name), key, None) for key in ("max_running", "rate", "per")},
            }
            for name, known in info.entrypoints.items()
        },
        "schedules": [
            {
                "name": schedule.name,
                "cron": schedule.cron,
                "timezone": schedule.timezone,
                "entrypoint": schedule.entrypoint,
                "next_at": instant(schedule.next_at),
            }
            for schedule in info.schedules
        ],
        "dead_retention": info.settings.dead_retention,
        "blob_bytes": info.settings.blob_bytes,
    }


def _counts(figures: EntrypointStats) -> dict[str, Any]:
    oldest, claim = figures.oldest_ready_age, figures.oldest_claim_age
    return {
        "ready": figures.ready,
        "scheduled": figures.scheduled,
        "in_progress": figures.in_progress,
        "dead": figures.dead,
        "completed": figures.completed,
        "results_dropped": figures.results_dropped,
        "errors_dropped": figures.errors_dropped,
        "oldest_ready_seconds": None if oldest is None else oldest.total_seconds(),
        "oldest_claim_seconds": None if claim is None else claim.total_seconds(),
    }


def _jobs(info: QueueInfo) -> Table | str:
    shown = {name: known for name, known in info.entrypoints.items() if name in info.rules or has_jobs(known)}
    if not shown:
        return "no jobs"
    from rich.text import Text

    made = table("entrypoint", *COUNTS, numbers=COUNTS)
    for name, known in shown.items():
        label = Text(printable(name))
        if known.paused:
            label.append(" (paused)", "yellow")
        made.add_row(label, *_cells(known))
    if len(shown) > 1:
        made.add_section()
        made.add_row(Text("all", "bold"), *_cells(info.stats))
    return made


def _reasons(info: QueueInfo) -> Iterator[str]:
    """Yield a line for each entrypoint whose jobs wait for a known reason."""
    for name, reason in info.why_waiting.items():
        jobs = counted(info.entrypoints[name].ready, "ready job waits", "ready jobs wait")
        yield f"{printable(name)}: {jobs}: {reason}"


def has_jobs(figures: EntrypointStats) -> bool:
    """Return True if there are jobs of any status. Entrypoints that had jobs once have figures, too."""
    return any((figures.ready, figures.scheduled, figures.in_progress, figures.dead, figures.completed))


def _cells(figures: EntrypointStats) -> list[Text]:
    from rich.text import Text

    dead = Text(f"{figures.dead:,}", "red") if figures.dead else count(0)
    oldest = figures.oldest_ready_age
    numbers = [count(number) for number in (figures.ready, figures.scheduled, figures.in_progress)]
    return [*numbers, dead, count(figures.completed), Text("" if oldest is None else length(oldest))]


def _limits(info: QueueInfo) -> Table | None:
    limited = {name: rules for name, rules in info.rules.items() if rules.max_running or rules.rate}
    if not limited:
        return None
    from rich.text import Text

    made = table("limits", "in progress", "claims", numbers=("in progress", "claims"))
    for name, rules in sorted(limited.items()):
        running = f"{info.entrypoints[name].in_progress} of {rules.max_running}" if rules.max_running else "no limit"
        rate = f"{rules.rate} in {rules.per:g} s" if rules.rate else "no limit"
        made.add_row(Text(printable(name)), running, rate)
    return made


def _schedules(info: QueueInfo) -> Table:
    from rich.text import Text

    made = table("cron entry", "entrypoint", "when", "next (UTC)", "in", numbers=("next (UTC)", "in"))
    for schedule in info.schedules:
        made.add_row(
            Text(printable(schedule.name)),
            Text(printable(schedule.entrypoint)),
            Text(printable(f"{schedule.cron} {schedule.timezone}")),
            moment(schedule.next_at),
            length(max(timedelta(), schedule.next_at - info.now)),
        )
    return made


def _settings(settings: QueueSettings) -> list[str]:
    lines = []
    if settings.dead_retention is not None:
        lines.append(f"dead jobs are removed after {length(settings.dead_retention)}")
    if settings.blob_bytes is not None:
        lines.append(f"the queue's own size limit: {size(settings.blob_bytes)}")
    return lines
