"""`jqueue schedule URL NAME`: sets a cron entry."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jqueue.cli.job_flags import with_job_flags
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, RefusedError, certain, on_queue
from jqueue.cli.payload import Payload, PayloadFile, payload_of
from jqueue.cli.printing import instant, moment, show, show_json
from jqueue.domain.job_options import ScheduleOptions
from jqueue.domain.rules import Schedule

EntryName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the cron entry.", show_default=False)]


@with_job_flags(ScheduleOptions)
def schedule(
    url: URL,
    name: EntryName,
    payload: Payload = None,
    cron: Annotated[
        str,
        typer.Option(
            metavar="FIELDS",
            help='When, as in cron: "30 2 * * *". A sixth field, before them, is seconds.',
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]
    entrypoint: Annotated[str, typer.Option(metavar="NAME", help="Entrypoint of the jobs.", show_default=False)] = ...,  # type: ignore[assignment]
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the fields: Europe/Berlin.")] = "UTC",
    file: PayloadFile = None,
    options: dict[str, Any] = {},  # noqa: B006 - replaced by the flags
    as_json: AsJSON = False,
) -> None:
    """Set a cron entry: at each of its times, one job is enqueued, whatever the number of workers.

    An entry with this name is replaced. The jobs are enqueued by the workers, so none is while no worker runs. A
    DURATION is in seconds, or has a unit: 60, 90s, 15m, 12h, 30d.
    """

    async def change(opened: OpenedQueue) -> tuple[Schedule, bool]:
        queue = opened.queue
        queue.capabilities.require("schedules")
        content = await payload_of(payload, file, queue.options.limits, queue.capabilities)
        if not isinstance(content, bytes):
            raise RefusedError(
                "the payload of a cron entry is kept in the queue itself, and this one is too large: store it "
                "elsewhere, and give its address"
            )
        known = {each.name for each in await queue.schedules()}
        call = queue.schedule(name, cron, entrypoint, content, timezone=timezone, **options)
        return await certain(call), name in known

    entry, replaced = on_queue(url, change, as_json=as_json)
    if as_json:
        told = {"name": name, "cron": entry.cron, "timezone": entry.timezone, "entrypoint": entry.entrypoint}
        show_json({**told, "next_at": instant(entry.next_at), "replaced": replaced})
    else:
        what = "replaced the entry of this name" if replaced else "added"
        show(f"{what}; the first job is enqueued at {moment(entry.next_at)} UTC")
