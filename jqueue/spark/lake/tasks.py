"""The tasks of an archive: each reads its part of the histories, and writes files of a lake.

A file is part of the lake once the driver names it in the marker. So a repeated task harms nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Raw

from jqueue.connect import open_storage
from jqueue.core.blob.history import decode_object
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.events import read_batch
from jqueue.domain.history import span_of
from jqueue.ports.storage import SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.tasks import all_at_once
from jqueue.spark.fleet import FleetQueue, release_all
from jqueue.spark.lake.events import ROWS, Columns, folder_of
from jqueue.spark.lake.planning import DEADLINE, Events, Rewrite, Unit
from jqueue.spark.lake.store import DataFile, LakeStore

LOTS = pa.schema([("lot", pa.int32()), ("units", pa.binary())])
"""The columns of a row that a task gets."""

REPEATED = [name for name in ROWS.names if name not in ("number", "job_id", "payload")]
"""The columns whose values are stored once in a file, with references to them."""


class Written(msgspec.Struct):
    """The result of a task.

    Attributes:
        files: the new files.
        replaced: names of the files whose events are in them, or no longer count.
        missing: number of events that no longer exist.
    """

    files: list[DataFile] = []
    replaced: list[str] = []
    missing: int = 0


_units = msgspec.json.Decoder(list[Unit])


def do_lots(
    lake: str, run: int, urls: Mapping[str, str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Do the units of lots, and yield a `Written` in JSON for each lot.

    Args:
        lake: URL of the lake.
        run: number of the run.
        urls: of the queues, by their ids.
        batches: the lots.

    Raises:
        StorageError: a store failed, or an object is damaged. The message names it.
    """
    for batch in batches:
        for units in batch.column("units").to_pylist():
            written = asyncio.run(_do(lake, run, urls, _units.decode(units)))
            yield pa.RecordBatch.from_pydict({"written": [msgspec.json.encode(written)]})


async def _do(lake: str, run: int, urls: Mapping[str, str], units: Sequence[Unit]) -> Written:
    events = [unit for unit in units if isinstance(unit, Events)]
    queues = {queue: FleetQueue(urls[queue], open_storage(urls[queue])) for queue in {each.queue for each in events}}
    try:
        async with LakeStore(lake) as store:
            lot = _Lot(store, run, queues)
            await lot.add(events)
            for unit in units:
                if isinstance(unit, Rewrite):
                    await lot.rewrite(unit)
            return lot.written
    finally:
        await release_all(queues.values())


class _Lot:
    """The work of one task.

    Args:
        store: the lake.
        run: number of the run.
        queues: by their ids.

    Attributes:
        written: what it has written.
    """

    def __init__(self, store: LakeStore, run: int, queues: Mapping[str, FleetQueue]) -> None:
        self.written = Written()
        self._store, self._run, self._queues = store, run, queues

    async def add(self, units: Sequence[Events]) -> None:
        """Add events, in a file for each folder. Count the missing events."""
        batches: list[Sequence[Raw]] = [unit.latest or () for unit in units]
        columns = Columns()

        async def read(number: int) -> None:
            batches[number] = await self._read(units[number])

        async def write(place: tuple[str, str | None, str, pa.Table]) -> None:
            day, entrypoint, tail, table = place
            await self._write(folder_of(day, entrypoint), table, entrypoint, tail)

        await some_at_once(read, [number for number, unit in enumerate(units) if unit.latest is None])
        for unit, texts in zip(units, batches, strict=True):
            name, tail = self._queues[unit.queue].name, "" if unit.latest is None else unit.queue
            self.written.missing += unit.high - unit.low + 1
            for text in texts:
                first, last, _ = span_of(text)
                if last < unit.low or first > unit.high:
                    continue
                try:
                    self.written.missing -= columns.add(name, unit.queue, read_batch(text), unit.low, unit.high, tail)
                except ValueError as error:
                    raise StorageFatalError(f"{name}: events of its history cannot be read: {error}") from None
        await some_at_once(write, [*columns.tables()])

    async def rewrite(self, unit: Rewrite) -> None:
        """Write the events of files of one folder to one file. A single file without events to remove stays."""
        names = [each.name for each in unit.files]
        contents = await all_at_once(*map(self._store.read, names))
        whole = table = pa.concat_tables([pq.read_table(BytesIO(each), partitioning=None) for each in contents])
        for queue, last in unit.cut.items():
            table = table.filter((pc.field("queue_id") != queue) | (pc.field("number") <= last))
        if len(names) == 1 and table.num_rows == whole.num_rows:
            return
        if table.num_rows:
            await self._write(unit.files[0].folder, table, unit.files[0].entrypoint)
        self.written.replaced += names

    async def _read(self, unit: Events) -> list[Raw]:
        """Return the batches in an object; none if it was removed because of its age."""
        queue, suffix = self._queues[unit.queue], unit.place.suffix
        storage, what = queue.storage, f"{queue.name}{suffix}"
        assert isinstance(storage, SupportsObjects), "it was listed"
        try:
            content = await retried(
                DEADLINE, lambda: storage.read_object(suffix), SystemEntropy(), f"{what} could not be read"
            )
            return decode_object(content, unit.queue, unit.place.first)
        except ObjectMissingError:
            return []
        except InvalidBlobError as error:
            hint = "Restore it from a copy; if you remove it, its events are missing"
            raise StorageFatalError(f"{what}: {error}. {hint}") from None

    async def _write(self, folder: str, table: pa.Table, entrypoint: str | None, tail: str = "") -> None:
        name = f"{folder}/jqueue-{self._run}-{SystemEntropy().new_id()}.parquet"
        content = BytesIO()
        pq.write_table(table, content, compression="zstd", use_dictionary=REPEATED)
        await self._store.create(name, content.getvalue())
        self.written.files.append(DataFile(name, table.num_rows, content.tell(), entrypoint, tail))
