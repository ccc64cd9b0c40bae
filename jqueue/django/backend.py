"""The backend: it makes jobs of tasks, and results of jobs. Django makes one for each thread that uses it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.asyncio import async_unsafe
from django.utils.module_loading import autodiscover_modules

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect
from jqueue.core.blob_queue import BlobQueue
from jqueue.django.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from jqueue.django.results import (
    Call,
    FinishedCall,
    decode_call,
    encode_call,
    entrypoint_of,
    queue_and_path_of,
    result_of,
)
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.job import JobStatus
from jqueue.domain.limits import LARGE_PAYLOAD_BYTES, Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.lookups import Find
from jqueue.runtime.queue_options import QueueOptions
from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.threads import in_its_own_thread
from jqueue.sync import SyncQueue
from jqueue.worker.handler_options import DEFAULT_BACKOFF, HandlerOptions
from jqueue.worker.retries import Backoff

TASK_OPTIONS: Mapping[str, Any] = {
    "max_attempts": 1,
    "backoff": DEFAULT_BACKOFF,
    "timeout": None,
    "keep_result": 3600,
}
"""Defaults of the options that a task has from its backend, unless it has its own. Durations are in seconds."""

QUEUE_OPTIONS = {"create", "token", "ca_file", "insecure"} | {
    field.name for field in fields(QueueOptions) if field.name not in ("holder", "clock", "entropy")
}
"""Options of a backend that are those of its queue."""

QUEUE_DEFAULTS: Mapping[str, Any] = {"limits": Limits(result_bytes=2 * LARGE_PAYLOAD_BYTES)}
"""Defaults of those options that are not those of a queue: a result that is kept contains the arguments of its task."""

entropy = SystemEntropy()

known_tasks: dict[str, Task] = {}
"""Every task of this process, by the path of its function. Workers call no other functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JQueueTask(Task):
    """A task with options of its own. Those that are None are the backend's.

    `@task(max_attempts=5)` sets them; with Django 6.0, `send = send.using(max_attempts=5)` in its module. `backoff` and
    `timeout` are set only there, as the worker takes them from the module.

    Attributes:
        max_attempts: number of attempts after which the task is FAILED.
        backoff: the wait before another attempt: see `Exponential`.
        timeout: time that an attempt may take, a timedelta or seconds.
        keep_result: time for which the result is kept after the task succeeded, a timedelta or seconds.
        unique_key: while an unfinished task has the key, `enqueue` returns the result of that task and adds none.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None
    timeout: Duration | None = None
    keep_result: Duration | None = None
    unique_key: str | None = None

    def using(self, **options: Any) -> JQueueTask:
        """Return the task with other options: Django's and those above."""
        return replace(self, **{name: value for name, value in options.items() if value is not None})


