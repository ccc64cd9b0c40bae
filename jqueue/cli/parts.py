"""The parts of a queue that can be edited, each read into a document: see `jqueue.cli.documents`."""

from __future__ import annotations

from typing import Any

from jqueue.cli.chosen_jobs import one_job
from jqueue.cli.documents import Document, Values, duration_of, option_of, payload_given, payload_shown, plain
from jqueue.cli.on_queue import OpenedQueue, RefusedError, certain
from jqueue.cli.printing import moment
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import SCHEDULE_OPTIONS
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import AMENDABLE, Amend
from jqueue.domain.operations.rules import Configure, Pause, Resume, SetLimits, SetSchedule
from jqueue.domain.printable import counted
from jqueue.domain.rules import SETTINGS, EntrypointRules

DURATIONS = ("dead_retention", "history")
"""The settings of a queue that are durations."""


async def read_job(opened: OpenedQueue, job_id: str, *, with_payload: bool) -> Document:
    """Read the options of a job, and its payload on request.

    Raises:
        RefusedError: the job is in progress or completed, or its payload is too large to edit.
        JobNotFoundError: there is no such job.
    """
    opened.queue.capabilities.require("reschedule")
    job = await one_job(opened.view, opened.now(), job_id)
    if job.status not in (JobStatus.QUEUED, JobStatus.DEAD):
        raise RefusedError(f"this job is {_status(job)}: only a waiting or a dead job can be edited")
    if with_payload and job.payload_apart:
        raise RefusedError("the payload of this job is in an object of its own, and too large to edit")
    values = {name: plain(getattr(job, name)) for name in AMENDABLE}
    if with_payload:
        values["payload"] = payload_shown(job.payload)

    async def save(where: OpenedQueue, edited: Values) -> None:
        options = {name: option_of(name, edited[name]) for name in AMENDABLE}
        other = with_payload and edited["payload"] != values["payload"]
        payload = payload_given(edited["payload"]) if other else None
        await _apply(where, Guarded(Amend(job.id, options, payload), job=job))

    facts = [
        f"entrypoint {job.entrypoint}, {_status(job)}, {counted(job.tries, 'attempt')}, enqueued "
        f"{moment(job.created_at)} UTC"
    ]
    return Document(f"job {job.id}", [*facts, *([f"last error: {job.error}"] if job.error else [])], values, save)


def _status(job: Job) -> str:
    return {JobStatus.QUEUED: "waiting"}.get(job.status, job.status.replace("_", " "))


async def read_schedule(opened: OpenedQueue, name: str, *, with_payload: bool) -> Document:
    """Read a cron entry, and its payload on request.

    Raises:
        RefusedError: there is none of this name.
    """
    entry = {each.name: each for each in await opened.queue.schedules()}.get(name)
    if entry is None:
        raise RefusedError("there is no cron entry of this name: `jqueue schedules` lists them")
    own = ("cron", "timezone", "entrypoint")
    values = {field: plain(getattr(entry, field)) for field in (*own, *SCHEDULE_OPTIONS)}
    if with_payload:
        values["payload"] = payload_shown(entry.payload)

    async def save(where: OpenedQueue, edited: Values) -> None:
        options = {field: option_of(field, edited[field]) for field in SCHEDULE_OPTIONS}
        other = with_payload and edited["payload"] != values["payload"]
        payload = payload_given(edited["payload"]) if other else entry.payload
        given: Any = {field: edited[field] for field in own}
        after = SetSchedule(name, payload=payload, **given, **options)
        await _apply(where, Guarded(after, schedule=entry))

    return Document(f"cron entry {name}", [f"next at {moment(entry.next_at)} UTC"], values, save)


async def read_limits(opened: OpenedQueue, entrypoint: str) -> Document:
    """Read the limits and the pause of an entrypoint, which may have none."""
    opened.queue.capabilities.require("limits")
    rules = opened.view.header.entrypoints.get(entrypoint, EntrypointRules())
    values = {"paused": rules.paused, "running": rules.max_running, "rate": rules.rate, "per": plain(rules.per)}

    async def save(where: OpenedQueue, edited: Values) -> None:
        if not isinstance(edited["paused"], bool):
            raise ValueError("paused must be true or false")
        limits = {"running": edited["running"], "rate": edited["rate"], "per": duration_of("per", edited["per"])}
        pause = Pause(entrypoint) if edited["paused"] else Resume(entrypoint)
        after = SetLimits(entrypoint, **limits)
        await _apply(where, Guarded(after, entrypoint=entrypoint, rules=rules), pause)

    return Document(f"limits of entrypoint {entrypoint}", ["rate claims are allowed in any per seconds"], values, save)


async def read_settings(opened: OpenedQueue) -> Document:
    """Read the settings of the queue."""
    opened.queue.capabilities.require("limits", "retention")
    settings = await opened.queue.configure()
    values = {name: plain(getattr(settings, name)) for name in SETTINGS}

    async def save(where: OpenedQueue, edited: Values) -> None:
        given = {name: duration_of(name, value) if name in DURATIONS else value for name, value in edited.items()}
        await _apply(where, Guarded(Configure(**given), settings=settings))

    return Document(f"settings of {opened.name}", [], values, save)


async def _apply(opened: OpenedQueue, *operations: Operation) -> None:
    await certain(opened.queue.apply(*operations))
