"""The actions of the page in one table. The page draws its buttons and questions from it, and it checks the requests.

Each request is one commit, made only if what the operator saw still holds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from jqueue.core.view import in_chunks
from jqueue.domain.durations import LONGEST, parse_duration
from jqueue.domain.errors import (
    ChangedMeanwhileError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
    JobsUnreadableError,
    JQueueError,
    WorkerNotFoundError,
    certain,
)
from jqueue.domain.fields import LARGEST
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import SCHEDULE_OPTIONS
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Guarded, asked_by
from jqueue.domain.operations.ends import RequeueStale
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Cancel, Purge, Redrive, Reprioritise, Reschedule, StopWorker
from jqueue.domain.operations.rules import (
    Pause,
    PauseSchedule,
    Reset,
    Resume,
    RunSchedule,
    SetLimits,
    SetSchedule,
    Unschedule,
)
from jqueue.domain.rules import EntrypointRules, Schedule
from jqueue.domain.selection import QUEUED, Phase, phase_of
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.server.jobs import ORDERS, PAGE, Search, query_of, seen_of
from jqueue.server.view import View, rules_seen

CHANGED = (ChangedMeanwhileError, JobNotFoundError, JobStateError, WorkerNotFoundError)
"""Errors of an action on a job or a worker that has changed since the operator saw it."""

SECOND_THOUGHT = 10.0
"""Seconds within which the outcome of an action must be found out if the store has not answered."""

CHUNK = 1000
"""Maximum number of jobs that one commit changes."""

REQUEST_SECONDS = 10.0
"""Seconds after which a request for all jobs that match ends. The page sends it again while some are left."""

Values = Mapping[str, Any]
"""Values that the operator has entered, by the names of the fields."""

_KINDS: Mapping[str, Any] = {
    "integer": Annotated[int, Meta(ge=-LARGEST, le=LARGEST)],
    "tick": bool,
    "duration": str | Annotated[float, Meta(ge=0, le=LONGEST)],
}


@dataclass(frozen=True)
class Field:
    """A value that an action asks for. An empty one is None.

    Attributes:
        name: in the request.
        label: before the input.
        kind: "text", "integer", "duration" ("15m"), "payload" (a text of many lines) or "tick".
        hint: below the input.
        required: True if it must not be empty.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    required: bool = False

    def of(self, body: Values) -> Any:
        """Return the value in a request.

        Raises:
            InvalidJobError: it is missing or of another kind. The message does not show it.
        """
        value = body.get(self.name)
        if value is None or value == "":
            if self.required:
                raise InvalidJobError(f"the action needs {self.name!r}")
            return None
        try:
            value = msgspec.convert(value, _KINDS.get(self.kind, str))
        except msgspec.ValidationError:
            raise InvalidJobError(f"the action needs {self.name!r} of the kind {self.kind!r}") from None
        if self.kind != "duration" or isinstance(value, float):  # seconds, from an undo
            return value
        if (seconds := parse_duration(value)) is None:
            raise InvalidJobError(f"{self.name!r} must be a duration such as 90s, 15m, 12h or 7d")
        return seconds


def time(body: Values, name: str) -> datetime:
    """Return an argument that must be a time in seconds since 1970.

    Raises:
        InvalidJobError: it is something else.
    """
    try:
        return datetime.fromtimestamp(msgspec.convert(body.get(name), float), UTC)
    except (msgspec.ValidationError, OverflowError, OSError, ValueError):
        raise InvalidJobError(f"{name!r} is no time in seconds since 1970") from None


