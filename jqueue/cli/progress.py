"""The progress of long work on the standard error, if a terminal can show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def jobs_counted(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the number of jobs that are done. The block calls the function that it gets with that number, and the total.

    Args:
        doing: the work, in a word or two.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, of: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn  # slow to import

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("jobs"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
