"""The data source `jqueue` called in the order of Spark, without Spark: writers, sinks, readers, and their tasks.

All that Spark sends to another process is pickled on its way here, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jqueue import BrokerQueue, DirectQueue, Limits, connect
from jqueue.domain.errors import QueueMissingError
from jqueue.operations import Enqueue
from pyspark_jqueue import DefaultSource

PICKLER: Any = CPickleSerializer()
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


PAYLOAD = schema(payload=BinaryType())
KEYED = schema(payload=BinaryType(), unique_key=StringType())


def sent(value):
    """The value as another process receives it."""
    return PICKLER.loads(PICKLER.dumps(value))


def source(url, **options) -> Any:
    given = {"path": url, **{name: str(value) for name, value in options.items() if value is not None}}
    return DefaultSource(CaseInsensitiveDict(given))


def record_batch(columns, rows):
    """Rows in the form in which Spark passes them. A row of one column may be its bare value."""
    cells = [row if isinstance(row, tuple) else (row,) for row in rows]
    arrow = to_arrow_schema(columns, timezone="UTC")
    return pa.RecordBatch.from_pylist([dict(zip(columns.names, row, strict=True)) for row in cells], schema=arrow)


class Task:
    """The context of a task of Spark, which tells its partition, its attempt, and the query."""

    def __init__(self, partition, attempt, properties):
        self.partitionId = lambda: partition
        self.taskAttemptId = lambda: attempt
        self.getLocalProperty = properties.get


def in_task(call, batches, partition=0, attempt=0, **properties):
    """Call it in a task of Spark."""
    with patch.object(TaskContext, "get", return_value=Task(partition, attempt, properties)):
        return sent(call(iter(batches)))


class Write:
    """One write of a DataFrame: tasks stage its rows, and the driver commits or aborts."""

    def __init__(self, url, columns=PAYLOAD, *, overwrite=False, entrypoint="resize", **options):
        self.columns = columns
        self.writer = source(url, entrypoint=entrypoint, **options).writer(columns, overwrite)

    def stage(self, rows, partition=0, attempt=0):
        """Run an attempt of a task. Return its message, which Spark brings to the driver."""
        return self.stage_batches([record_batch(self.columns, rows)], partition, attempt)

    def stage_batches(self, batches, partition=0, attempt=0):
        return in_task(sent(self.writer).write, batches, partition, attempt)

    def commit(self, *messages):
        sent(self.writer).commit(list(messages))

    def abort(self, *messages):
        sent(self.writer).abort(list(messages))


def write(url, rows, columns=PAYLOAD, **options):
    """Run a whole write with one task."""
    bulk = Write(url, columns, **options)
    bulk.commit(bulk.stage(rows))


class Sink:
    """The sink of one streaming query. Spark makes it anew for each call."""

    def __init__(self, url, query="57f302e8", **options):
        self.url, self.query, self.options = url, query, {"entrypoint": "resize", **options}

    @property
    def writer(self):
        return sent(source(self.url, checkpointLocation="/c", **self.options).streamWriter(PAYLOAD, False))

    def stage(self, number, *texts, partition=0, attempt=0):
        properties = {QUERY_ID: self.query, BATCH_ID: str(number)} if self.query else {}
        return in_task(self.writer.write, [record_batch(PAYLOAD, texts)], partition, attempt, **properties)

    def commit(self, number, *messages):
        self.writer.commit(list(messages), number)

    def abort(self, number, *messages):
        self.writer.abort(list(messages), number)


def snapshot(url, columns=None, *, between=lambda number: None, **options):
    """The rows of a snapshot, as dicts; `between` is called before each task, with its number."""
    made = source(url, **options)
    columns = made.schema() if columns is None else columns
    reader = made.reader(columns)
    tasks, rows = sent(reader), []
    for number, partition in enumerate(reader.partitions()):
        between(number)
        for batch in tasks.read(sent(partition)):
            assert to_arrow_schema(columns, timezone="UTC") == batch.schema
            rows += batch.to_pylist()
    return rows


def call(url, work, kind=DirectQueue, **options):
    """Call a function with a queue, in place of another process, and return its answer."""

    async def go():
        async with connect(url, kind, **options) as queue:
            return await work(queue)

    return asyncio.run(go())


def enqueue(url, operations):
    """Enqueue jobs, and return their ids."""
    jobs = call(url, lambda queue: queue.enqueue_many(operations), limits=Limits(batch_size=100_000))
    return [job.id for job in jobs]


def fill_segments(url, payloads: Iterable[Any], entrypoint="work", **options):
    """Put jobs into segments, by a queue that keeps hardly any in its object. Return their ids."""
    texts = [payload if isinstance(payload, bytes) else b"%d" % payload for payload in payloads]
    operations = [Enqueue(entrypoint, text, **options) for text in texts]
    limits = Limits(batch_size=100, hot_bytes=1)
    return [job.id for job in call(url, lambda queue: queue.enqueue_many(operations), BrokerQueue, limits=limits)]


def jobs_of(url):
    """The jobs of a queue in the order of their enqueues; none if there is no queue yet."""

    async def read(queue):
        with suppress(QueueMissingError):
            return [job async for job in queue.iterate_jobs()]
        return []

    return sorted(call(url, read), key=lambda job: job.sequence)


def texts_of(url):
    return [job.payload for job in jobs_of(url)]


def left_in(url):
    """The jobs of a queue, by payload."""
    return {job.payload: job for job in jobs_of(url)}


def version_of(url):
    return call(url, DirectQueue.read_state).version


def litter_of(url):
    """The objects beside a file that its queue does not name, locks aside."""
    path = url.removeprefix("steps://")
    folder, name = os.path.split(path)
    found = {
        os.path.relpath(os.path.join(place, each), folder)
        for place, _, files in os.walk(folder)
        for each in files
        if not each.endswith(".lock")
    }
    named = set()
    if os.path.exists(path):
        segments = call(path, lambda queue: queue.read_state(hot=True)).segments
        named = {f"{name}.segments/{each.partition('~')[0]}" for each in segments}
    return sorted(each for each in found - {name} - named if each.startswith(f"{name}."))
