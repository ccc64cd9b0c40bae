"""Start of fuzzing: blobs that the code itself writes, in every layout that it reads, and the corpus folder.

The corpus folder holds hand-picked files, one folder for each target. Every past finding stays there as a file.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from jqueue.core.blob.codec import encode
from jqueue.domain.header import CommitRecord, KeyHold, SetAside
from jqueue.domain.models import Job, QueueState

CORPUS = Path(__file__).parent / "corpus"

NOW = datetime(2026, 1, 1, tzinfo=UTC)
"""Time at which the seeds were written, and the first time of virtual clocks."""

SEPARATOR = b"\n\0\0\n"
"""Separates two blobs in one input: the content of the store, and the content that another program writes next."""


def _job(number: int, **fields: object) -> Job:
    base = {"id": f"job-{number}", "entrypoint": "mail", "payload": b"payload %d" % number, "created_at": NOW}
    return Job.model_validate({**base, "sequence": number, **fields})


JOBS = (
    _job(1, headers={"trace": "af31", "näme": 'té\n"xt'}, unique_key="mail:eve", unique_for=60.0),
    _job(2, run_at=NOW + timedelta(hours=8), expires_at=NOW + timedelta(days=1), priority=-5),
    _job(3, status="in_progress", attempt=2, failures=1, heartbeat_at=NOW, claim_timeout=300.0, max_attempts=3),
    _job(4, status="dead", attempt=1, failures=1, max_attempts=1, dead_at=NOW, error="not an image"),
    _job(5, entrypoint="resize", payload=bytes(range(256)), colour="red", size={"wide": [7, 2.5, None]}),
    _job(6, expires_at=NOW - timedelta(seconds=1)),
)

UNREADABLE = SetAside("bad", b'"bad": {"entrypoint": "mail", "payload": "!"}', "payload")

FULL = QueueState(
    version=11,
    queue="b1c2d3e4-93f0-4b7e-8a11-6f0d2c5b9e77",
    jobs=JOBS,
    commits={"5d8a2f1e-0c7b-4a36": CommitRecord(11, 11, NOW.timestamp(), 0.0042, "token", extra={"more": {"than": 4}})},
    evicted_through=3,
    finished={"mail-1": 1, "mail-2": 3},
    holds={"mail:bob": KeyHold("mail-1", NOW.timestamp() + 3600)},
    attempt_floor=4,
    set_aside=(UNREADABLE,),
    extra={"colour": "red", "deep": {"er": [1, None]}},
)


@cache
def blobs() -> tuple[bytes, ...]:
    """Return the same few queues in every shape and layout."""
    own = encode(FULL)
    few = encode(FULL.model_copy(update={"jobs": JOBS[:2], "set_aside": ()}))
    lone = encode(QueueState(jobs=tuple(job.evolve(attempt=job.attempt + 1) for job in JOBS), version=12))
    content = json.loads(own)
    return (
        own,
        json.dumps(content, indent=2).encode(),
        json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(),
        json.dumps(content, sort_keys=True).encode("utf-16"),
        few,
        encode(QueueState()),
        b'{"format": 2, "jobs": {\n"by hand": {"entrypoint": "mail", "payload": ""}\n}}\n',
        lone,
        _legacy(),
        b'{"jobs": [], "version": 0}',
        json.dumps({"jobs": content["jobs"], **content}, indent=1).encode(),
        own.replace(b"\n}}\n", b'\n}, "last": {"of": "all"}}\n'),
    )


def decode_seeds() -> list[bytes]:
    """Return the inputs of the decode target: one blob, or two."""
    known = blobs()
    return [*known, known[0] + SEPARATOR + known[4], known[4] + SEPARATOR + known[7], *corpus("decode")]


def choice_seeds(target: str) -> list[bytes]:
    """Return inputs of a target that reads choices. They count up, so that each first choice is made once."""
    spread = bytes((index * 37 + 11) % 256 for index in range(256))
    return [bytes([first]) + spread[first:] + spread[:first] for first in range(0, 48, 3)] + corpus(target)


def seeds(target: str) -> list[bytes]:
    """Return the inputs that a target starts from."""
    return decode_seeds() if target == "decode" else choice_seeds(target)


def corpus(target: str) -> list[bytes]:
    """Return the hand-picked inputs of a target."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


def _legacy() -> bytes:
    """Return a queue in the format of jqueue 1.0.0, with a duplicate job and a job that cannot be read."""
    fields = ("id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at")
    jobs = json.loads(encode(QueueState(jobs=JOBS)))["jobs"]
    entries = [
        {name: entry[name] for name in fields if name in entry} | {"id": job_id}
        for job_id, entry in jobs.items()
        if entry["status"] != "dead"
    ]
    return json.dumps({"jobs": [*entries, entries[0], {"id": "bad", "entrypoint": 7}], "version": 3}, indent=2).encode()
