"""`jqueue stats URL`: a queue in figures, with its limits and its cron entries. It only reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.printing import count, length, moment, show, show_json, size, table
from jqueue.core.shown import QueueInfo
from jqueue.domain.printable import counted, printable
from jqueue.domain.rules import QueueSettings
from jqueue.domain.stats import EntrypointStats

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COUNTS = ("ready", "scheduled", "in progress", "dead", "completed", "oldest")


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
        show_json(info.values())
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
        if info.broker is not None:
            said += f"\nserved at {printable(info.broker)}"
        return said
    return f"{size(figures.size)} of payloads"


async def _read_info(opened: OpenedQueue) -> QueueInfo:
    now, one_object = opened.now(), opened.queue.capabilities.size_limit
    await opened.view.list_segments()
    return QueueInfo.of(opened.name, opened.view.header, await opened.stats(), now, one_object=one_object)


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
