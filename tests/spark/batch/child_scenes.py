"""Helpers for jobs in child processes: workers, jobs, and a diary that handlers in any process can write to."""

import asyncio
import ctypes
import os

import pytest

from jqueue.domain.models import Job
from jqueue.spark.batch.child import WorkInstructions
from jqueue.spark.batch.child_listener import ChildTimeouts
from jqueue.spark.batch.children import do_jobs
from jqueue.worker import Worker

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no child processes without fork")

SHORT = ChildTimeouts(late=0.3, end=0.5, exit=0.5)


def jobs_of(*payloads, entrypoint="work", **fields):
    return [
        Job(id=f"job {number}", entrypoint=entrypoint, payload=payload, attempt=7, failures=1, **fields)
        for number, payload in enumerate(payloads)
    ]


def done_by(worker, jobs, timeouts=SHORT):
    return do_jobs(WorkInstructions(lambda: worker, lambda: pytest.fail("nobody asked for the queue")), jobs, timeouts)


def make_worker(misdeed, concurrency=5, **options):
    """A worker whose handler calls `misdeed` if the payload is `bad`."""
    worker = Worker(concurrency=concurrency)

    @worker.handler("work", **options)
    async def work(payload: bytes) -> None:
        await asyncio.sleep(0)
        if payload == b"bad":
            misdeed()

    return worker


def crash():
    ctypes.string_at(0)


class Diary:
    """Lines that handlers in any process write to a file."""

    def __init__(self, path):
        self.path = path
        path.touch()

    def note(self, text):
        with self.path.open("a") as file:
            file.write(f"{text}\n")

    def read(self):
        return self.path.read_text().split("\n")[:-1]
