"""The payload and the result of a job, for an operator who asks for them. No more of them is sent than can be shown."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from jqueue.domain.models import Job
from jqueue.ports.queue import JobQueue, SupportsLargeValues

SHOWN = 64 << 10
"""Bytes of a payload, or characters of a result, that are sent to the page."""


async def payload_of(queue: JobQueue, job: Job) -> tuple[bytes, int]:
    """Return the beginning of a job's payload, and the size of the whole.

    Raises:
        StorageError: the payload is in an object of its own, which cannot be read.
    """
    if job.payload_object is None or not isinstance(queue, SupportsLargeValues):
        return job.payload[:SHOWN], len(job.payload)
    content = b""
    async with aclosing(queue.open_payload(job)) as pieces:
        async for piece in pieces:
            content += piece
            if len(content) >= SHOWN:
                break
    return content[:SHOWN], job.payload_object.size


async def result_of(queue: JobQueue, job: Job) -> dict[str, Any]:
    """Return the beginning of a job's result as JSON text, and the size of the whole in characters.

    Raises:
        ResultNotKeptError: there is no result.
        StorageError: the result is in an object of its own, which cannot be read.
    """
    if job.result_object is not None and job.result_object.size > SHOWN:
        return {"size": job.result_object.size, "text": None}
    text = json.dumps(await queue.result(job.id, timeout=0), indent=2, ensure_ascii=False)
    return {"size": len(text), "text": text[:SHOWN]}
