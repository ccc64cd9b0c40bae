"""The page of a report: its head, and its assembly. Its looks are in `templates/`.

It needs nothing else: no script, no font, no file from anywhere, and its own policy forbids them. The names and the
classes of errors come from programs that enqueue jobs, so the template escapes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from jqueue._version import __version__
from jqueue.domain.printable import counted, printable
from jqueue.runtime.posix_files import as_storage_error
from jqueue.spark.report import plots
from jqueue.spark.report.columns import Failure, Figures
from jqueue.spark.report.figures import OTHER
from jqueue.spark.report.formatting import duration, moment, number, short_names
from jqueue.spark.report.past_columns import Past
from jqueue.spark.report.past_sections import past_sections
from jqueue.spark.report.sections import Section, sections_of

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


class Part(NamedTuple):
    """A part of the page: its tiles, notes and sections.

    Attributes:
        title: its heading; "" if the page has no other part.
        about: the time that it tells of, in words.
        tiles: figures at its top.
        notes: sentences for a user who reads nothing else.
        sections: its sections.
    """

    title: str
    about: str
    tiles: Sequence[Tile]
    notes: Sequence[str]
    sections: Sequence[Section]


def write_page(path: str | Path, report: Figures | None, past: Past | None = None) -> Path:
    """Write the page to a file, and return its path. Arguments are as for `page_of`.

    Raises:
        StorageError: the file cannot be written. The message says why, and the part that was written is removed.
    """
    place, text = Path(path), page_of(report, past)
    try:
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        if place.is_file():
            with suppress(OSError):
                place.unlink()
        raise as_storage_error(error, "write the page", str(place)) from error
    return place


def page_of(report: Figures | None, past: Past | None = None) -> str:
    """Return the page, as HTML.

    Args:
        report: the present of queues; None: only the past is shown.
        past: the past of queues; None: only the present is shown.
    """
    environment = Environment(
        loader=PackageLoader("jqueue.spark.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    queues = () if report is None else report.queues
    several = len(queues) > 1
    one = queues[0] if queues else "" if past is None else past.lake
    return environment.get_template("page.html.jinja").render(
        version=__version__,
        of=counted(len(queues), "queue") if several else one,
        queues=queues,
        several=several,
        parts=[*_present(report, past is not None), *_past(past, report is not None)],
    )


def _present(report: Figures | None, both: bool) -> list[Part]:
    if report is None:
        return []
    sections = sections_of(report, short_names(report.queues))
    about = f"As it was at {moment(report.now)}"
    return [Part("Now" if both else "", about, _tiles(report), _notes(report), sections)]


def _past(past: Past | None, both: bool) -> list[Part]:
    if past is None:
        return []
    about = f"From {moment(past.since)} to {moment(past.until)}"
    return [Part("Before" if both else "", about, _past_tiles(past), (), past_sections(past))]


def _past_tiles(past: Past) -> list[Tile]:
    total = past.total
    unit, done = done_per_unit(past)
    return [
        Tile("enqueued", number(total.enqueued), "scheduled"),
        Tile("done", number(total.done), "completed"),
        Tile(f"done per {unit}", done, "completed"),
        Tile("failed attempts", number(total.failed), "in_progress" if total.failed else ""),
        Tile("dead", number(total.dead), "dead" if total.dead else ""),
        Tile("p95 wait", duration(total.p95_wait) or "none"),
        Tile("p95 run", duration(total.p95_run) or "none"),
    ]


def done_per_unit(past: Past) -> tuple[str, str]:
    """Return a unit of time that the report has at least twice, and the number of jobs done in each, in words."""
    seconds = max(1.0, (past.until - past.since).total_seconds())
    units = (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0), ("second", 1.0))
    unit, length = next((each for each in units if seconds >= 2 * each[1]), units[-1])
    done = past.total.done * length / seconds
    return unit, number(round(done)) if done >= 10 else f"{done:.1f}".removesuffix(".0")


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
