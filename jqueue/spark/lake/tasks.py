"""The tasks of an archive: each reads its part of the histories, and writes files of a lake.

A file is part of the lake once the driver names it in the marker. So a repeated task harms nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Raw

from jqueue.connect import connect_storage
from jqueue.core.blob.history import Place, decode_object
from jqueue.core.tasks import retried
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.events import Batch, read_batch
from jqueue.domain.history import span_of
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.lake.events import Folder, FolderRows, parquet_of
from jqueue.spark.lake.planning import DEADLINE, Source
from jqueue.spark.lake.store import LakeStore

if TYPE_CHECKING:
    from collections.abc import Iterable

UNIT = pa.schema([("lot", pa.int32()), ("unit", pa.string())])
"""The columns of a row that a task gets."""

RESULT_DDL = "result string"

MOST_ROWS = 200_000
"""Number of events that a task holds before it writes them."""

AHEAD = 8
"""Number of objects to read at a time."""


@dataclass
class _Written:
    files: list[tuple[str, int, int, str]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LakeTask:
    """Does units of work: an object to archive, latest events to archive, or files to merge. It may be pickled.

    Attributes:
        lake: URL of the lake.
        run: id of the run.
        sources: the queues.
        opening: opens the lake.
        open_queue: opens the storage of a queue.
        entropy: makes the ends of names.
    """

    lake: str = field(repr=False)
    run: str
    sources: Sequence[Source] = field(default=(), repr=False)
    opening: Callable[[str], LakeStore] = LakeStore
    open_queue: Callable[[str], ObjectStoragePort] = connect_storage
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the units of one partition of Spark."""
        units = [text for batch in batches for text in batch.column("unit").to_pylist()]
        if units:
            yield pa.RecordBatch.from_pydict({"result": [self.do(units)]})

    def do(self, units: Sequence[str]) -> str:
        """Do units, and return what was written, as JSON.

        Raises:
            StorageError: a store failed, or an object is damaged. The message names it.
        """
        written = _Written()

        async def work() -> None:
            async with self.opening(self.lake) as store:
                writer = _Writer(self, store, written)
                await self._work([json.loads(unit) for unit in units], writer)

        asyncio.run(work())
        return json.dumps(vars(written))

    async def _work(self, units: Sequence[Mapping[str, Any]], writer: _Writer) -> None:
        windows: dict[int, list[Sequence[Any]]] = {}
        for unit in units:
            if "window" in unit:
                windows.setdefault(unit["source"], []).append(unit["window"])
            elif "outbox" in unit:
                source = self.sources[unit["source"]]
                for text in unit["outbox"]:
                    events = _events(Raw(text), source.name)
                    await writer.add(source, events, range(events.size), source.queue)
            else:
                await writer.merge(unit["merge"], unit.get("cut", {}))
        for number, wanted in windows.items():
            await self._archive(self.sources[number], wanted, writer)
        await writer.flush()

    async def _archive(self, source: Source, windows: Sequence[Sequence[Any]], writer: _Writer) -> None:
        storage = self.open_queue(source.url)
        if not isinstance(storage, SupportsObjects):
            raise StorageFatalError(f"{source.name}: this storage cannot keep a history")
        try:
            for start in range(0, len(windows), AHEAD):
                some = windows[start : start + AHEAD]
                for window, texts in zip(
                    some, await asyncio.gather(*(_batches(storage, source, each) for each in some)), strict=True
                ):
                    await writer.add_window(source, window[2], window[3], texts)
        finally:
            if isinstance(storage, SupportsRelease):
                await storage.release()


class _Writer:
    """Collects events, and writes them to files, one for each folder."""

    def __init__(self, task: LakeTask, store: LakeStore, written: _Written) -> None:
        self._task = task
        self._store = store
        self._written = written
        self._held: dict[tuple[Folder, str], FolderRows] = {}
        self._rows = 0

    async def add_window(self, source: Source, low: int, high: int, batches: Sequence[Raw]) -> None:
        """Add the events with these numbers. Count the events that are not there."""
        found = 0
        for batch in batches:
            first, last, _ = span_of(batch)
            if last < low or first > high:
                continue
            places = range(max(low, first) - first, min(high, last) - first + 1)
            found += len(places)
            await self.add(source, _events(batch, source.name), places)
        if lacking := high - low + 1 - found:
            missing = self._written.missing
            missing[source.queue] = missing.get(source.queue, 0) + lacking

    async def add(self, source: Source, events: Batch, places: Sequence[int], tail: str = "") -> None:
        """Add some events of a batch, by their places in it."""
        day, kinds = events.at.date(), events.kinds
        for entrypoint in {kind.entrypoint for kind in kinds}:
            chosen = places
            if any(kind.entrypoint != entrypoint for kind in kinds):
                chosen = [place for place in places if kinds[events.events[place].kind].entrypoint == entrypoint]
            if chosen:
                held = self._held.setdefault((Folder(day, entrypoint), tail), FolderRows())
                held.add(source.name, source.queue, events, chosen)
        self._rows += len(places)
        if self._rows >= MOST_ROWS:
            await self.flush()

    async def flush(self) -> None:
        """Write what is held."""
        for (folder, tail), rows in self._held.items():
            if folder.is_cut:
                self._written.names[folder.name] = folder.entrypoint or ""
            await self._write(folder.name, rows.table(), tail)
        self._held.clear()
        self._rows = 0

    async def merge(self, names: Sequence[str], cut: Mapping[str, int]) -> None:
        """Write the events of files of one folder to one file.

        Args:
            names: of the files.
            cut: by the id of a queue, the number of the last event to keep. A file that has no later one stays.
        """
        tables = [pq.read_table(BytesIO(await self._store.read(name)), partitioning=None) for name in names]
        whole = kept = pa.concat_tables(tables)
        for queue, last in cut.items():
            kept = kept.filter(pc.or_(pc.not_equal(kept["queue_id"], queue), pc.less_equal(kept["number"], last)))
        if cut and kept.num_rows == whole.num_rows:
            return
        self._written.gone.extend(names)
        if kept.num_rows:
            await self._write(names[0].rpartition("/")[0], kept, "")

    async def _write(self, folder: str, table: pa.Table, tail: str) -> None:
        name = f"{folder}/jqueue-{self._task.entropy.new_id()}.parquet"
        content = parquet_of(table)
        await self._store.create(name, content)
        self._written.files.append((name, table.num_rows, len(content), tail))


def _events(batch: Raw, queue: str) -> Batch:
    try:
        return read_batch(batch)
    except ValueError as error:
        raise StorageFatalError(f"{queue}: events of its history cannot be read: {error}") from None


async def _batches(storage: SupportsObjects, source: Source, window: Sequence[Any]) -> list[Raw]:
    """Return the batches in an object; none if it was removed because of its age."""
    place = Place(window[0], window[1])
    try:
        content = await retried(
            DEADLINE,
            lambda: storage.read_object(place.suffix),
            SystemEntropy(),
            f"{source.name}{place.suffix} could not be read",
        )
        return decode_object(content, source.queue, place.first)
    except ObjectMissingError:
        return []
    except InvalidBlobError as error:
        raise StorageFatalError(
            f"{source.name}{place.suffix}: {error}. Restore it from a copy; if you remove it, its events are missing"
        ) from None
