"""The page of a report: its head, and its assembly. Its looks are in `templates/`.

It needs nothing else: no script, no font, no file from anywhere, and its own policy forbids them. The names and the
classes of errors come from programs that enqueue jobs, so the template escapes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jqueue._version import __version__
from jqueue.domain.counting import counted
from jqueue.domain.printable import printable
from jqueue.spark.report import plots
from jqueue.spark.report.columns import Failure, Figures
from jqueue.spark.report.figures import OTHER
from jqueue.spark.report.formatting import duration, moment, number, short_names
from jqueue.spark.report.sections import sections_of

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise ImportError('the page of a report needs Jinja: pip install "jqueue[report]"') from error


@dataclass(frozen=True)
class Tile:
    """One figure at the top of the page."""

    name: str
    value: str
    kind: str = ""


def page_of(report: Figures) -> str:
    """Return the page, as HTML."""
    environment = Environment(
        loader=PackageLoader("jqueue.spark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    short = short_names(report.queues)
    several = len(short) > 1
    return environment.get_template("page.html.jinja").render(
        version=__version__,
        of=counted(len(short), "queue") if several else report.queues[0],
        queues=report.queues,
        several=several,
        moment=moment(report.now),
        instant=report.now.isoformat(),
        tiles=_tiles(report),
        notes=_notes(report),
        sections=sections_of(report, short),
    )


def _tiles(report: Figures) -> list[Tile]:
    total = report.totals[None]
    tiles = [Tile(words, number(getattr(total, field)), field) for field, words in plots.STATES if field != "expired"]
    tiles.append(Tile("oldest ready job", duration(total.oldest_age) or "none"))
    tiles.append(Tile("stale claims", number(total.stale), "stale" if total.stale else ""))
    return tiles


def _notes(report: Figures) -> list[str]:
    """Return notes for a user who reads nothing else."""
    total = report.totals[None]
    notes = []
    if not total.jobs:
        notes.append("There are no jobs.")
    if total.dead:
        whose = _most_often(report.failures, "dead")
        notes.append(f"{counted(total.dead, 'job is', 'jobs are')} dead{whose}.")
    waiting = sum(each.waiting for each in report.failures)
    if waiting:
        whose = _most_often(report.failures, "waiting")
        failed_jobs = counted(waiting, "job has failed and is", "jobs have failed and are")
        notes.append(f"{failed_jobs} waiting for another try or already in it{whose}.")
    if total.stale:
        notes.append(
            f"{counted(total.stale, 'claim looks', 'claims look')} stale: no heartbeat for longer than the claim "
            "lasts, by the clock of this report. Other workers claim such jobs again."
        )
    if total.expired:
        notes.append(f"{counted(total.expired, 'job has', 'jobs have')} expired. The next commit removes expired jobs.")
    return notes


def _most_often(failures: Sequence[Failure], what: Literal["dead", "waiting"]) -> str:
    """Return, in words, the class of errors that most of the dead or waiting jobs have."""
    worst = max(plots.by_class(failures), key=lambda each: getattr(each, what), default=None)
    if worst is None or not getattr(worst, what):
        return ""
    error = "an error of no known class" if worst.error == OTHER else worst.error
    return f", most often because of {error} ({number(getattr(worst, what))})"
