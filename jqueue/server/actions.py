"""The actions of the page. Each is one commit, made only if what the operator saw still holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jqueue.domain.errors import (
    ChangedMeanwhileError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    UnknownOutcomeError,
)
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Reprioritise, Reschedule
from jqueue.domain.operations.rules import Pause, Resume, RunSchedule, SetLimits, Unschedule
from jqueue.domain.rules import EntrypointRules
from jqueue.domain.selection import FirstItems, Phase, Selection, phase_of
from jqueue.ports.queue import JobQueue
from jqueue.server.dead import pattern_of
from jqueue.server.jobs import ORDERS, seen_of, selection_of
from jqueue.server.view import View

CHANGED = (ChangedMeanwhileError, JobNotFoundError, JobStateError)
"""Errors of an action on a job that has changed since the operator saw it."""

LARGEST = 1e15
"""No number of an action is as large as this."""

SECOND_THOUGHT = 10.0
"""Seconds within which the outcome of an action must be found out if the store has not answered."""

CHUNK = 1000
"""Maximum number of jobs that one action on a group changes."""


@dataclass(frozen=True)
class Request:
    """An action as the page has asked for it.

    Attributes:
        queue: the queue.
        view: the queue as it was read last.
        body: the arguments, as JSON.
    """

    queue: JobQueue
    view: View
    body: Mapping[str, Any] = field(repr=False)

    def text(self, name: str) -> str:
        """Return an argument that must be a text.

        Raises:
            InvalidJobError: it is not one.
        """
        value = self.body.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidJobError(f"the action needs {name!r}, a text")
        return value

    def number(self, name: str) -> float | None:
        """Return an argument that must be a number or null.

        Raises:
            InvalidJobError: it is something else.
        """
        value = self.body.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST):
            return value
        raise InvalidJobError(f"{name!r} must be a number")

    def time(self, name: str) -> datetime | None:
        """Return an argument that must be a time in seconds since 1970, or null.

        Raises:
            InvalidJobError: it is something else.
        """
        value = self.number(name)
        try:
            return None if value is None else datetime.fromtimestamp(value, UTC)
        except (OverflowError, OSError, ValueError):
            raise InvalidJobError(f"{name!r} is no time in seconds since 1970") from None

    def integer(self, name: str) -> int | None:
        """Return an argument that must be an integer or null.

        Raises:
            InvalidJobError: it is something else.
        """
        value = self.number(name)
        if value is not None and value != int(value):
            raise InvalidJobError(f"{name!r} must be an integer")
        return None if value is None else int(value)

    async def on_job(self, operation: Callable[[str], Operation]) -> Any:
        """Carry out an operation on a job that must still be as the operator saw it, and return its result."""
        job_id = self.text("id")
        job = await self.view.queue.find(job_id)
        if job is None:
            raise ChangedMeanwhileError(f"job {job_id!r} has left the queue meanwhile")
        if seen_of(job) != self.body.get("seen"):
            state = phase_of(job, self.view.now).replace("_", " ")
            raise ChangedMeanwhileError(f"job {job_id!r} has changed meanwhile: it is {state} now. Look at it again")
        return await self.done(Guarded(operation(job_id), job=job))

    async def on_rules(self, operation: Callable[[str], Operation]) -> dict[str, Any]:
        """Change the rules of an entrypoint, which must still be as the operator saw them. Return how to undo it."""
        name, seen = self.text("entrypoint"), self.body.get("seen")
        known = self.view.header.entrypoints.get(name, EntrypointRules())
        if not isinstance(seen, dict) or seen != rules_seen(known):
            raise ChangedMeanwhileError("the limits of this entrypoint have changed meanwhile")
        await self.done(Guarded(operation(name), entrypoint=name, rules=known))
        return {"entrypoint": name, "running": known.max_running, "rate": known.rate, "per": known.per}

    async def done(self, operation: Operation) -> Any:
        """Carry out an operation, and return its result. If the outcome is not known at first, try to find out.

        Raises:
            JQueueError: it was refused, or its outcome is not known.
        """
        [result] = await certain(self.queue.apply_each(operation))
        if isinstance(result, JQueueError):
            raise result
        return result


async def certain(call: Awaitable[list[Any]]) -> list[Any]:
    """Return the results of a change. If its outcome is not known at its deadline, try some time longer to find out.

    Raises:
        UnknownOutcomeError: the outcome is still not known.
        JQueueError: the change was not made.
    """
    try:
        return await call
    except UnknownOutcomeError as error:
        found: list[Any] = await error.resolve(SECOND_THOUGHT)
        return found


def rules_seen(rules: EntrypointRules) -> dict[str, Any]:
    """Return the rules of an entrypoint as the page shows them and sends them back."""
    return {"paused": rules.paused, "running": rules.max_running, "rate": rules.rate, "per": rules.per}


async def _cancel(request: Request) -> dict[str, Any]:
    running = request.body.get("running") is True
    await request.on_job(lambda job_id: Cancel(job_id, running))
    return {"done": 1}


async def _cancel_found(request: Request) -> dict[str, Any]:
    """Cancel the queued jobs that a search finds, as far as the operator may have seen them."""
    seen_at, query = request.time("seen_at"), request.body.get("query")
    if seen_at is None or not isinstance(query, dict) or not all(isinstance(text, str) for text in query.values()):
        raise InvalidJobError("the action needs 'query' and 'seen_at', the filters and the time of the page")
    jobs = FirstItems[Job](CHUNK, ORDERS["served"])
    async for job in request.view.queue.jobs(request.view.now, selection_of(query)):
        if job.status is JobStatus.QUEUED and job.created_at <= seen_at:
            jobs.add(job)
    return await _on_jobs(request, jobs, lambda job: Guarded(Cancel(job.id), job=job))


async def _redrive(request: Request) -> dict[str, Any]:
    return {"done": await request.on_job(lambda job_id: Redrive(job_id))}


async def _remove(request: Request) -> dict[str, Any]:
    return {"done": await request.on_job(lambda job_id: Purge(JobStatus.DEAD, job_id=job_id))}


async def _redrive_group(request: Request) -> dict[str, Any]:
    return await _on_group(request, lambda job: Redrive(job.id))


async def _remove_group(request: Request) -> dict[str, Any]:
    return await _on_group(request, lambda job: Guarded(Purge(JobStatus.DEAD, job_id=job.id), job=job))


async def _on_group(request: Request, operation: Callable[[Job], Operation]) -> dict[str, Any]:
    """Carry out an operation on the dead jobs of an entrypoint with one pattern of error, as far as they are dead.

    Jobs that have died since the operator looked are left out.
    """
    entrypoint, pattern = request.text("entrypoint"), request.body.get("pattern")
    seen_at = request.time("seen_at")
    if seen_at is None:
        raise InvalidJobError("the action needs 'seen_at', the time of the page")
    group = FirstItems[Job](CHUNK, ORDERS["served"])
    dead = Selection(frozenset({Phase.DEAD}), frozenset({entrypoint}))
    async for job in request.view.queue.jobs(request.view.now, dead):
        if pattern_of(job) == pattern and (job.dead_at or seen_at) <= seen_at:
            group.add(job)
    return await _on_jobs(request, group, operation)


async def _on_jobs(request: Request, jobs: FirstItems[Job], operation: Callable[[Job], Operation]) -> dict[str, Any]:
    """Carry out an operation on each of some jobs, in one commit. Return the numbers of jobs by outcome."""
    if not jobs.number:
        raise ChangedMeanwhileError("there are no such jobs any longer")
    results = await certain(request.queue.apply_each(*(operation(job) for job in jobs.found())))
    refused = [result for result in results if isinstance(result, JQueueError)]
    changed = sum(isinstance(error, CHANGED) for error in refused)
    return {
        "done": len(results) - len(refused),
        "changed": changed,
        "refused": len(refused) - changed,
        "left": max(0, jobs.number - CHUNK),
    }


async def _purge(request: Request) -> dict[str, Any]:
    """Remove dead jobs that were dead when the operator looked."""
    entrypoint, seen_at = request.body.get("entrypoint"), request.time("seen_at")
    if seen_at is None:
        raise InvalidJobError("the action needs 'seen_at', the time of the page")
    name = None if entrypoint is None else request.text("entrypoint")
    return {"done": await request.done(Purge(JobStatus.DEAD, name, before=seen_at))}


async def _reschedule(request: Request) -> dict[str, Any]:
    """Set the time of a queued job; null means at once."""
    run_at = request.time("run_at")
    when: dict[str, Any] = {"delay": 0} if run_at is None else {"run_at": run_at}
    return _changed(await request.on_job(lambda job_id: Reschedule(job_id, **when)))


async def _reprioritise(request: Request) -> dict[str, Any]:
    priority = request.integer("priority")
    if priority is None:
        raise InvalidJobError("the action needs 'priority', an integer")
    return _changed(await request.on_job(lambda job_id: Reprioritise(job_id, priority)))


def _changed(job: Job) -> dict[str, Any]:
    """Return the answer to a change that can be undone: the job as it is now."""
    return {"done": 1, "seen": seen_of(job)}


async def _pause(request: Request) -> dict[str, Any]:
    return await request.on_rules(Pause)


async def _resume(request: Request) -> dict[str, Any]:
    return await request.on_rules(Resume)


async def _limit(request: Request) -> dict[str, Any]:
    running, rate, per = request.integer("running"), request.integer("rate"), request.number("per")
    return await request.on_rules(lambda name: SetLimits(name, running=running, rate=rate, per=per))


async def _run_schedule(request: Request) -> dict[str, Any]:
    """Enqueue a job of a cron entry now."""
    job = await _on_schedule(request, RunSchedule)
    return {"done": 1, "id": job.id}


async def _unschedule(request: Request) -> dict[str, Any]:
    """Remove a cron entry."""
    await _on_schedule(request, Unschedule)
    return {"done": 1}


async def _on_schedule(request: Request, operation: Callable[[str], Operation]) -> Any:
    """Carry out an operation on a cron entry that must still be as the operator saw it, and return its result."""
    entry = request.view.header.schedules.get(request.text("name"))
    if entry is None or request.body.get("seen") != [entry.cron, entry.timezone, entry.entrypoint]:
        raise ChangedMeanwhileError("this cron entry has changed meanwhile, or was removed")
    return await request.done(Guarded(operation(entry.name), schedule=entry))


ACTIONS: Mapping[str, tuple[Callable[[Request], Awaitable[dict[str, Any]]], tuple[str, ...]]] = {
    "cancel": (_cancel, ()),
    "cancel-found": (_cancel_found, ()),
    "redrive": (_redrive, ("dead_letters",)),
    "redrive-group": (_redrive_group, ("dead_letters",)),
    "remove": (_remove, ("dead_letters",)),
    "remove-group": (_remove_group, ("dead_letters",)),
    "purge": (_purge, ("dead_letters",)),
    "reschedule": (_reschedule, ("reschedule",)),
    "reprioritise": (_reprioritise, ("reschedule",)),
    "pause": (_pause, ("limits",)),
    "resume": (_resume, ("limits",)),
    "limit": (_limit, ("limits",)),
    "run-schedule": (_run_schedule, ("schedules",)),
    "unschedule": (_unschedule, ("schedules",)),
}
"""Each action with the capabilities that the queue needs for it."""


def actions_of(queue: JobQueue) -> list[str]:
    """Return the names of the actions that a queue can carry out."""
    missing = set(queue.capabilities.missing)
    return [name for name, (_, needed) in ACTIONS.items() if missing.isdisjoint(needed)]
