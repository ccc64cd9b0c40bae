"""`jqueue schedule URL NAME`: sets a cron entry, pauses or removes it, or enqueues a job of it now."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jqueue.cli.help import RefusedError
from jqueue.cli.on_queue import URL, AsJSON, OpenedQueue, certain, on_queue
from jqueue.cli.options import Payload, PayloadFile, payload_of, with_job_flags
from jqueue.cli.parameters import argument, option
from jqueue.cli.printing import instant, moment, tell
from jqueue.domain.job_options import SCHEDULE_OPTIONS, ScheduleOptions
from jqueue.domain.models import Job
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.rules import PauseSchedule, Reset, RunSchedule, SetSchedule
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
    timezone: Annotated[
        str | None, option("ZONE", "Time zone of the fields: Europe/Berlin. That of a new entry is UTC by default.")
    ] = None,
    file: PayloadFile = None,
    options: dict[str, Any] = {},  # noqa: B006 - replaced by the flags
    run_now: Annotated[bool, typer.Option("--run-now", help="Enqueue a job of the entry now.")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Enqueue no jobs of the entry until --resume.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="End the pause. Missed times are left out.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Take the values that the program declares.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the entry. Its jobs stay.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Set a cron entry, which enqueues a job at each of its times; or --pause, --remove or --reset it, or --run-now.

    At each time, one job is enqueued, whatever the number of workers. If there is an entry of this name, it is changed:
    what is not given stays as it is. The jobs are enqueued by the workers, so none is while no worker runs. A DURATION
    is in seconds, or has a unit: 60, 90s, 15m, 12h, 30d. `jqueue stats` lists the entries. An entry that is changed
    here stays so when a worker starts whose program declares it differently, until --reset.

    Of the options from --run-now to --remove, at most one is taken, alone, and the entry must exist. After --run-now,
    the next worker that is free takes the job; the times of the entry stay as they are.
    """
    is_given = bool(options) or {cron, entrypoint, timezone, payload, file} != {None}
    orders = {"run": run_now, "pause": pause, "resume": resume, "reset": reset, "remove": remove}
    if sum(orders.values()) + is_given > 1:
        raise RefusedError("give one of --run-now, --pause, --resume, --reset and --remove, and no other option")

    async def change(opened: OpenedQueue) -> tuple[dict[str, Any], str]:
        queue = opened.queue
        for order, is_ordered in orders.items():
            if is_ordered:
                return await _order(opened, name, order)
        queue.capabilities.require("schedules")
        old_row = opened.view.header.schedules.get(name)
        times = {"cron": cron, "entrypoint": entrypoint, "timezone": timezone}
        settings = options | {key: value for key, value in times.items() if value is not None}
        if (payload, file) != (None, None):
            settings["payload"] = await payload_of(payload, file, queue.options.limits, queue.capabilities)
        if not settings or (old_row is None and None in (cron, entrypoint)):
            new = 'give --cron "30 2 * * *" and --entrypoint NAME'
            raise RefusedError(f"{new}; or --remove, or --run-now" if old_row is None else "give what is to be changed")
        if not isinstance(settings.get("payload", b""), bytes):
            raise RefusedError(
                "the payload of a cron entry is kept in the queue itself, and this one is too large: store it "
                "elsewhere, and give its address"
            )
        old_keys = () if old_row is None else ("cron", "entrypoint", "timezone", "payload", *SCHEDULE_OPTIONS)
        operation = SetSchedule(name, **{key: getattr(old_row, key) for key in old_keys} | settings, by="operator")
        entry = await opened.apply(operation if old_row is None else Guarded(operation, schedule=old_row))
        values = {"name": name, "cron": entry.cron, "timezone": entry.timezone, "entrypoint": entry.entrypoint}
        what = "added; the first" if old_row is None else "changed the entry of this name; the next"
        sentence = f"{what} job is enqueued at {moment(entry.next_at)} UTC"
        return {**values, "next_at": instant(entry.next_at), "replaced": old_row is not None}, sentence

    values, sentence = on_queue(url, change)
    tell(values, sentence, as_json=as_json)


async def _order(opened: OpenedQueue, name: str, order: str) -> tuple[dict[str, Any], str]:
    """Run, pause, resume, reset or remove an entry, as ordered. Return values for JSON, and a sentence."""
    if order == "remove":
        if not await certain(opened.queue.unschedule(name)):
            raise RefusedError("there is no cron entry of this name: `jqueue stats` lists them")
        return {"name": name, "removed": True}, "the cron entry was removed"
    if order == "run":
        job: Job = await opened.apply(RunSchedule(name))
        values = {"id": job.id, "entrypoint": job.entrypoint, "schedule": name}
        return values, f"enqueued job {printable(job.id)} ({printable(job.entrypoint)})"
    if order == "reset":
        was_set = await opened.apply(Reset(schedule=name))
        words = "the program's values hold again" if was_set else "no operator has changed it: it stays as it is"
        return {"name": name, "reset": was_set}, words
    entry = await opened.apply(PauseSchedule(name, paused=order == "pause"))
    next_job = f"resumed; the next job is enqueued at {moment(entry.next_at)} UTC"
    sentence = "paused: it enqueues no jobs until --resume" if entry.paused else next_job
    return {"name": name, "paused": entry.paused, "next_at": instant(entry.next_at)}, sentence
