"""The results of a job's parents, for its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json

from jqueue.domain.errors import JobFailedError, JobNotFoundError, ResultNotKeptError, ResultTimeoutError
from jqueue.domain.models import Job
from jqueue.ports.queue import JobQueue
from jqueue.worker.payloads import PayloadError

NO_RESULT = (JobFailedError, JobNotFoundError, ResultNotKeptError, ResultTimeoutError)
"""Errors of a parent that was not done, and that the job does not wait for, or whose result is not kept."""


async def results_of_parents(queue: JobQueue, job: Job) -> dict[str, Any]:
    """Return the results of a job's parents by their ids, in the order of `after`. Those without one are left out.

    Raises:
        StorageError: the store failed, or the object of a large result is missing.
    """
    answers = await asyncio.gather(*(queue.result(each, timeout=0) for each in job.after), return_exceptions=True)
    results = dict(zip(job.after, answers, strict=True))
    for error in results.values():
        if isinstance(error, BaseException) and not isinstance(error, NO_RESULT):
            raise error
    return {each: result for each, result in results.items() if not isinstance(result, BaseException)}


def with_argument(job: Job, name: str, results: Mapping[str, Any]) -> Job:
    """Return a job of a chain with the result of the job before it among its arguments.

    Raises:
        PayloadError: that job has no result.
    """
    before = job.after[-1]
    if before not in results:
        raise PayloadError(f"job {before}, whose result is its first argument, has no result")
    return job.evolve(payload=to_json({name: results[before], **from_json(job.payload)}), encoding="named")
