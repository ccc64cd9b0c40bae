"""The payloads of jobs that move: read at the source, even if they are in objects beside it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Job
from jqueue.ports.queue import SupportsApply, SupportsLargeValues


async def open_payload(source: SupportsApply, job: Job) -> AsyncGenerator[bytes, None]:
    """Yield the payload of a job in pieces."""
    if not isinstance(source, SupportsLargeValues):
        raise InvalidJobError(f"the payload of job {job.id!r} is in an object, which its queue cannot read")
    async with aclosing(source.open_payload(job)) as pieces:
        async for piece in pieces:
            yield piece


def payload_size(job: Job) -> int:
    """Return the number of bytes of a payload, wherever it is."""
    return len(job.payload) if job.payload_object is None else job.payload_object.size
