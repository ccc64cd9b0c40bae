"""`jqueue schedule URL NAME`: sets a cron entry, removes it, or enqueues a job of it now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.options import Payload, PayloadFile, payload_of, with_job_flags
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import instant, moment, tell
from jqueue.domain.job_options import ScheduleOptions
from jqueue.domain.models import Job
from jqueue.domain.operations.rules import RunSchedule
from jqueue.domain.printable import printable


@with_job_flags(ScheduleOptions)
def schedule(
    url: URL,
    name: Annotated[str, argument("NAME", "Name of the cron entry.")],
    payload: Payload = None,
    cron: Annotated[
        str | None, option("FIELDS", 'When, as in cron: "30 2 * * *". A sixth field, before them, is seconds.')
    ] = None,
    entrypoint: Annotated[str | None, option("NAME", "Entrypoint of the jobs.")] = None,
    timezone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of the fields: Europe/Berlin.")] = "UTC",
    file: PayloadFile = None,
    options: dict[str, Any] = {},  # noqa: B006 - replaced by the flags
    run_now: Annotated[bool, typer.Option("--run-now", help="Enqueue a job of the entry now.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entry. Its jobs stay.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Set a cron entry, which enqueues a job at each of its times; or --remove it, or --run-now.

    At each time, one job is enqueued, whatever the number of workers. An entry with this name is replaced. The jobs are
    enqueued by the workers, so none is while no worker runs. A DURATION is in seconds, or has a unit: 60, 90s, 15m,
    12h, 30d. `jqueue stats` lists the entries.

    With --remove or --run-now, the entry must exist, and no other option is taken. After --run-now, the next worker
    that is free takes the job; the times of the entry stay as they are.
    """
    if remove or run_now:
        if (remove and run_now) or options or timezone != "UTC" or {cron, entrypoint, payload, file} != {None}:
            raise RefusedError("give --remove or --run-now, and no other option")
    elif cron is None or entrypoint is None:
        raise RefusedError('give --cron "30 2 * * *" and --entrypoint NAME; or --remove, or --run-now')

    async def change(opened: OpenedQueue) -> tuple[dict[str, Any], str]:
        queue = opened.queue
        if remove:
            if not await certain(queue.unschedule(name)):
                raise RefusedError("there is no cron entry of this name: `jqueue stats` lists them")
            return {"name": name, "removed": True}, "the cron entry was removed"
        if cron is None or entrypoint is None:
            job: Job = await opened.apply(RunSchedule(name))
            values = {"id": job.id, "entrypoint": job.entrypoint, "schedule": name}
            return values, f"enqueued job {printable(job.id)} ({printable(job.entrypoint)})"
        queue.capabilities.require("schedules")
        content = await payload_of(payload, file, queue.options.limits, queue.capabilities)
        if not isinstance(content, bytes):
            raise RefusedError(
                "the payload of a cron entry is kept in the queue itself, and this one is too large: store it "
                "elsewhere, and give its address"
            )
        replaced = name in {each.name for each in await queue.schedules()}
        entry = await certain(queue.schedule(name, cron, entrypoint, content, timezone=timezone, **options))
        values = {"name": name, "cron": entry.cron, "timezone": entry.timezone, "entrypoint": entrypoint}
        what = "replaced the entry of this name" if replaced else "added"
        sentence = f"{what}; the first job is enqueued at {moment(entry.next_at)} UTC"
        return {**values, "next_at": instant(entry.next_at), "replaced": replaced}, sentence

    values, sentence = on_queue(url, change)
    tell(values, sentence, as_json=as_json)
