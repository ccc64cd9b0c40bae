"""`jqueue resume URL ENTRYPOINT`: ends a pause."""

from __future__ import annotations

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.pause import Entrypoint
from jqueue.cli.printing import show, show_json
from jqueue.domain.printable import counted
from jqueue.domain.stats import EntrypointStats


def resume(url: URL, entrypoint: Entrypoint, as_json: AsJSON = False) -> None:
    """End the pause of an entrypoint: workers claim its jobs again."""

    async def resume_entrypoint(opened: OpenedQueue) -> EntrypointStats:
        await certain(opened.queue.resume(entrypoint))
        return await opened.figures(entrypoint)

    before = on_queue(url, resume_entrypoint, as_json=as_json)
    if as_json:
        show_json({"entrypoint": entrypoint, "paused": False, "changed": before.paused})
    elif before.paused:
        show(f"resumed: {counted(before.ready, 'job is', 'jobs are')} ready")
    else:
        show("this entrypoint was not paused")
