"""Journals of handlers: each writes a line when it begins and one when it ends, and syncs it to the disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jqueue.worker import Context

NAME = os.environ.get("JQUEUE_TEST_WORKER", "nobody")
"""Name of this process, given by the process that started it."""

SUFFIX = ".journal"
BEGINS, ENDS = "begins", "ends"


class Line(NamedTuple):
    """One line. Its time is taken before the write, in seconds since 1970."""

    what: str
    job_id: str
    attempt: int
    at: float


@contextmanager
def journalled(ctx: Context) -> Iterator[None]:
    """Write that a handler begins and that it ends. A handler that raises or is cancelled writes no end."""
    _write(BEGINS, ctx)
    yield
    _write(ENDS, ctx)


def _write(what: str, ctx: Context) -> None:
    line = json.dumps([what, ctx.job.id, ctx.claim.attempt, time.time()]).encode() + b"\n"
    file = _journal()
    os.write(file, line)
    os.fsync(file)


@cache
def _journal() -> int:
    return os.open(f"{NAME}{SUFFIX}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def read_journal(path: Path) -> list[Line]:
    """The lines of one process."""
    return [Line(*json.loads(line)) for line in path.read_bytes().splitlines()]


def journals(folder: Path) -> dict[str, list[Line]]:
    """The lines of each process."""
    return {path.name.removesuffix(SUFFIX): read_journal(path) for path in folder.glob(f"*{SUFFIX}")}


def bytes_written(folder: Path) -> int:
    """Size of all journals so far, in bytes."""
    return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
