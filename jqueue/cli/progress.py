"""The progress of long work on the standard error, if a terminal can show it. It is gone when the work ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from jqueue.cli.printing import note
from jqueue.core.view import QueueView
from jqueue.domain.job import OBJECTS
from jqueue.domain.selection import EVERY_JOB, Selection

if TYPE_CHECKING:
    from rich.progress import Progress

DEEP = 20_000
"""Number of jobs in segments from which on a queue is deep: reading all of it takes more than a moment."""


class Counted:
    """The progress of some work, as a number of done jobs. It is called with that number, and the total if it is known.

    A third argument says in a word or two what is done from now on.

    Args:
        bar: what shows it; None if no terminal does.
        doing: the work, in a word or two.
    """

    def __init__(self, bar: Progress | None = None, doing: str = "") -> None:
        self._bar = bar
        if bar is not None:
            bar.add_task(doing, total=None)

    def __call__(self, done: int, of: int | None = None, doing: str | None = None) -> None:
        """Show a number of done jobs."""
        if self._bar is not None:
            total = None if of is None else max(done, of)
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=doing)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Clear the line while something else is written to the terminal."""
        if self._bar is not None:
            self._bar.stop()
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.start()


@contextmanager
def jobs_counted(doing: str, *, shown: bool = True, of_what: str = "jobs") -> Iterator[Counted]:
    """Show the number of jobs that are done. The block calls the value that it gets with that number, and the total.

    Args:
        doing: the work, in a word or two.
        shown: False if the terminal is used for something else meanwhile.
        of_what: the counted things.
    """
    if not shown or not sys.stderr.isatty():
        yield Counted()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn  # slow to import

    of = TextColumn(of_what)
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), of
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as progress:
        yield Counted(progress, doing)


@contextmanager
def reading(
    view: QueueView, doing: str = "reading", selection: Selection = EVERY_JOB, *, shown: bool = True
) -> Iterator[tuple[QueueView, Counted]]:
    """Show the number of jobs that are read from a deep queue. The block gets the version of the queue to read.

    Args:
        view: the version of the queue.
        doing: the work, in a word or two.
        selection: the jobs that are looked for. A line says if it leaves out payloads that are not read.
        shown: False if the terminal is used for something else meanwhile.
    """
    total = number_in_segments(view, selection.entrypoints)
    with jobs_counted(doing, shown=shown and total >= DEEP) as tell:
        done = 0

        def looked(number: int) -> None:
            nonlocal done
            done += number
            tell(done, total)

        yield replace(view, looked=looked), tell
    if selection.payload is None:
        return
    deep = bool(view.header.segments) and OBJECTS in view.header.critical  # their rows may have some
    if deep or any(job.payload_apart for job in view.records.values()):
        note("payloads in objects of their own were not searched: `jqueue show URL ID --payload` shows one")


def number_in_segments(view: QueueView, names: Set[str] = frozenset()) -> int:
    """Return the number of waiting jobs in segments, of some entrypoints or of all."""
    return sum(each.waiting for each in view.header.segments.values() if not names or each.entrypoint in names)
