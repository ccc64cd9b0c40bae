"""A job of the queue as Django's `TaskResult`, and a call of a task as the payload of a job.

Nothing in the queue is imported or evaluated: its texts are compared with the tasks that this process knows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from jqueue.django.api import Task, TaskError, TaskResult, TaskResultStatus, normalize_json
from jqueue.domain.job import AttemptError, JobStatus
from jqueue.domain.models import Job

STATUS = {
    JobStatus.QUEUED: TaskResultStatus.READY,
    JobStatus.IN_PROGRESS: TaskResultStatus.RUNNING,
    JobStatus.DEAD: TaskResultStatus.FAILED,
    JobStatus.COMPLETED: TaskResultStatus.SUCCESSFUL,
}

UNKNOWN_WORKER = "unknown"
"""Id of the worker of an attempt that the queue no longer remembers: it keeps those of the last five that failed."""

RAISED = re.compile(r"((?:[^\W\d]\w*\.)+[^\W\d]\w*)(?=:|$| \()")
"""The path of the class that an error begins with, if a task raised it."""

OTHER_ERRORS = (
    ("timed out", "builtins.TimeoutError"),
    ("Retry", "jqueue.worker.retries.Retry"),
    ("Discard", "jqueue.worker.retries.Discard"),
    ("", "jqueue.domain.errors.JobFailedError"),
)
"""Beginnings of the texts of other errors, with the path of a class for each."""


class Call(msgspec.Struct):
    """The arguments of a task: the payload of its job."""

    args: list[Any]
    kwargs: dict[str, Any]


class FinishedCall(Call):
    """The result that is kept of a task that succeeded: its job no longer has a payload, a claim and a holder."""

    return_value: Any
    worker_id: str
    started_at: datetime


class KnownTaskError(TaskError):
    """An error whose class is looked up only in modules that are imported already: its path is text from the queue."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The class of the exception.

        Raises:
            ValueError: no module that is imported has it.
        """
        module, _, name = self.exception_class_path.rpartition(".")
        value = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if not (isinstance(value, type) and issubclass(value, BaseException)):
            raise ValueError(
                f"{self.exception_class_path!r} is no exception of a module that this process has imported"
            )
        return value


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return the arguments of a task as the payload of a job.

    Raises:
        TypeError: an argument is not a value of JSON.
        ValueError: likewise.
    """
    call = {"args": normalize_json(args), "kwargs": normalize_json(kwargs)}
    return json.dumps(call, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def decode_call(payload: bytes) -> Call | None:
    """Return the call in the payload of a job; None if it is not one of a task."""
    try:
        return msgspec.json.decode(payload, type=Call)
    except msgspec.MsgspecError:
        return None


def entrypoint_of(queue_name: str, task: Task) -> str:
    """Return the entrypoint of the jobs of a task."""
    return f"{queue_name}:{task.module_path}"


def queue_and_path_of(job: Job) -> tuple[str, str]:
    """Return the name of a task's queue, and the path of its function."""
    queue_name, _, path = job.entrypoint.rpartition(":")
    return queue_name, path


def moment(at: datetime | None) -> datetime | None:
    """Return a time as Django has it: naive and local with `USE_TZ = False`."""
    return at if at is None or settings.USE_TZ else timezone.make_naive(at, timezone.get_default_timezone())


def result_of(job: Job, call: Call, task: Task, alias: str) -> TaskResult:
    """Return the result of a task.

    Args:
        job: its job.
        call: its arguments.
        task: the task, as its module defines it.
        alias: alias of the backend.
    """
    errors, workers = list(job.errors), [error.holder or UNKNOWN_WORKER for error in job.errors]
    starts = [error.claimed_at for error in errors]
    if isinstance(call, FinishedCall):
        workers.append(call.worker_id)
        starts.append(call.started_at)
    elif job.status is JobStatus.IN_PROGRESS:
        workers.append(job.holder or UNKNOWN_WORKER)
        starts.append(job.claimed_at)
    missing = max(0, job.failures - len(workers))
    finished_at = job.finished_at if job.dead_at is None else job.dead_at
    queue_name, _ = queue_and_path_of(job)
    result = TaskResult(
        task=_as_enqueued(task, -job.priority, queue_name, moment(job.run_at), alias),
        id=job.id,
        status=STATUS[job.status],
        enqueued_at=moment(job.created_at),
        started_at=moment(starts[0] if starts else None),
        last_attempted_at=moment(starts[-1] if starts else None),
        finished_at=moment(finished_at),
        args=call.args,
        kwargs=call.kwargs,
        backend=alias,
        errors=[_error(job, each) for each in errors],
        worker_ids=[UNKNOWN_WORKER] * missing + workers,
    )
    return updated(result, _return_value=call.return_value) if isinstance(call, FinishedCall) else result


def _as_enqueued(task: Task, priority: int, queue_name: str, run_after: datetime | None, backend: str) -> Task:
    """Return a task as its job is in the queue. An operator may have given it a priority that a task cannot have."""
    changes = {"priority": priority, "queue_name": queue_name, "run_after": run_after, "backend": backend}
    copy = object.__new__(type(task))  # its constructor would validate it
    for field in fields(task):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(task, field.name)))
    return copy


def updated(result: TaskResult, **values: Any) -> TaskResult:
    """Set fields of a result, which is frozen for its other users, and return it."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result


def _error(job: Job, attempt: AttemptError) -> TaskError:
    """Return the error of an attempt. That of the last one has more of its text, and its frames."""
    text, frames = attempt.text, ""
    if attempt is job.errors[-1] and job.error is not None:
        text = job.error
        frames = "".join(f"  {frame}\n" for frame in (job.traceback or "").splitlines())
    raised = RAISED.match(text)
    path = raised[1] if raised else next(path for start, path in OTHER_ERRORS if text.startswith(start))
    head = "Traceback (most recent call last):\n" if frames else ""
    return KnownTaskError(exception_class_path=path, traceback=f"{head}{frames}{text}\n")