@dataclass(frozen=True)
class Action:
    """A row of the table.

    Attributes:
        on: "job", "entrypoint", "entry" (a cron entry), "worker" or "queue".
        label: of its button.
        title: the question. "{these}" stands for the job or jobs.
        text: what will happen.
        confirm: the answer that does it.
        done: said afterwards, before the name or the number.
        make: returns the operation for a target and the values of the fields. The target is the id of a job, the name
            of an entrypoint, a cron entry (None if it is a new one), the name of a worker, or nothing.
        fields: what it asks for.
        needs: capabilities of the queue.
        states: phases of the jobs that it is for.
        danger: True if it loses something.
        undo: returns the action that takes it back and its values, for the job or the rules before it.
        already: returns True if a job that still matches at a time needs no change. A request for all that match is
            sent again while jobs are left, and must come to an end.
    """

    on: str
    label: str
    title: str
    text: str
    confirm: str
    done: str
    make: Callable[[Any, Values], Operation]
    fields: tuple[Field, ...] = ()
    needs: tuple[str, ...] = ()
    states: frozenset[Phase] = frozenset()
    danger: bool = False
    undo: Callable[[Any], tuple[str, dict[str, Any]]] | None = None
    already: Callable[[Job, Values, datetime], bool] | None = None


def _enqueue(_: None, values: Values) -> Operation:
    options = {} if values["delay"] is None else {"delay": values["delay"]}
    return Enqueue(values["entrypoint"], _payload(values) or b"", priority=values["priority"] or 0, **options)


def _set_schedule(entry: Schedule | None, values: Values) -> Operation:
    """Return the operation that sets a cron entry. Options that the page does not show stay as they are."""
    options = {} if entry is None else {name: getattr(entry, name) for name in SCHEDULE_OPTIONS}
    payload = _payload(values)
    if payload is None:
        payload = b"" if entry is None else entry.payload
    options |= {"payload": payload, "timezone": values["timezone"] or "UTC", "priority": values["priority"] or 0}
    return SetSchedule(values["name"], values["cron"], values["entrypoint"], **options, by="operator")


def _payload(values: Values) -> bytes | None:
    """Return the payload that was entered; None if none was.

    Raises:
        InvalidJobError: it must be JSON and is not. The message shows none of it.
    """
    text = values["payload"]
    if text is not None and values["json"]:
        try:
            json.loads(text)
        except ValueError as error:
            place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            raise InvalidJobError(f"the payload is not JSON{place}: correct it, or clear the tick") from None
        except RecursionError:
            raise InvalidJobError("the payload is nested too deeply to be checked: clear the tick") from None
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _reschedule(job_id: str, values: Values) -> Operation:
    if values.get("run_at") is not None:  # from an undo
        return Reschedule(job_id, run_at=time(values, "run_at"))
    return Reschedule(job_id, delay=values["delay"] or 0)


def _redrive(job_id: str, values: Values) -> Operation:
    """Return the operation for a job, so that jobs of one request become ready at the rate that was entered."""
    rate = values["rate"]
    if rate is not None and rate < 1:
        raise InvalidJobError("'rate' must be at least one job a minute")
    delay = (values["delay"] or 0) + (values["before"] * 60 / rate if rate else 0)
    return Redrive(job_id, delay=delay, fresh=bool(values["fresh"]))


def _old_time(job: Job) -> tuple[str, dict[str, Any]]:
    return "reschedule", {"delay": "0s", "run_at": None if job.run_at is None else job.run_at.timestamp()}


def _set_limits(name: str, values: Values) -> Operation:
    rates = {each: values[each] for each in ("rate", "per", "key_rate", "key_per")}
    return SetLimits(name, values["max_running"], **rates, by="operator")


def _old_limits(rules: EntrypointRules) -> tuple[str, dict[str, Any]]:
    return ("reset-limits", {}) if rules.declared is None else ("limit", rules_seen(rules))


_DEAD = frozenset({Phase.DEAD})
_PRIORITY = Field("priority", "Priority", "integer", "A lower number is served first.")
_PAYLOAD = (Field("payload", "Payload", "payload"), Field("json", "The payload is JSON", "tick"))

