"""The worker of a backend: its handlers are the tasks that this process knows, and nothing else."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections
from django.utils import timezone

from jqueue.django.api import (
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from jqueue.django.backend import JQueueBackend, definition_of, discover_tasks, known_tasks
from jqueue.django.results import decode_call, entrypoint_of, result_of, updated
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import check_result
from jqueue.domain.models import Job
from jqueue.runtime.queue_options import options_of
from jqueue.worker import Context, Discard, Retry, Snooze, Worker
from jqueue.worker.handler_errors import portable, rebuilt
from jqueue.worker.job_log import log_about
from jqueue.worker.payloads import PayloadError
from jqueue.worker.retries import decisive


def worker_of(backend: JQueueBackend, queue_names: Sequence[str] = (), **settings: Any) -> Worker:
    """Return a worker for the tasks of all apps.

    Args:
        backend: the backend.
        queue_names: queues whose tasks it runs; by default those of the backend, and those of its tasks.
        settings: see `WorkerSettings`.
    """
    discover_tasks()
    tasks = [definition_of(task) for task in known_tasks.values()]
    names = queue_names or sorted(backend.queues | {task.queue_name for task in tasks if task.backend == backend.alias})
    worker = Worker(on_dead=_report_failure(backend), **settings)
    for task in tasks:
        options = backend.options_of(task)
        for name in names:
            worker.handler(entrypoint_of(name, task), **options)(_handler_of(task, backend))
    return worker


def _handler_of(task: Task, backend: JQueueBackend) -> Callable[..., Any]:
    """Return the handler that runs a task: on the event loop if it is async, else in a thread."""
    sender = type(backend)

    def begin(payload: bytes, ctx: Context) -> tuple[TaskResult, list[Any]]:
        """Return the result of a task that runs, and its positional arguments."""
        call = decode_call(payload)
        if call is None:
            raise PayloadError("the payload is no call of a task: enqueue it by its task")
        result = result_of(ctx.job, call, task, backend.alias)
        return result, [*([TaskContext(task_result=result)] if task.takes_context else ()), *call.args]

    def finish(result: TaskResult, value: Any, ctx: Context) -> dict[str, Any]:
        """Note the return value of a task. Return what to keep of it; None in its place if the queue cannot keep it.

        Raises:
            CancelledError: the task has outlived its timeout, or goes to another worker.
        """
        if ctx.is_cancelled:
            raise asyncio.CancelledError
        returned = normalize_json(value)
        outcome = {
            "args": result.args,
            "kwargs": result.kwargs,
            "return_value": returned,
            "worker_id": result.worker_ids[-1],
            "started_at": f"{ctx.job.claimed_at}",
        }
        limits = options_of(ctx.queue).limits
        try:
            check_result(outcome, limits, limits.object_bytes if ctx.queue.capabilities.objects else None)
        except InvalidJobError as error:
            log_about(ctx.job, logging.WARNING, " is SUCCESSFUL, but its return value is not kept: %s", error)
            outcome["return_value"] = None
        finished = {"_return_value": outcome["return_value"], "finished_at": timezone.now()}
        updated(result, status=TaskResultStatus.SUCCESSFUL, **finished)
        return outcome

    def run(payload: bytes, ctx: Context) -> Any:
        close_old_connections()
        try:
            result, args = begin(payload, ctx)
            task_started.send_robust(sender, task_result=result)
            outcome = finish(result, task.func(*args, **result.kwargs), ctx)
            task_finished.send_robust(sender, task_result=result)
            return outcome
        except BaseException as error:
            raise named(error) from None
        finally:
            close_old_connections()

    async def arun(payload: bytes, ctx: Context) -> Any:
        # As each request to Django by ASGI, a task has a thread, for its queries and the receivers of its signals.
        # One thread for all tasks would be faster, but each task would close the connection of the others.
        async with ThreadSensitiveContext():
            try:
                result, args = begin(payload, ctx)
                await task_started.asend_robust(sender, task_result=result)
                outcome = finish(result, await task.func(*args, **result.kwargs), ctx)
                await task_finished.asend_robust(sender, task_result=result)
                return outcome
            except BaseException as error:
                raise named(error) from None
            finally:
                await sync_to_async(connections.close_all)()

    return arun if inspect.iscoroutinefunction(task.func) else run


def named(error: BaseException) -> BaseException:
    """Return an error of a task with the path of its class as its name, as the queue keeps names of errors.

    jqueue's own errors, by which a task chooses what becomes of it, and those about its payload stay as they are.
    """
    error = decisive(error)
    unchanged = Retry | Discard | Snooze | PayloadError | asyncio.CancelledError | KeyboardInterrupt
    if isinstance(error, unchanged):
        return error
    kind = type(error)
    return rebuilt({**portable(error), "name": f"{kind.__module__}.{kind.__qualname__}"})


def _report_failure(backend: JQueueBackend) -> Callable[[Job], Any]:
    """Return the function that sends the signal for a task that is FAILED, once the queue says so."""

    async def on_dead(job: Job) -> None:
        try:
            result = await backend.aget_result(job.id)
        except TaskResultDoesNotExist:
            return  # it is not a task, or was tried again meanwhile and has ended
        if result.status == TaskResultStatus.FAILED:
            await task_finished.asend_robust(type(backend), task_result=result)

    return on_dead
