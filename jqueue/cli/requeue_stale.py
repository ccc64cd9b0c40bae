"""`jqueue requeue-stale URL`: takes jobs back from workers that no longer confirm their claims."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.printing import jobs, refusal, show, show_json
from jqueue.cli.values import duration
from jqueue.domain.printable import counted
from jqueue.domain.selection import Phase, Selection


def requeue_stale(
    url: URL,
    timeout: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Time without a heartbeat: 60, 90s, 15m, 12h.", show_default=False),
    ] = ...,  # type: ignore[assignment]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the number of jobs.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Take jobs back from workers that have not confirmed their claims for a time.

    They are queued again, or dead if they have used up their attempts. If such a worker is alive after all, it learns
    that it lost the job, and cannot finish it.

    Workers do this by themselves, after the timeout of each claim (5 minutes by default). Use the command to be
    quicker. A live worker sends a heartbeat every fifth of that timeout.
    """
    try:
        seconds = duration("--timeout", timeout)
    except ValueError as error:
        raise refusal(str(error), as_json=as_json) from None

    async def take_back(opened: OpenedQueue) -> int:
        if not dry_run:
            return int(await certain(opened.queue.requeue_stale(seconds)))
        now = opened.now()
        cutoff, claimed = now - timedelta(seconds=seconds), Selection(frozenset({Phase.IN_PROGRESS}))
        beats = [job.heartbeat_at async for job in opened.view.jobs(now, claimed)]
        return sum(beat is None or beat <= cutoff for beat in beats)

    found = on_queue(url, take_back, as_json=as_json)
    if as_json:
        show_json({"requeued": 0, "would_requeue": found} if dry_run else {"requeued": found})
    elif dry_run:
        show(f"{counted(found, 'job has', 'jobs have')} no heartbeat within this time")
    else:
        show(f"{jobs(found)} taken back")