ACTIONS: Mapping[str, Action] = {
    "cancel": Action(
        "job", "Cancel…", "Cancel {these}?",
        "A cancelled job leaves the queue with its payload. This cannot be undone.", "Cancel", "Cancelled",
        lambda job_id, _: Cancel(job_id), states=QUEUED, danger=True,
    ),
    "stop": Action(
        "job", "Stop…", "Stop {these}?",
        "The worker is told at its next heartbeat. A job that finishes before is done.", "Stop", "Told to stop",
        lambda job_id, _: Cancel(job_id, running=True), states=frozenset({Phase.IN_PROGRESS}), danger=True,
        already=lambda job, _, now: job.cancel_requested,
    ),
    "redrive": Action(
        "job", "Queue again…", "Queue {these} again?",
        "Failures are forgotten, and the job waits behind those of its priority. A job whose unique key is taken stays "
        "dead.",
        "Queue again", "Queued again", _redrive,
        (
            Field("delay", "Time from now", "duration", "For example 10m. Empty is at once."),
            Field("rate", "Jobs a minute", "integer", "Empty is all together."),
            Field("fresh", "Do finished steps again", "tick"),
        ),
        states=_DEAD, needs=("dead_letters",),
    ),
    "edit": Action(
        "one job", "Edit…", "Queue this job again with another payload?",
        "Show the payload first to correct it here. Its steps are done again.", "Queue again", "Queued again",
        lambda job_id, values: Redrive(job_id, fresh=True, payload=_payload(values) or b""), _PAYLOAD,
        states=_DEAD, needs=("dead_letters", "reschedule"),
    ),
    "remove": Action(
        "job", "Remove…", "Remove {these} for good?",
        "The payload goes too. This cannot be undone.", "Remove", "Removed",
        lambda job_id, _: Purge(JobStatus.DEAD, job_id=job_id), states=_DEAD, needs=("dead_letters",), danger=True,
    ),
    "run-now": Action(
        "job", "Run now…", "Run {these} now?", "A scheduled job becomes ready at once.", "Run now", "Ready now",
        lambda job_id, _: Reschedule(job_id, delay=0), states=frozenset({Phase.SCHEDULED}), needs=("reschedule",),
        undo=_old_time, already=lambda job, _, now: phase_of(job, now) is not Phase.SCHEDULED,
    ),
    "reschedule": Action(
        "job", "Run later…", "Run {these} later?", "", "Reschedule", "Rescheduled", _reschedule,
        (Field("delay", "Time from now", "duration", "For example 90s, 15m, 12h or 7d.", required=True),),
        states=QUEUED, needs=("reschedule",), undo=_old_time,
        already=lambda job, values, now: job.run_at == time(values, "run_at"),
    ),
    "reprioritise": Action(
        "job", "Priority…", "Change the priority of {these}?", "", "Change", "New priority",
        lambda job_id, values: Reprioritise(job_id, values["priority"]),
        (Field("priority", "Priority", "integer", "A lower number is served first.", required=True),),
        states=QUEUED, needs=("reschedule",), undo=lambda job: ("reprioritise", {"priority": job.priority}),
        already=lambda job, values, now: bool(job.priority == values["priority"]),
    ),
    "pause": Action(
        "entrypoint", "Pause…", "Pause this entrypoint?",
        "Workers claim none of its jobs until it is resumed. Jobs in progress go on.", "Pause", "Paused",
        lambda name, _: Pause(name), needs=("limits",), undo=lambda _: ("resume", {}),
    ),
    "resume": Action(
        "entrypoint", "Resume…", "Resume this entrypoint?", "Workers claim its jobs again.", "Resume", "Resumed",
        lambda name, _: Resume(name), needs=("limits",), undo=lambda _: ("pause", {}),
    ),
    "limit": Action(
        "entrypoint", "Limits…", "Limits of an entrypoint",
        "They hold for all workers, and stay when a program starts that declares others. An empty field is no limit.",
        "Set the limits", "New limits", _set_limits,
        (
            Field("entrypoint", "Entrypoint", required=True),
            Field("max_running", "Jobs in progress at once", "integer"),
            Field("rate", "Jobs started …", "integer"),
            Field("per", "… within any", "duration", "For example 60s or 1h."),
            Field("key_rate", "Jobs with the same key started …", "integer"),
            Field("key_per", "… within any", "duration"),
        ),
        needs=("limits",), undo=_old_limits,
    ),
    "reset-limits": Action(
        "entrypoint", "Reset…", "Take the limits that the program declares?",
        "They replace those that an operator has set.", "Reset", "Reset", lambda name, _: Reset(name),
        needs=("limits",),
    ),
    "schedule": Action(
        "entry", "Change…", "Set a cron entry", "Each occurrence adds one job.", "Set the entry", "Set the cron entry",
        _set_schedule,
        (
            Field("name", "Name", required=True),
            Field("cron", "Cron", hint="For example 0 3 * * * is every day at 3:00.", required=True),
            Field("timezone", "Time zone", hint="For example Europe/Berlin. Empty is UTC."),
            Field("entrypoint", "Entrypoint", required=True),
            _PRIORITY,
            Field("payload", "Payload", "payload", "Left empty, an entry keeps the payload that it has."),
            _PAYLOAD[1],
        ),
        needs=("schedules",),
    ),
    "run-schedule": Action(
        "entry", "Run now…", "Run this cron entry now?",
        "One more job is added now. The times of the entry stay as they are.", "Add the job", "Added job",
        lambda entry, _: RunSchedule(entry.name), needs=("schedules",),
    ),
    "pause-schedule": Action(
        "entry", "Pause…", "Pause this cron entry?", "It adds no jobs until it is resumed.", "Pause", "Paused",
        lambda entry, _: PauseSchedule(entry.name), needs=("schedules",),
    ),
    "resume-schedule": Action(
        "entry", "Resume…", "Resume this cron entry?", "It adds jobs again. The missed ones are left out.", "Resume",
        "Resumed", lambda entry, _: PauseSchedule(entry.name, paused=False), needs=("schedules",),
    ),
    "reset-schedule": Action(
        "entry", "Reset…", "Take the values that the program declares?", "They replace those that an operator has set.",
        "Reset", "Reset", lambda entry, _: Reset(schedule=entry.name), needs=("schedules",),
    ),
    "unschedule": Action(
        "entry", "Remove…", "Remove this cron entry?",
        "It adds no more jobs. Those that it has added stay. This cannot be undone.", "Remove the entry",
        "Removed the cron entry", lambda entry, _: Unschedule(entry.name), needs=("schedules",), danger=True,
    ),
    "stop-worker": Action(
        "worker", "Stop…", "Stop this worker?",
        "It claims no more jobs, finishes those that it has within its time, hands back the others, and ends.", "Stop",
        "Told to stop", lambda name, _: StopWorker(name), needs=("holders",), danger=True,
    ),
    "enqueue": Action(
        "queue", "Add a job…", "Add a job", "", "Add the job", "Added job", _enqueue,
        (
            Field("entrypoint", "Entrypoint", required=True),
            *_PAYLOAD,
            _PRIORITY,
            Field("delay", "Not before", "duration", "Time from now, for example 15m. Empty is at once."),
        ),
    ),
    "requeue-stale": Action(
        "queue", "Take back claims…", "Queue jobs of silent workers again?",
        "Jobs without a heartbeat for this time wait again, or are dead if they have failed often enough. A worker "
        "that still runs one of them cannot finish it.",
        "Take back", "Claims taken back", lambda _, values: RequeueStale(values["timeout"]),
        (Field("timeout", "No heartbeat for", "duration", "For example 90s or 15m.", required=True),), danger=True,
    ),
}  # fmt: skip
"""Every action by its name."""


