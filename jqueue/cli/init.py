"""`jqueue init URL`: creates an empty queue."""

from __future__ import annotations

from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.printing import show, show_json
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations.operator import CreateQueue
from jqueue.formats.queue import StoreQueue


def init(url: URL, as_json: AsJSON = False) -> None:
    """Create an empty queue.

    The folder of a file is created if it is missing. A queue that exists is left as it is, and is an error. Programs
    need no `jqueue init`: their first enqueue creates the queue.
    """

    async def make(opened: OpenedQueue) -> str:
        if isinstance(opened.queue, StoreQueue):
            raise RefusedError(
                "a queue in the format of an older program is created by its first job: `jqueue enqueue --create`"
            )
        if not opened.view.absent:
            raise RefusedError(f"there is a queue at {opened.name} already: it was left as it is")
        try:
            await certain(opened.queue.apply(CreateQueue()))
        except InvalidJobError as error:  # another program has just created it
            raise RefusedError(str(error)) from None
        return opened.name

    name = on_queue(url, make, as_json=as_json, create=True)
    if as_json:
        show_json({"queue": name, "created": True})
    else:
        show(f"created an empty queue at {name}")
