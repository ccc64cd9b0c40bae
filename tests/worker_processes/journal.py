"""The journal of handlers: each writes a line when it begins and one when it ends, and syncs it to the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from jqueue.worker import Context
from tests.worker_processes.processes import JOURNAL

BEGINS, ENDS = "begins", "ends"


@contextmanager
def journalled(ctx: Context) -> Iterator[None]:
    """Write that a handler begins and that it ends. A handler that raises or is cancelled writes no end."""
    _write(BEGINS, ctx)
    yield
    _write(ENDS, ctx)


def _write(what: str, ctx: Context) -> None:
    line = f"{what}\t{ctx.entrypoint}\t{ctx.job.id}\t{ctx.attempt}\t{time.time()}\n"
    os.write(_journal(), line.encode())
    os.fsync(_journal())


@cache
def _journal() -> int:
    return os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