class JQueueBackend(BaseTaskBackend):
    """A backend whose tasks are jobs of a queue.

    Its OPTIONS are the `url` of the queue, the `TASK_OPTIONS`, and the settings of `BrokerQueue`, such as `deadline`.
    """

    task_class = JQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @property
    def queue(self) -> SyncQueue:
        """The queue of this process, for all of its threads.

        Raises:
            ImproperlyConfigured: the options do not name a queue that can be used.
        """
        try:
            return _queue_of(**self.queue_options)
        except (JQueueError, ImportError, TypeError, KeyError) as error:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}] {_text_of(error)}") from None

    @property
    def queue_options(self) -> dict[str, Any]:
        """The options of the queue, its URL among them.

        Raises:
            KeyError: there is no URL.
        """
        own = {name: value for name, value in self.options.items() if name in QUEUE_OPTIONS}
        url = self.options["url"]
        return {"url": os.fspath(url) if isinstance(url, os.PathLike) else url, **QUEUE_DEFAULTS, **own}

    def options_of(self, task: Task) -> dict[str, Any]:
        """Return the `TASK_OPTIONS` of a task: its own, else those of the backend."""
        backend = {name: self.options[name] for name in TASK_OPTIONS if name in self.options}
        return {**TASK_OPTIONS, **backend, **_own_options(task)}

    def validate_task(self, task: Task) -> None:
        """See Django. Every task comes by here, so that this process knows it."""
        super().validate_task(task)
        try:
            HandlerOptions(**_own_options(task))
        except InvalidJobError as error:
            raise InvalidTask(str(error)) from None
        registered = known_tasks.get(task.module_path)
        if registered is None or registered.func is not task.func:
            known_tasks[task.module_path] = task

    @async_unsafe("enqueue() waits for the store. In async code, await aenqueue()")
    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Add a task to the queue. Once this returns, no crash loses it."""
        result, is_new = self._add(task, args, kwargs)
        if is_new:
            task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """See `enqueue`. A thread waits for the store."""
        result, is_new = await in_its_own_thread(self._add, task, args, kwargs)
        if is_new:
            await task_enqueued.asend(type(self), task_result=result)
        return result

    @async_unsafe("get_result() waits for the store. In async code, await aget_result()")
    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task as it is now.

        Raises:
            TaskResultDoesNotExist: the queue has no task with this id, or no longer keeps its result; or this process
                does not know the task.
        """
        return self._look_up(result_id)

    async def aget_result(self, result_id: str) -> TaskResult:
        """See `get_result`. A thread waits for the store."""
        return await in_its_own_thread(self._look_up, result_id)

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """Yield the problems of the settings. No store is asked."""
        where = f"TASKS[{self.alias!r}]"
        names = sorted({"url", *TASK_OPTIONS, *QUEUE_OPTIONS})
        for name in sorted(self.options.keys() - set(names)):
            hint = f"The options are {', '.join(names)}."
            yield Error(f"{where} has the unknown option {name!r}.", hint=hint, id="jqueue.E001")
        try:
            HandlerOptions(**{name: self.options[name] for name in TASK_OPTIONS if name in self.options})
            queue = connect(**self.queue_options)
        except (JQueueError, ImportError, TypeError, KeyError) as error:
            yield Error(f"{where} {_text_of(error)}", id="jqueue.E002")
            return
        url = self.queue_options["url"]
        if not isinstance(queue, BlobQueue):
            hint = "Give the URL of a queue in jqueue's own format."
            yield Error(f"{where} names a queue of an older format, which keeps no results.", hint, id="jqueue.E003")
        elif isinstance(queue.storage, InMemoryStorage):
            hint = "Only a worker in this process can run its tasks. Give the path of a file, or the URL of a store."
            yield Warning(f"{where} names an in-memory queue, which only its own process sees.", hint, id="jqueue.W002")
        elif "://" not in url and not os.path.isabs(url):
            hint = 'Begin it with BASE_DIR, as in "url": BASE_DIR / "queue.json".'
            yield Warning(f"{where} names its queue by a path from the current folder.", hint, id="jqueue.W001")

    def _add(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[TaskResult, bool]:
        """Add a task to the queue. Return its result, and False if it is that of an earlier task with its unique key.

        Raises:
            InvalidTask: the worker would not know its timeout or its backoff.
        """
        self.validate_task(task)
        definition = definition_of(task)
        for name in ("backoff", "timeout"):
            if getattr(task, name, None) != getattr(definition, name, None):
                raise InvalidTask(f"a worker takes the {name} of a task from its module: set it where {task.name} is")
        payload, options, run_at = encode_call(args, kwargs), self.options_of(task), task.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at, timezone.get_default_timezone())
        queue, unique_key = self.queue, getattr(task, "unique_key", None)
        own_id = None if unique_key is None else entropy.new_id()
        job = queue.enqueue(
            entrypoint_of(task.queue_name, task),
            payload,
            -int(task.priority),
            run_at=run_at,
            job_id=own_id,
            unique_key=unique_key,
            max_attempts=options["max_attempts"],
            keep_result=options["keep_result"],
        )
        if own_id not in (None, job.id):
            return result_of(job, self._call_of(queue, job), self.known_task(job), self.alias), False
        call = decode_call(payload) or Call(list(args), dict(kwargs))  # as the task gets them: all keys are texts
        return result_of(job, call, task, self.alias), True

    def _look_up(self, result_id: Any) -> TaskResult:
        """Return the result with an id, which may be a UUID."""
        queue = self.queue
        try:
            [jobs] = queue.apply(Find(str(result_id), with_payload=True))
        except InvalidJobError:
            jobs = []
        if not jobs:
            raise TaskResultDoesNotExist(result_id)
        [job] = jobs
        return result_of(job, self._call_of(queue, job), self.known_task(job), self.alias)

    @staticmethod
    def _call_of(queue: SyncQueue, job: Job) -> Call:
        """Return the arguments of a task, and what it returned if it succeeded.

        Raises:
            TaskResultDoesNotExist: the job has none.
        """
        call: Call | None
        if job.status is JobStatus.COMPLETED:
            try:
                result = job.result if job.result_object is None else queue.result(job.id)
                call = msgspec.convert(result, FinishedCall)
            except (JQueueError, msgspec.ValidationError):
                call = None
        else:
            call = decode_call(b"".join(queue.open_payload(job)))
        if call is None:
            raise TaskResultDoesNotExist(f"{job.id}: its result is not kept, or it is no call of a task")
        return call

    @staticmethod
    def known_task(job: Job) -> Task:
        """Return the task of a job. Nothing that the job says is imported: apps are, if need be, as in a worker.

        Raises:
            TaskResultDoesNotExist: this process does not know it.
        """
        _, path = queue_and_path_of(job)
        if path not in known_tasks:
            discover_tasks()
        if path not in known_tasks:
            raise TaskResultDoesNotExist(
                f"{job.id}: this process knows no task {path!r}. Import its module, or call the module `tasks`, in one "
                "of INSTALLED_APPS"
            )
        return definition_of(known_tasks[path])


def discover_tasks() -> None:
    """Import the module `tasks` of every app, and know its tasks, those of other backends too."""
    autodiscover_modules("tasks")
    for app in apps.get_app_configs():
        for value in list(getattr(sys.modules.get(f"{app.name}.tasks"), "__dict__", {}).values()):
            if isinstance(value, Task):
                known_tasks.setdefault(value.module_path, value)


def definition_of(task: Task) -> Task:
    """Return the task that its module names as its function: with its `using(...)`, if it has one there."""
    named = getattr(sys.modules.get(task.func.__module__), task.name, None)
    return named if isinstance(named, Task) and named.func is task.func else task


def _own_options(task: Task) -> dict[str, Any]:
    """Return the `TASK_OPTIONS` that a task has of its own."""
    own = {name: getattr(task, name, None) for name in TASK_OPTIONS}
    return {name: value for name, value in own.items() if value is not None}


@functools.cache
def _queue_of(url: str, **options: Any) -> SyncQueue:
    """Return the queue of this process for a URL. It is opened by its first call."""
    return SyncQueue(url, **options)


def _text_of(error: Exception) -> str:
    """Return the text of an error about the options of a backend."""
    if isinstance(error, KeyError):
        return 'has no URL of its queue: give OPTIONS = {"url": BASE_DIR / "queue.json"}, or that of a store.'
    return f"cannot be used: {error}."
