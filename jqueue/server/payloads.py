"""The payloads and results of jobs, for those who may see them. The page gets no more of one than it shows."""

from __future__ import annotations

import json
from base64 import b64encode
from codecs import getincrementaldecoder
from contextlib import aclosing, suppress
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
        schedules={
            name: each.evolve(payload=b"", headers={}, declared=None, extra=None)
            for name, each in header.schedules.items()
        },
        clients={name: each.evolve(refused={}, extra=None) for name, each in header.clients.items()},
        history=None if header.history is None else header.history.evolve(batches=(), extra=None),
        extra=None,
    )
    lines = []
    for job in map(record_of, state.jobs):
        size = len(job.payload) if job.payload_object is None else job.payload_object.size
        stored = StoredObject(suffix, size, digest) if size else None
        hidden: dict[str, Any] = {"payload": b"", "headers": None, "result": None, "result_object": None, "extra": None}
        hidden["progress"] = job.progress and job.progress._replace(text="")
        hidden["steps"] = tuple(step._replace(result=None, result_object=None) for step in job.steps)
        lines.append(encode_job(job.evolve(**hidden, payload_object=stored)))
    return join_blob(encode_header(header), lines)


def text_of(content: bytes, *, whole: bool) -> str | None:
    """Return the beginning of a payload, or a whole one, as text; None if it is no text."""
    try:  # the cut may fall within a character
        return getincrementaldecoder("utf-8")().decode(content, final=whole)
    except UnicodeDecodeError:
        return None


async def payload_of(queue: JobQueue, job: Job) -> dict[str, Any]:
    """Return the beginning of a job's payload as text, or in base64 if it is no text, and the sizes of both in bytes.

    Raises:
        StorageError: the payload is in an object of its own, which cannot be read.
    """
    content, size = job.payload, len(job.payload)
    if job.payload_object is not None and isinstance(queue, SupportsLargeValues):
        content, size = b"", job.payload_object.size
        async with aclosing(queue.open_payload(job)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) >= SHOWN:
                    break
    content = content[:SHOWN]
    if (text := text_of(content, whole=len(content) == size)) is None:
        return {"bytes": size, "shown": len(content), "text": None, "base64": b64encode(content).decode("ascii")}
    if text.lstrip()[:1] in ("{", "[") and len(content) == size:
        with suppress(ValueError, RecursionError):  # it only looks like JSON
            text = _pretty(json.loads(text))
    return {"bytes": size, "shown": len(content), "text": text, "base64": None}


async def result_of(queue: JobQueue, job: Job) -> dict[str, Any]:
    """Return the beginning of a job's result as JSON text; None if it is too large.

    Raises:
        ResultNotKeptError: there is no result.
        StorageError: the result is in an object of its own, which cannot be read.
    """
    if job.result_object is not None and job.result_object.size > SHOWN:
        return {"text": None}
    return {"text": _pretty(await queue.result(job.id, timeout=0))}


def _pretty(value: Any) -> str:
    """Return the beginning of a value as JSON for people. Indents may take many times its size, so it is cut."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > 2 * SHOWN:
            pieces.append("\n…")
            break
    return "".join(pieces).encode("utf-8", "backslashreplace").decode()  # JSON may have half a character
