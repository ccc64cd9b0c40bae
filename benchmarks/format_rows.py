"""The rows of the formats of older queues, each against its original: `make bench ROWS=formats`; docs/formats.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.contest import OURS, Contestant, Line, Measure, Row, ours
from benchmarks.figures import Target

PAYLOAD = 64
IN_FLIGHT = 100
UNSYNCED = f"{OURS}, no fsync"
_PROGRAMS = Path(__file__).parent / "peers"


@dataclass(frozen=True, slots=True)
class Original:
    """An older queue, and its format as ours.

    Attributes:
        name: as the table shows it.
        environment: where it is installed.
        program: the file that runs it.
        url: of the same format; {folder} stands for the folder.
        note: what it does not do.
        jobs: how many.
        syncs: whether it flushes what it writes to the disk.
        headers: whether each job has one.
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
    Original("dirq 1.8, QueueSimple", "dirq", "dirq_simple.py", "dirq://{folder}/queue?kind=simple", "no fsync"),
    Original(
        "dirq 1.8, Queue",
        "dirq",
        "dirq_elements.py",
        "dirq://{folder}/queue?kind=queue",
        "no fsync",
        headers=True,
    ),
    Original("textqueue 1.1", "textqueue", "textqueue_lines.py", "textq://{folder}/queue.tq", "no fsync, no claims"),
)


def format_rows() -> list[Row]:
    """Each original on its own format, against ours there: with all guarantees, and without fsync."""
    return [_row(original) for original in ORIGINALS]


def _row(original: Original) -> Row:
    given = {"jobs": original.jobs, "payload_bytes": PAYLOAD, "in_flight": IN_FLIGHT, "headers": original.headers}
    mark = "&" if "?" in original.url else "?"
    unsynced = {**given, "url": f"{original.url}{mark}fsync=false"}
    contestants = (
        ours("formats", {**given, "url": original.url}),
        *(() if original.syncs else (ours("formats", unsynced, name=UNSYNCED),)),
        Contestant(
            original.name,
            original.environment,
            _PROGRAMS / original.program,
            given,
            note=original.note,
            is_peer=True,
        ),
    )
    like_for_like = OURS if original.syncs else UNSYNCED
    return Row(
        "formats",
        f"{original.jobs:,} jobs in the format of {original.name}, one by one, ours {IN_FLIGHT} in flight",
        contestants,
        tuple(
            Line(
                f"{what}{'' if name == OURS else ', neither with fsync'}",
                Measure(name, figure),
                Measure(original.name, figure),
                Target(">=", 1) if name == like_for_like else None,
            )
            for name in dict.fromkeys((like_for_like, OURS))
            for figure, what in (("enqueue_per_second", "enqueue/s"), ("work_per_second", "claim + ack/s"))
        ),
    )
