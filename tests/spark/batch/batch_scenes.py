"""Helpers for tests of batches: a queue in a file, a worker, and an imitation of a Spark session."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from jqueue import DirectQueue, connect
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch import run
from jqueue.worker import Context, Worker

run_batch: Any = run.run_batch


class Session:
    """An imitation of a Spark session that runs one partition after the other in this process.

    Args:
        before: function called with the number of each partition before its task.
    """

    sparkContext: Any = SimpleNamespace(defaultParallelism=2)
    version = "4.2.0"

    def __init__(self, before=lambda number: None):
        self.before = before
        self.tags, self.interrupted, self.partitions = [], [], []

    def addTag(self, tag):
        self.tags.append(tag)

    def removeTag(self, tag):
        self.tags.remove(tag)

    def interruptTag(self, tag):
        self.interrupted.append(tag)

    def createDataFrame(self, table):
        return Frame(self, table)


class Frame:
    def __init__(self, session, table):
        self.session, self.table = session, table

    def repartitionById(self, count, column):
        self.count = count
        return self

    def mapInArrow(self, task, schema):
        self.task = task
        return self

    def collect(self):
        rows = []
        for number in range(self.count):
            self.session.before(number)
            mask = [value == number for value in self.table.column("partition").to_pylist()]
            self.session.partitions.append(sum(mask))
            for answer in self.task(iter(self.table.filter(mask).to_batches())):
                rows += [SimpleNamespace(staged=name) for name in answer.column(0).to_pylist()]
        return rows


def enqueue(url, *operations):
    async def go():
        queue = connect(url, DirectQueue)
        return await queue.enqueue_many(operations)

    return asyncio.run(go())


def state_of(url):
    return asyncio.run(connect(url, DirectQueue).read_state())


def on_queue(url, call):
    """Make a call on the queue in another process, while the event loop of the test is busy."""
    program = "import asyncio, sys; from jqueue import DirectQueue, connect; "
    program += f"asyncio.run({call.replace('queue', 'connect(sys.argv[1], DirectQueue)', 1)})"
    subprocess.run([sys.executable, "-c", program, url], check=True)


def make_worker(**options):
    worker = Worker(**options)

    @worker.handler("work", max_attempts=3)
    async def work(payload: bytes, ctx: Context) -> None:
        if payload == b"kill":
            os._exit(1)
        if payload == b"fail":
            raise ValueError("no")

    return worker


def works(*payloads):
    return [Enqueue("work", payload) for payload in payloads]


def names_beside(url):
    folder, name = os.path.split(url)
    return sorted(set(os.listdir(folder)) - {name, f"{name}.lock"})
