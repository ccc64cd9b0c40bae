"""Helpers for tests of bulk enqueue: rows in the form of Spark, tasks without Spark, and the contents of a queue."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from jqueue import DirectQueue, connect
from jqueue.domain.errors import QueueMissingError, StorageError, StorageFatalError
from jqueue.domain.operations import LastTransaction
from jqueue.spark.enqueue.committing import TaskAttempt
from jqueue.spark.enqueue.writing import BulkWriter
from tests.object_stores import BUCKET, store_of

STORES = ["file", pytest.param("seaweedfs", marks=pytest.mark.full)]


def url_on(request, tmp_path, name):
    """The URL of a new queue in a file, or on the server with this name."""
    if name == "file":
        return str(tmp_path / "queue.json")
    store = store_of(request, name)
    server = store.server
    login = f"{quote(server.access_key, safe='')}:{quote(server.secret_key, safe='')}"
    options = f"endpoint_url={quote(server.endpoint_url, safe='')}&region_name={server.region}"
    return f"s3://{login}@{BUCKET}/{quote(store.new_key())}?{options}"


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def batch(columns, *rows):
    """Rows in the form in which Spark passes them: a record batch for a schema."""
    arrow = to_arrow_schema(columns, timezone="UTC")
    return pa.RecordBatch.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], schema=arrow)


PAYLOAD = schema(payload=BinaryType())
KEYED = schema(payload=BinaryType(), unique_key=StringType())


def payloads(*texts):
    return batch(PAYLOAD, *((text,) for text in texts))


def writer(url, columns=PAYLOAD, overwrite=False, **options):
    return BulkWriter({"path": url, "entrypoint": "resize", **options}, columns, overwrite)


def without_entrypoint(url, columns, **options):
    return BulkWriter({"path": url, **options}, columns, False)


def task(partition=0, attempt=0, **properties):
    return TaskAttempt(partition, attempt, properties)


def write(url, *texts, **options):
    """Run a whole write with one task."""
    bulk = writer(url, **options)
    bulk.commit([bulk.stage([payloads(*texts)], task())])
    return bulk


def jobs_of(url):
    """The jobs of a queue in the order of their enqueues; none if there is no queue yet."""

    async def read():
        with suppress(QueueMissingError):
            async with connect(url, DirectQueue) as queue:
                return [job async for job in queue.iterate_jobs()]
        return []

    return sorted(asyncio.run(read()), key=lambda job: job.sequence)


def texts_of(url):
    return [job.payload for job in jobs_of(url)]


def staged_at(url, prefix=".staged-"):
    """The staged objects that no commit has used: segments are those that the queue does not name."""

    async def look():
        storage: Any = connect(url)
        try:
            found = [entry.suffix for entry in await storage.list_beside(prefix)]
            segments = {entry.suffix for entry in await storage.list_beside(".segments/staged-")}
            if segments:
                named = (await DirectQueue(storage).read_state()).segments
                found += sorted(segments - {f".segments/{name}" for name in named})
            return found
        finally:
            if hasattr(storage, "release"):
                await storage.release()

    return asyncio.run(look())


def names_of(report):
    """The names of the objects that a task has staged."""
    if report.segments is None:
        return [report.name]
    return [f".segments/{each.name}" for each in report.segments.segments]


def last_of(url, app_id):
    async def look():
        async with connect(url, DirectQueue) as queue:
            return (await queue.apply(LastTransaction(app_id)))[0]

    return asyncio.run(look())


def on(bulk, storage, deadline=2.0, *, copying=False):
    """Replace the storage of a writer, and return the writer. If `copying`, it stages what its commit copies."""
    staging = replace(bulk.enqueue.staging, open_storage=storage, deadline=deadline)
    bulk.enqueue = replace(bulk.enqueue, open_storage=storage, deadline=deadline, staging=staging)
    if copying:
        bulk.enqueue = replace(bulk.enqueue, place=None)
    return bulk


class Rough:
    """A store whose requests fail as planned, for its object and those beside it. All copies share the plan.

    Attributes:
        storage: the real storage.
        told: faults of the next requests of each kind: `lost`, `refused`, `unanswered`, `late`, or `last`: late, and
            all reads after it are refused.
        late: writes that have not landed yet, which the test can land.
        calls: kind and object of each request.
    """

    def __init__(self, storage, suffix="", told=None, late=None, calls=None, lists=True):
        self.storage = storage
        self.suffix = suffix
        self.told = {} if told is None else told
        self.late = [] if late is None else late
        self.calls = [] if calls is None else calls
        if lists:
            self.list_beside = self._list_beside

    def __call__(self, url):
        return self

    def beside(self, suffix):
        return Rough(self.storage.beside(suffix), self.suffix + suffix, self.told, self.late, self.calls)

    async def read(self):
        return await self._do("read", self.storage.read)

    async def remove(self):
        return await self._do("remove", self.storage.remove)

    async def _list_beside(self, prefix):
        return await self._do("list", lambda: self.storage.list_beside(prefix))

    async def write(self, content, if_match=None):
        return await self._do("write", lambda: self.storage.write(content, if_match))

    async def create_object(self, suffix, content):
        await self._do("create", lambda: self.storage.create_object(suffix, content))

    async def create_object_from(self, suffix, pieces):
        return await self._do("create", lambda: self.storage.create_object_from(suffix, pieces))

    async def read_object(self, suffix, start=0, stop=None):
        return await self._do("read object", lambda: self.storage.read_object(suffix, start, stop))

    async def remove_object(self, suffix):
        await self._do("remove object", lambda: self.storage.remove_object(suffix))

    async def land(self):
        for request in self.late:
            await request()

    async def _do(self, kind, request):
        kind = f"{kind} beside" if self.suffix and kind != "list" else kind
        self.calls.append((kind, self.suffix))
        fault = self.told[kind].pop(0) if self.told.get(kind) else None
        if fault in ("lost", "late", "last"):
            if fault != "lost":
                self.late.append(request)
            if fault == "last":
                self.told["read"] = ["refused"] * 99
            raise StorageError("the connection was reset")
        answer = await request()
        if fault == "refused":
            raise StorageFatalError("access was refused")
        if fault == "unanswered":
            raise StorageError("the connection was reset")
        return answer
