"""The work of a process for handlers: it finds the handler, does a job or a batch, and answers with plain values.

The answer is bytes, because an answer that pebble cannot read breaks its pool. `read_answer` reads it in the worker.
"""

from __future__ import annotations

import importlib
import multiprocessing
import operator
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jqueue.domain.models import Job
from jqueue.runtime.system import SystemClock
from jqueue.worker.batch_results import error_in, results_of
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_errors import PortableError, check_awaited
from jqueue.worker.handlers import Handler
from jqueue.worker.payloads import ResultError, json_value, refuse_payload_apart
from jqueue.worker.process_group import GroupLeader


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer of a process that did a batch.

    Attributes:
        results: the result of each job, or its error.
    """

    results: list[Any | PortableError]


def run_in_process(call: int, module: str, name: str, jobs: Sequence[Job], seconds: float | None) -> bytes:
    """In the process: do the jobs. Return the result and the error raised, one of them None, as bytes."""
    try:
        return pickle.dumps((_run_handler(call, module, name, jobs, seconds), None))
    except BaseException as error:
        return pickle.dumps((None, PortableError.of(error)))


def _run_handler(call: int, module: str, name: str, jobs: Sequence[Job], seconds: float | None) -> Any:
    """Find the handler, do the jobs, and return the results that must be kept."""
    handler = operator.attrgetter(name)(importlib.import_module(module))
    if not isinstance(handler, Handler):
        raise TypeError(f"{module}.{name} is not a jqueue handler in the process: decorate it where it is defined")
    process = multiprocessing.current_process()
    assert isinstance(process, GroupLeader)
    process.begin(call)
    deadline = None if seconds is None else SystemClock().now() + timedelta(seconds=seconds)
    if handler.options.batch is not None:
        return _run_batch_handler(handler, jobs, deadline)
    [job] = jobs
    value = _payload_of(handler, job)
    ctx = Context(job, deadline=deadline) if handler.signature.wants_context else None
    result = handler.signature.call(handler.function, value, ctx)
    check_awaited(result)
    return _result_of(handler, job, result)


def _run_batch_handler(handler: Handler[..., Any], jobs: Sequence[Job], deadline: datetime | None) -> Batch:
    """Do the jobs of a batch, except those with a bad payload."""
    results: list[Any] = [_caught(_payload_of, handler, job) for job in jobs]
    places = [place for place, value in enumerate(results) if not isinstance(value, PortableError)]
    if places:
        contexts = [Context(jobs[place], deadline=deadline) for place in places]
        ctx = BatchContext(handler.entrypoint, contexts, deadline=deadline)
        returned = handler.signature.call(handler.function, [results[place] for place in places], ctx)
        check_awaited(returned)
        for place, result in zip(places, results_of(returned, len(places)), strict=True):
            error = error_in(result)
            results[place] = (
                _caught(_result_of, handler, jobs[place], result) if error is None else PortableError.of(error)
            )
    return Batch(results)


def _caught(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return PortableError.of(error)


def _payload_of(handler: Handler[..., Any], job: Job) -> Any:
    """Return the payload of a job as its handler takes it; None if it takes none."""
    codec = handler.signature.codec
    if codec is None:
        return None
    refuse_payload_apart(job)
    return codec.parse(job.payload)


def _result_of(handler: Handler[..., Any], job: Job, result: Any) -> Any:
    """Return the result of a job as a JSON value if it must be kept."""
    return None if handler.keep_result_of(job) is None else json_value(handler.signature.returns, result)


def read_answer(answer: bytes) -> Any:
    """Return the result in a process's answer.

    Raises:
        BaseException: the error of the handler.
    """
    try:
        value, raised = pickle.loads(answer)
    except Exception as error:
        raise ResultError(f"the result of the handler cannot be read: {type(error).__name__}") from None
    if raised is not None:
        raise raised.rebuild()
    if isinstance(value, Batch):
        return [each.rebuild() if isinstance(each, PortableError) else each for each in value.results]
    return value
