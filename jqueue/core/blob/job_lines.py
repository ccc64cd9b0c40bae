"""Jobs as lines of JSON, for an export: each line is one object with the id and every other field of a job.

    {"id": "…", "entrypoint": "mail", "payload": "<base64>", "status": "queued", "sequence": 1, "created_at": "…"}

The fields are those of the job's line in the blob. A line is ASCII, so no line of an export can command a terminal.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from jqueue.core.blob.lines import dump_ascii, encode_job, raw_line, read_line
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.header import SetAside
from jqueue.domain.models import Job, job_of, record_of


def export_line(job: Job, result: Any = None) -> str:
    """Return the line of a job, without a line break. Its payload and its result must be loaded.

    Args:
        job: the job. The objects that it names are left out.
        result: its result if the job does not have it itself.
    """
    if result is not None or job.payload_object is not None or job.result_object is not None:
        kept = job.result if result is None else result
        job = job.evolve(payload_object=None, result_object=None, result=kept)
    ((job_id, fields),) = from_json(b"{" + encode_job(record_of(job)) + b"}").items()
    return dump_ascii({"id": job_id, **fields})


def import_line(line: bytes) -> Job:
    """Return the job on a line.

    Raises:
        InvalidJobError: the line is not a job. The message shows no value of it.
    """
    try:
        fields = from_json(line)
    except ValueError:
        raise InvalidJobError("it is not JSON") from None
    job_id = fields.pop("id", None) if isinstance(fields, dict) else None
    if not isinstance(job_id, str) or not job_id:
        raise InvalidJobError('it is not an object with an "id"')
    job = read_line(raw_line(job_id, fields))
    if isinstance(job, SetAside):
        raise InvalidJobError(f"it is not a job: {job.reason}")
    if job.payload_object is not None or job.result_object is not None:
        raise InvalidJobError("its payload or its result is in an object, and not on the line")
    return job_of(job)
