"""`jqueue pause URL ENTRYPOINT`: its jobs are no longer claimed, until `jqueue resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.printing import note, show, show_json
from jqueue.domain.printable import counted
from jqueue.domain.stats import EntrypointStats

NOBODY_HAS_IT = "no job, worker or cron entry has this entrypoint yet: check its name"

Entrypoint = Annotated[str, typer.Argument(metavar="ENTRYPOINT", help="Name of the entrypoint.", show_default=False)]


def pause(url: URL, entrypoint: Entrypoint, as_json: AsJSON = False) -> None:
    """Pause an entrypoint: workers claim none of its jobs until `jqueue resume`.

    Jobs in progress continue, and new jobs can be enqueued. An entrypoint can be paused before it has jobs.
    """

    async def pause_entrypoint(opened: OpenedQueue) -> tuple[EntrypointStats, bool]:
        await certain(opened.queue.pause(entrypoint))
        return await opened.figures(entrypoint), await opened.has(entrypoint)

    before, known = on_queue(url, pause_entrypoint, as_json=as_json)
    if not known:
        note(NOBODY_HAS_IT)
    if as_json:
        show_json({"entrypoint": entrypoint, "paused": True, "changed": not before.paused})
    elif before.paused:
        show("this entrypoint was already paused")
    else:
        waiting = counted(before.ready + before.scheduled, "job waits", "jobs wait")
        running = counted(before.in_progress, "job in progress continues", "jobs in progress continue")
        show(f"paused until `jqueue resume`: {waiting}, {running}")
