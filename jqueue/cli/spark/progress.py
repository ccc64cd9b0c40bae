"""The progress of Spark on the standard error, if a terminal can show it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_INTERVAL = 0.2


@contextmanager
def tasks_shown(session: SparkSession, doing: str) -> Iterator[None]:
    """Show the number of Spark tasks that are done, while the block runs them.

    Args:
        session: the session that runs them.
        doing: the work in a word or two.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("tasks"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=None)
        over = threading.Event()
        poller = threading.Thread(target=_poll_stages, args=(session, progress, task, over), daemon=True)
        poller.start()
        try:
            yield
        finally:
            over.set()
            poller.join()


def _poll_stages(session: SparkSession, progress: Progress, task: Any, over: threading.Event) -> None:
    """Poll the stages again and again. A stage that is no longer active counts as done."""
    seen: dict[int, tuple[int, int]] = {}
    tracker = session.sparkContext.statusTracker()
    while not over.wait(POLL_INTERVAL):
        with suppress(Exception):  # the work does not need it
            for stage in tracker.getActiveStageIds():
                found = tracker.getStageInfo(stage)
                if found is not None:
                    seen[stage] = (found.numCompletedTasks, found.numTasks)
            for stage in seen.keys() - set(tracker.getActiveStageIds()):
                seen[stage] = (seen[stage][1], seen[stage][1])
        if seen:
            done, total = (sum(numbers) for numbers in zip(*seen.values(), strict=True))
            progress.update(task, completed=done, total=total)
