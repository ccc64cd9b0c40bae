"""What the tool shows: a bar while it runs, and a table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.kill.journal import Verb
from tests.kill.ledger import Ledger
from tests.kill.random_kills import Figures
from tests.kill.system_calls import Hits

SHOWN_EVERY = 10


class Report:
    """One run on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # It draws when it is told to: whoever forks here has no second thread.
        self._progress = Progress(
            TextColumn("{task.description:28}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
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
            self._console.print()  # the bar leaves its line open there

    def show(self, doing: str, done: int, total: int, told: str) -> None:
        """How far something is."""
        if doing not in self._tasks:
            self._tasks[doing] = self._progress.add_task(doing, total=total, told=told)
        self._progress.update(self._tasks[doing], completed=done, total=total, told=told)
        if done % SHOWN_EVERY == 0 or done >= total:
            self._progress.refresh()

    def summary(self, seconds: float, figures: Figures, ledger: Ledger, hits: dict[str, Hits]) -> None:
        """The tables."""
        if figures.kills:
            self._console.print(_random(seconds, figures, ledger))
        if hits:
            self._console.print(_system_calls(hits))


def _random(seconds: float, figures: Figures, ledger: Ledger) -> Table:
    table = Table("killed at random moments", "", title_justify="left")
    table.columns[1].justify = "right"
    table.add_row("kills", f"{figures.kills:,}")
    table.add_row("kills a second", f"{figures.kills / max(seconds, 1e-9):.1f}")
    table.add_row("commits", f"{figures.commits:,}")
    table.add_row("acknowledged calls", f"{ledger.acknowledged.total():,}")
    for verb in Verb:
        table.add_row(f"  {verb}", f"{ledger.acknowledged[verb]:,}")
    for error, count in sorted(ledger.errors.items()):
        table.add_row(f"  refused: {error}", f"{count:,}")
    table.add_row("claims revoked", f"{figures.revoked:,}")
    table.add_row("jobs enqueued, and acked once", f"{ledger.jobs:,}")
    table.add_row("jobs lost", "0")
    table.add_row("states checked", f"{ledger.states:,}")
    table.add_row("most jobs in the file", f"{figures.most_jobs:,}")
    table.add_row("temporary files left, and removed", f"{figures.temporaries:,}")
    return table


def _system_calls(hits: dict[str, Hits]) -> Table:
    names = sorted({name for hit in hits.values() for name in hit.calls})
    table = Table("killed at system call", *hits, "all")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name in names:
        counts = [hit.calls[name] for hit in hits.values()]
        table.add_row(name, *(str(count or "") for count in counts), str(sum(counts)))
    table.add_section()
    for title, attribute in (
        ("kills", "kills"),
        ("… when it had landed", "landed"),
        ("temporary files removed", "temporaries"),
        ("moments missed", "missed"),
    ):
        counts = [getattr(hit, attribute) for hit in hits.values()]
        table.add_row(title, *map(str, counts), str(sum(counts)))
    return table
