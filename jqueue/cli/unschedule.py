"""`jqueue unschedule URL NAME`: removes a cron entry."""

from __future__ import annotations

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import show, show_json
from jqueue.cli.schedule import EntryName


def unschedule(url: URL, name: EntryName, as_json: AsJSON = False) -> None:
    """Remove a cron entry. The jobs that it has enqueued stay.

    Exits with 2 if there is no such entry.
    """

    async def remove(opened: OpenedQueue) -> None:
        if not await certain(opened.queue.unschedule(name)):
            raise RefusedError("there is no cron entry of this name: `jqueue schedules` lists them")

    on_queue(url, remove, as_json=as_json)
    if as_json:
        show_json({"name": name, "removed": True})
    else:
        show("the cron entry was removed")
