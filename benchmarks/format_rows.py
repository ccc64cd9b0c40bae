"""Rows that compare our formats of older queues with the originals: `make bench ROWS=formats`.

The figures are in docs/reference/formats.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contestant, Line, Measure, Row, ours
from benchmarks.figures import Target

PAYLOAD = 64
IN_FLIGHT = 100
ONE_BY_ONE = 300
"""Number of jobs where ours has one call at a time."""
FIGURES = (
    ("enqueue_per_second", "enqueue/s"),
    ("work_per_second", "claim + ack/s"),
    ("jobs_per_second", "enqueue + claim + ack/s"),
)
_PROGRAMS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Original:
    """An older queue, and our queue in the same format.

    Attributes:
        name: as the table shows it.
        environment: the name of the environment in which it is installed.
        program: the file that runs it.
        url: URL of our queue in the same format; {folder} stands for the folder.
        note: guarantees or features that it lacks.
        jobs: number of jobs.
        syncs: True if it flushes its writes to the disk.
        headers: True if each job has a header.
    """

    name: str
    environment: str
    program: str
    url: str
    note: str
    jobs: int = 2_000
    syncs: bool = False
    headers: bool = False


ORIGINALS = (
    Original(
        "vsqs 0.3",
        "vsqs",
        "vsqs_files.py",
        "vsqs://{folder}/queue",
        "fsync of each file, not of its folder; 300 jobs: it gets slower with more",
        jobs=300,
        syncs=True,
    ),
    Original("dirq 1.8, QueueSimple", "dirq", "dirq_simple.py", "dirq://{folder}/queue?kind=simple", "no tokens"),
    Original(
        "dirq 1.8, Queue",
        "dirq",
        "dirq_elements.py",
        "dirq://{folder}/queue?kind=queue",
        "no tokens",
        headers=True,
    ),
    Original("textqueue 1.1", "textqueue", "textqueue_lines.py", "textq://{folder}/queue.tq", "no claims"),
)


def format_rows() -> list[Row]:
    """Compare each original with our queue in its format: both with fsync.

    Ours has many calls in flight in one row, and one call at a time in another, as the originals always have.
    """
    return [
        *(_row(original, original.jobs, IN_FLIGHT) for original in ORIGINALS),
        *(_row(original, ONE_BY_ONE, 1) for original in ORIGINALS),
    ]


def _row(original: Original, jobs: int, in_flight: int) -> Row:
    given = {"jobs": jobs, "payload_bytes": PAYLOAD, "in_flight": in_flight, "headers": original.headers}
    title = f"{jobs:,} jobs in the format of {original.name}, one by one, ours {in_flight} in flight"
    ours_synced = ours("formats", {**given, "url": original.url})
    if original.syncs:
        theirs = _theirs(original, original.name, given)
        return Row("formats", title, (ours_synced, theirs), _lines("", OURS, theirs.name))
    theirs_synced = _theirs(original, f"{original.name}, fsync by whoever uses it", {**given, "fsync": True})
    return Row("formats", title, (ours_synced, theirs_synced), _lines(", both with fsync", OURS, theirs_synced.name))


def _theirs(original: Original, name: str, arguments: Mapping[str, Any]) -> Contestant:
    program = _PROGRAMS / original.program
    return Contestant(name, original.environment, program, arguments, note=original.note, is_peer=True)


def _lines(how: str, our_name: str, their_name: str) -> tuple[Line, ...]:
    return tuple(
        Line(f"{what}{how}", Measure(our_name, figure), Measure(their_name, figure), Target(">=", 1))
        for figure, what in FIGURES
    )
