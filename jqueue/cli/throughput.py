"""Rates, times and claims of a queue for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from jqueue.cli.printing import age, brief, table
from jqueue.domain.counters import Totals
from jqueue.domain.printable import counted, printable
from jqueue.domain.stats import EntrypointStats, QueueStats

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RATED = ("enqueued", "claimed", "done", "failed")
WINDOWS = {"last minute": 60, "last hour": 3600, "last day": 86400}


def rates(totals: Totals | None) -> Table | None:
    """Return a table of the jobs of the last minute, hour and day, and of all; None if nothing has happened."""
    from rich.text import Text

    if totals is None or not totals.enqueued:
        return None
    made = table("jobs", *RATED, numbers=RATED)
    for name, seconds in WINDOWS.items():
        known = getattr(totals, name.replace(" ", "_"))
        made.add_row(name, *(_count(round(getattr(known, kind) * seconds), kind) for kind in RATED))
    made.add_row(Text("in all", "bold"), *(_count(getattr(totals, kind), kind) for kind in RATED))
    return made


def _count(number: int, kind: str) -> Text:
    from rich.text import Text

    return Text(f"{number:,}", "dim" if not number else "red" if kind == "failed" else "")


def times(entrypoints: Mapping[str, EntrypointStats], totals: Totals | None) -> Table | None:
    """Return a table of the times for which jobs waited and ran, by entrypoint; None if none was claimed."""
    from rich.text import Text

    known = {name: each.totals for name, each in entrypoints.items() if each.totals and each.totals.waits.count}
    if totals is None or not known:
        return None
    columns = ("median wait", "95% wait", "median run", "95% run")
    made = table("entrypoint", *columns, numbers=columns)
    for name, each in known.items():
        made.add_row(Text(printable(name)), *_times(each))
    if len(known) > 1:
        made.add_section()
        made.add_row(Text("all", "bold"), *_times(totals))
    return made


def _times(totals: Totals) -> list[str]:
    bounds = [each.quantile(share) for each in (totals.waits, totals.runs) for share in (0.5, 0.95)]
    return ["" if bound is None else brief(bound) for bound in bounds]


def claims_line(figures: QueueStats) -> str | None:
    """Return a sentence on the workers, and one on the jobs in progress and their holders; None if there are none."""
    lines = []
    if figures.workers:
        lost = sum(record.lost for record in figures.workers)
        lines.append(f"{counted(len(figures.workers) - lost, 'live worker')}{f', {lost} lost' if lost else ''}")
    if figures.in_progress and figures.oldest_claim_age is not None:
        holders = counted(len(figures.holders or {}), "holder")
        oldest = age(figures.oldest_claim_age)
        lines.append(f"{counted(figures.in_progress, 'job')} in progress with {holders}, the oldest for {oldest}")
    return "\n".join(lines) or None
