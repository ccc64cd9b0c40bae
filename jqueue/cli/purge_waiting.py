"""The part of `jqueue purge` that removes waiting jobs, however many: they are not looked at one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from jqueue.cli.on_jobs import ask
from jqueue.cli.on_queue import OpenedQueue, certain, on_queue
from jqueue.cli.printing import jobs, show, show_json
from jqueue.domain.job import JobStatus
from jqueue.domain.printable import counted


def purge_waiting(url: str, entrypoints: Set[str], *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove all waiting jobs, and print their number.

    Args:
        url: of the queue.
        entrypoints: their entrypoints; all if empty.
        yes: True if no question is asked.
        dry_run: True if only the number of jobs is printed.
        as_json: True if JSON is printed.

    Raises:
        typer.Exit: with 1, the answer is no; with 2, it could not be done.
    """

    async def count(opened: OpenedQueue) -> Counter[str]:
        found = (await opened.view.stats(opened.now())).entrypoints or {}
        numbers = {name: each.ready + each.scheduled for name, each in found.items()}
        return Counter({name: number for name, number in numbers.items() if not entrypoints or name in entrypoints})

    async def remove(opened: OpenedQueue) -> int:
        names: list[str | None] = [*sorted(entrypoints)] or [None]
        return sum([await certain(opened.queue.purge(status=JobStatus.QUEUED, entrypoint=name)) for name in names])

    found = +on_queue(url, count, as_json=as_json)
    if not dry_run and not yes and found:
        ask(found, "Remove {jobs} for good?", as_json=as_json)
    purged = 0 if dry_run or not found else on_queue(url, remove, as_json=as_json)
    if as_json:
        show_json({"matched": found.total(), "purged": purged, **({"dry_run": True} if dry_run else {})})
    elif dry_run and found:
        show(f"{jobs(found.total())} would be purged")
    elif purged:
        show(f"{counted(purged, 'job was', 'jobs were')} purged")
    else:
        show(f"no job {'would be' if dry_run else 'was'} purged: none matches")
