"""The payloads and results of jobs, for those who may see them. The page gets no more of one than it shows."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from jqueue.core.blob.codec import encode_header, join_blob
from jqueue.core.blob.lines import encode_job
from jqueue.domain.job import StoredObject
from jqueue.domain.models import Job, QueueState, header_of, record_of
from jqueue.ports.queue import JobQueue, SupportsLargeValues

SHOWN = 64 << 10
"""Bytes of a payload, or characters of a result, that are sent to the page."""


_WITHHELD = ".payloads/withheld", "0" * 64


def without_payloads(state: QueueState) -> bytes:
    """Return a queue's object as a viewer may see it: payloads are in an object that does not exist.

    It has no headers and no results of jobs either, and no fields and lines that this version cannot read, which might
    hold them.
    """
    header, suffix, digest = header_of(state), *_WITHHELD
    header = replace(
        header,
        schedules={name: each.evolve(payload=b"", headers={}, extra=None) for name, each in header.schedules.items()},
        clients={name: each.evolve(refused={}, extra=None) for name, each in header.clients.items()},
        history=None if header.history is None else header.history.evolve(batches=(), extra=None),
        extra=None,
    )
    lines = []
    for job in map(record_of, state.jobs):
        size = len(job.payload) if job.payload_object is None else job.payload_object.size
        stored = StoredObject(suffix, size, digest) if size else None
        hidden: dict[str, Any] = {"payload": b"", "headers": None, "result": None, "result_object": None, "extra": None}
        lines.append(encode_job(job.evolve(**hidden, payload_object=stored)))
    return join_blob(encode_header(header), lines)


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
