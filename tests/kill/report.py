"""The output of the tool: bars while it runs, then its counts as tables that fit 80 columns, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.kill.journal import Verb
from tests.kill.ledger import Ledger
from tests.kill.random_kills import Figures
from tests.kill.system_calls import Hits

SHOWN_EVERY = 10
WITHOUT_SEGMENTS = [verb for verb in Verb if verb not in (Verb.CANCEL, Verb.CLAIM_RANGE, Verb.END_RANGE)]


class Report:
    """One run on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # No thread refreshes it: a process that forks must have one thread.
        self._progress = Progress(
            TextColumn("{task.description:24}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Report:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.refresh()
        self._progress.stop()
        if not self._console.is_terminal:
            self._console.print()  # the bar does not end its line there

    def show(self, doing: str, done: int, total: int, detail: str) -> None:
        """Show the progress of one kind of kills."""
        if doing not in self._tasks:
            self._tasks[doing] = self._progress.add_task(doing, total=total, detail=detail)
        self._progress.update(self._tasks[doing], completed=done, total=total, detail=detail)
        if done % SHOWN_EVERY == 0 or done >= total:
            self._progress.refresh()

    def summary(self, seconds: float, figures: Figures, ledger: Ledger, hits: Mapping[str, Hits]) -> None:
        """Print the tables and the verdict of a run without a violation."""
        if figures.kills:
            self._console.print(_random(seconds, figures, ledger))
        if hits:
            self._console.print(_commits(hits))
            self._console.print(_system_calls(hits.values()))
        kills = figures.kills + sum(hit.kills for hit in hits.values())
        self._console.print(f"No promise was broken by {kills:,} kills.")


def _random(seconds: float, figures: Figures, ledger: Ledger) -> Table:
    table = _table("killed at random moments", "")
    _add(table, "kills", figures.kills)
    table.add_row("kills a second", f"{figures.kills / max(seconds, 1e-9):.1f}")
    _add(table, "commits", figures.commits)
    _add(table, "acknowledged calls", ledger.acknowledged.total())
    for verb in Verb if figures.segments else WITHOUT_SEGMENTS:
        _add(table, f"  {verb}", ledger.acknowledged[verb])
    for error, count in sorted(ledger.errors.items()):
        _add(table, f"  refused: {error}", count)
    _add(table, "claims revoked", figures.revoked)
    _add(table, "jobs enqueued, and acked once", ledger.jobs)
    _add(table, "states checked", ledger.states)
    _add(table, "most jobs in the file", figures.most_jobs)
    _add(table, "temporary files left, and removed", figures.temporaries)
    if figures.segments:
        _add(table, "segments seen", len(figures.segments))
        _add(table, "ranges seen", len(figures.ranges))
        _add(table, "objects left at the end, and removed", figures.litter)
    return table


def _commits(hits: Mapping[str, Hits]) -> Table:
    """Return the table of the kills in each commit."""
    table = _table("killed in", "kills", "it had landed", "temporary files", "moments missed")
    totals = Hits()
    for name, hit in hits.items():
        _add(table, name, hit.kills, hit.landed, hit.temporaries, hit.missed)
        totals.kills += hit.kills
        totals.landed += hit.landed
        totals.temporaries += hit.temporaries
        totals.missed += hit.missed
    table.add_section()
    _add(table, "all", totals.kills, totals.landed, totals.temporaries, totals.missed)
    return table


def _system_calls(hits: Iterable[Hits]) -> Table:
    """Return the table of the kills at each system call, in all commits together."""
    table = _table("killed at system call", "kills")
    for name, count in sorted(sum((hit.calls for hit in hits), Counter[str]()).items()):
        _add(table, name, count)
    return table


def _table(*titles: str) -> Table:
    table = Table(*titles, box=box.SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _add(table: Table, title: str, *counts: int) -> None:
    table.add_row(title, *(f"{count:,}" for count in counts))