def actions_of(queue: JobQueue) -> dict[str, Any]:
    """Return what the page must know of each action that a queue can carry out, by its name."""
    missing = set(queue.capabilities.missing)
    hidden = {"make", "undo", "already", "needs"}
    return {
        name: {key: value for key, value in vars(action).items() if key not in hidden}
        | {"states": sorted(action.states), "fields": [asdict(each) for each in action.fields]}
        for name, action in ACTIONS.items()
        if missing.isdisjoint(action.needs)
    }


@dataclass(frozen=True)
class Request:
    """An action as the page has asked for it.

    Attributes:
        name: of the action.
        queue: the queue.
        view: the queue as it was read last.
        body: the arguments, as JSON.
        clock: tells how long the request has taken.
        asked_by: name of the user's token, for the history; None if it is not known.
    """

    name: str
    queue: JobQueue
    view: View
    body: Mapping[str, Any] = field(repr=False)
    clock: Clock
    asked_by: str | None = None

    async def done(self) -> dict[str, Any]:
        """Carry out the action. Return the number of changed things, the name of a new one, and how to undo it.

        Raises:
            JQueueError: it was refused, or its outcome is not known.
        """
        action, body = ACTIONS[self.name], self.body
        before = max(0, Field("before", "", "integer").of(body) or 0)
        values = {each.name: each.of(body) for each in action.fields} | {"run_at": body.get("run_at"), "before": before}
        if action.on == "one job" and "id" not in body:
            raise InvalidJobError("'id' is missing: this is done to one job at a time")
        if action.on in ("job", "one job"):
            return await self._on_jobs(action, values)
        if action.on == "entrypoint":
            return await self._on_rules(action, values)
        if action.on == "entry":
            name = Field("name", "", required=True).of(body)
            entry = self.view.header.schedules.get(name)
            shown = entry and [entry.cron, entry.timezone, entry.entrypoint, entry.priority]
            if body.get("seen") != shown or (entry is None and self.name != "schedule"):
                raise ChangedMeanwhileError("this cron entry has changed meanwhile, or was removed or added")
            operation = action.make(entry, values)
            result = await self._result(operation if entry is None else Guarded(operation, schedule=entry))
            return {"done": 1, "name": result.id if isinstance(result, Job) else name}
        if action.on == "worker":
            name = Field("worker", "", required=True).of(body)
            return {"done": len(await self._result(action.make(name, values))), "name": name}
        result = await self._result(action.make(None, values))
        return {"done": 1, "name": result.id} if isinstance(result, Job) else {"done": result}

    async def _on_rules(self, action: Action, values: Values) -> dict[str, Any]:
        """Change the rules of an entrypoint, which must still be as the operator saw them."""
        name = Field("entrypoint", "", required=True).of(self.body)
        limits = self.view.header.entrypoints.get(name, EntrypointRules())
        if self.body.get("seen") != rules_seen(limits):
            raise ChangedMeanwhileError("the limits of this entrypoint have changed meanwhile")
        await self._result(Guarded(action.make(name, values), entrypoint=name, rules=limits))
        after = {**rules_seen(limits), **values, "paused": limits.paused if action.fields else self.name == "pause"}
        seen = {key: after[key] for key in rules_seen(limits)}
        return {"done": 1, "name": name, "undo": _undo(action, limits, {"entrypoint": name, "seen": seen})}

    async def _on_jobs(self, action: Action, values: Values) -> dict[str, Any]:
        """Change one job, the jobs that were selected, or all that match the filters of a list."""
        if "id" in self.body:
            job = await self._seen(self.body["id"], self.body.get("seen"))
            after = await self._result(Guarded(action.make(job.id, values), job=job))
            seen = {"id": job.id, "seen": seen_of(after)} if action.undo else {}
            return {"done": 1, "name": job.id, "undo": _undo(action, job, seen)}
        answer: dict[str, Any] = {"done": 0, "changed": 0, "refused": 0, "why": None, "left": False}
        again: dict[str, Any] = {}
        if "query" in self.body:
            if values.get("delay") is not None and values["run_at"] is None:  # all of them at one time
                again["run_at"] = (self.view.now + timedelta(seconds=values["delay"])).timestamp()
            await self._change_all(action, {**values, **again}, answer)
        elif jobs := await self._selected(answer):
            await self._change(jobs, action, values, answer)
        if again or answer["left"]:
            answer["again"] = again | ({"before": _place(values, answer)} if answer["left"] else {})
        if not any(answer[name] for name in ("done", "changed", "refused", "why")):
            raise ChangedMeanwhileError("there are no such jobs any longer, or they are like this already")
        return answer

    async def _change_all(self, action: Action, values: Values, answer: dict[str, Any]) -> None:
        """Change the jobs that match, until they have taken long enough. The `answer` tells if some are left."""
        until = self.clock.monotonic() + REQUEST_SECONDS
        try:
            async with aclosing(in_chunks(self._matching(action, values), CHUNK)) as chunks:
                async for jobs in chunks:
                    answer["left"] = answer["left"] or self.clock.monotonic() > until
                    if answer["left"]:
                        break
                    await self._change(jobs, action, values, answer)
        except JobsUnreadableError as error:  # all others are changed
            answer["why"] = str(error)

    async def _selected(self, answer: dict[str, Any]) -> list[Job]:
        """Return the jobs of the request that are still as the operator saw them. The others are counted."""
        try:
            selected = msgspec.convert(self.body.get("jobs"), list[tuple[str, Any]])
        except msgspec.ValidationError:
            raise InvalidJobError("the action needs 'id' and 'seen', 'jobs' or 'query'") from None
        if len(selected) > PAGE:
            raise InvalidJobError(f"at most {PAGE} jobs can be selected")
        jobs = list[Job]()
        for job_id, seen in selected:
            try:
                jobs.append(await self._seen(job_id, seen))
            except ChangedMeanwhileError:
                answer["changed"] += 1
        return jobs

    async def _change(self, jobs: list[Job], action: Action, values: Values, answer: dict[str, Any]) -> None:
        """Change some jobs in one commit, and count them. If it fails after others were changed, they are left."""
        operations = (
            asked_by(self.asked_by, Guarded(action.make(job.id, {**values, "before": place}), job=job))
            for place, job in enumerate(sorted(jobs, key=ORDERS["served"]), _place(values, answer))
        )
        try:
            results = await certain(self.queue.apply_each(*operations), SECOND_THOUGHT)
        except JQueueError as error:
            if not answer["done"]:
                raise
            answer["left"], answer["why"] = True, str(error)
            return
        for result in results:
            refused = isinstance(result, JQueueError) and not isinstance(result, CHANGED)
            answer["refused" if refused else "changed" if isinstance(result, CHANGED) else "done"] += 1
            answer["why"] = answer["why"] or (str(result) if refused else None)

    async def _seen(self, job_id: Any, seen: Any) -> Job:
        """Return a job that must still be as the operator saw it."""
        job = await self.view.queue.find(job_id) if isinstance(job_id, str) else None
        if job is None:
            raise ChangedMeanwhileError(f"job {job_id!r} has left the queue meanwhile")
        if seen_of(job) != seen:
            state = phase_of(job, self.view.now).replace("_", " ")
            raise ChangedMeanwhileError(f"job {job_id!r} has changed meanwhile: it is {state} now. Look at it again")
        return job

    async def _matching(self, action: Action, values: Values) -> AsyncGenerator[Job, None]:
        """Yield the jobs that filters pick and that have not moved since the operator looked.

        Ages and states are those of that moment.

        Raises:
            InvalidJobError: more payloads would have to be searched than a list searches.
        """
        query, seen_at = query_of(self.body["query"]).within(action.states), time(self.body, "seen_at")
        search = Search(self.view, query, seen_at)
        async with aclosing(search.jobs()) as jobs:
            async for job in jobs:
                moved = job.created_at, job.queued_at, job.claimed_at, job.dead_at
                made = action.already is not None and action.already(job, values, self.view.now)
                if not made and all(at is None or at <= seen_at for at in moved):
                    yield job
        if search.stopped:
            raise InvalidJobError("too many payloads would have to be searched: choose an entrypoint or a state too")

    async def _result(self, operation: Operation) -> Any:
        """Carry out an operation, and return its result. If the outcome is not known at first, try to find out.

        Raises:
            JQueueError: it was refused, or its outcome is not known.
        """
        [result] = await certain(self.queue.apply_each(asked_by(self.asked_by, operation)), SECOND_THOUGHT)
        if isinstance(result, JQueueError):
            raise result
        return result


def _place(values: Values, answer: Values) -> int:
    """Return the number of jobs that come before the next one of a request, or of several for the same jobs."""
    return int(values["before"] + answer["done"] + answer["changed"] + answer["refused"])


def _undo(action: Action, before: Any, seen: dict[str, Any]) -> dict[str, Any] | None:
    """Return the request that takes an action back."""
    if action.undo is None:
        return None
    name, values = action.undo(before)
    return {"action": name, "body": seen | values}
