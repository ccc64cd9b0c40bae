"""`jqueue watch URL`: the figures of a queue, live on the whole screen. It only reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC

from jqueue.cli.columns import Cell, Column, Terminal, cut, lines_of
from jqueue.cli.live import Interval, live
from jqueue.cli.on_queue import URL, OpenedQueue
from jqueue.cli.printing import age, brief, size
from jqueue.cli.stats import has_jobs
from jqueue.cli.workers import Holder, find_holders, seen_cell
from jqueue.domain.counters import Totals
from jqueue.domain.printable import counted, printable
from jqueue.domain.stats import EntrypointStats, QueueStats

BARS = "▁▂▃▄▅▆▇█"
SAMPLES = 40
"""Number of looks that the line of bars covers."""

HOLDERS = 8
"""Largest number of holders that are listed."""

FIXED = 8
"""Number of lines beside the two tables."""

JOBS = (
    Column("entrypoint", cut=True, least=10),
    *(Column(title, right=True) for title in ("ready", "later", "running", "dead", "oldest")),
    *(Column(title, right=True) for title in ("done", "failed", "wait", "run")),
)
RUNNING = (
    Column("holder", cut=True),
    Column("jobs", right=True),
    Column("oldest", right=True),
    Column("seen", right=True),
)


def watch(url: URL, interval: Interval = 1.0) -> None:
    """Show the figures of a queue live on the whole screen, until Ctrl-C.

    Of each entrypoint: ready, scheduled, running and dead jobs, the age of the oldest ready job, the jobs done and
    failed within the last minute, and the times below which 95% of the jobs waited and ran. Below: the holders of jobs.

    This command only reads. The queue is read again only if it has changed.
    """
    depths: deque[int] = deque(maxlen=SAMPLES)

    async def draw(opened: OpenedQueue, terminal: Terminal, room: int) -> Iterator[str]:
        stats = await opened.stats()
        depths.append(stats.ready)
        return screen(opened, stats, find_holders(opened.view), terminal, room, depths)

    live(url, draw, interval, instead="jqueue stats")


def screen(
    opened: OpenedQueue,
    stats: QueueStats,
    known: Sequence[Holder],
    terminal: Terminal,
    room: int,
    depths: Sequence[int],
) -> Iterator[str]:
    """Yield the lines of the screen.

    Args:
        opened: the queue.
        stats: its figures.
        known: its workers, and the other holders of its jobs.
        terminal: the terminal.
        room: number of lines.
        depths: numbers of ready jobs at the last looks.
    """
    width = terminal.width or 80
    yield terminal.styled(cut(printable(opened.name), width), "bold")
    full = f"{size(stats.size)} of {size(stats.size_limit)}" if stats.size_limit else size(stats.size)
    yield terminal.styled(f"{opened.now().astimezone(UTC):%H:%M:%S} UTC, version {stats.version}, {full}", "dim")
    yield ""
    yield cut(f"ready {stats.ready:,}  {bars(depths)}", width)
    yield ""
    holders = [holder for holder in known if holder.jobs or holder.record]
    listed = holders[: min(HOLDERS, max(1, room - FIXED - 4))]
    yield from _jobs(stats, terminal, room - FIXED - len(listed))
    yield ""
    yield from _holders(holders, listed, opened, terminal)
    for warning in stats.warnings:
        yield terminal.styled(cut(f"warning: {printable(warning)}", width), "yellow")


def bars(numbers: Sequence[int]) -> str:
    """Return numbers as a line of bars."""
    most = max([1, *numbers])
    return "".join(BARS[min(len(BARS) - 1, number * len(BARS) // (most + 1))] for number in numbers)


def _jobs(stats: QueueStats, terminal: Terminal, room: int) -> Iterator[str]:
    """Yield the table of entrypoints. If there is no room for all, those with the most ready jobs are listed."""
    shown = {name: known for name, known in (stats.entrypoints or {}).items() if has_jobs(known) or _is_busy(known)}
    if not shown:
        yield "no jobs"
        return
    kept = shown
    if len(shown) > max(1, room - 2):
        by_depth = sorted(shown, key=lambda name: -shown[name].ready)[: max(1, room - 3)]
        kept = {name: shown[name] for name in sorted(by_depth)}
    rows = [_row(Cell(f"{name} (paused)" if each.paused else name), each) for name, each in kept.items()]
    yield from lines_of(JOBS, [*rows, _row(Cell("all", "bold"), stats)], terminal)
    if len(kept) < len(shown):
        yield terminal.styled(f"{counted(len(shown) - len(kept), 'more entrypoint')}", "dim")


def _is_busy(known: EntrypointStats) -> bool:
    return known.totals is not None and (known.totals.last_minute.done > 0 or known.totals.last_minute.failed > 0)


def _row(name: Cell, known: EntrypointStats) -> Sequence[Cell]:
    oldest = known.oldest_ready_age
    counts = (known.ready, known.scheduled, known.in_progress)
    return (
        name,
        *(Cell(f"{number:,}", "" if number else "dim") for number in counts),
        Cell(f"{known.dead:,}", "red" if known.dead else "dim"),
        Cell("" if oldest is None else age(oldest)),
        *_pace(known.totals),
    )


def _pace(totals: Totals | None) -> Sequence[Cell]:
    if totals is None:
        return [Cell("")] * 4
    done, failed = (round(rate * 60) for rate in (totals.last_minute.done, totals.last_minute.failed))
    bounds = (totals.waits.quantile(0.95), totals.runs.quantile(0.95))
    return (
        Cell(f"{done:,}", "" if done else "dim"),
        Cell(f"{failed:,}", "red" if failed else "dim"),
        *(Cell("" if bound is None else brief(bound)) for bound in bounds),
    )


def _holders(
    holders: Sequence[Holder], listed: Sequence[Holder], opened: OpenedQueue, terminal: Terminal
) -> Iterator[str]:
    if not holders:
        yield terminal.styled("no worker was seen within the last hour", "dim")
        return
    now = opened.now()
    rows = (
        (
            Cell(each.name),
            Cell(str(each.jobs) if each.record is None else f"{each.jobs} of {each.record.slots}"),
            Cell("" if each.oldest is None else age(now - each.oldest)),
            Cell("") if each.record is None else seen_cell(each.record, now),
        )
        for each in listed
    )
    yield from lines_of(RUNNING, rows, terminal)
    if len(listed) < len(holders):
        yield terminal.styled(f"{counted(len(holders) - len(listed), 'more holder')}: `jqueue workers`", "dim")
