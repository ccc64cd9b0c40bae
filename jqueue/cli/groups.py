"""`jqueue group URL ID`: shows a group of jobs, waits for its end, closes or cancels it, or redrives its dead jobs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, on_queue
from jqueue.cli.parameters import argument
from jqueue.cli.printing import tell
from jqueue.cli.progress import jobs_counted
from jqueue.domain.operations.groups import CancelGroup, CloseGroup, GroupStatus
from jqueue.domain.operations.operator import Redrive
from jqueue.domain.printable import counted

LOOK_EVERY = 1.0
"""Seconds between two looks at a group that is waited for."""


def group(
    url: URL,
    group_id: Annotated[str, argument("ID", "Id of the group.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has ended, with a bar at a terminal.")] = False,
    close: Annotated[bool, typer.Option("--close", help="Close it, as the program that opened it is gone.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel its jobs, and what follows.")] = False,
    redrive: Annotated[bool, typer.Option("--redrive", help="Queue its dead jobs again.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Show a group of jobs: how many of them are done, dead, gone or waiting.

    A group has ended when it is closed, and none of its jobs waits or runs. Dead jobs hold back the job that follows
    it: redrive or purge them. `jqueue ls --group ID` lists its jobs.
    """
    if close + cancel + redrive > 1:
        raise RefusedError("give one of --close, --cancel and --redrive")

    async def look(opened: OpenedQueue) -> GroupStatus:
        if close or cancel:
            await opened.apply(CloseGroup(group_id) if close else CancelGroup(group_id))
        elif redrive:
            await opened.apply(Redrive(group=group_id))
        job_group = opened.queue.group(group_id)
        status = await job_group.status()
        with jobs_counted("waiting", shown=wait) as tell_bar:
            while wait and not status.ended:
                tell_bar(status.added - status.waiting, status.added)
                await asyncio.sleep(LOOK_EVERY)
                status = await job_group.status()
        return status

    status = on_queue(url, look)
    values: dict[str, Any] = msgspec.structs.asdict(status)
    tell(values, sentence_of(status), as_json=as_json)


def sentence_of(status: GroupStatus) -> str:
    """Return a group in words."""
    numbers = {"waiting or running": status.waiting, "dead": status.dead, "cancelled, expired or purged": status.gone}
    parts = [f"{status.done:,} of {counted(status.added, 'job')} done"]
    parts += [f"{number:,} {what}" for what, number in numbers.items() if number]
    state = "cancelled" if status.cancelled else "ended" if status.ended else "closed" if status.closed else "open"
    then = ""
    if status.then_id is not None and not status.cancelled:
        then = f"; its next job {status.then_id} {'was enqueued' if status.then_enqueued else 'is not enqueued yet'}"
    return f"{state}: {', '.join(parts)}{then}"
