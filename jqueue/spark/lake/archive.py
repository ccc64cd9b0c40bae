"""`archive(spark, urls, lake)`: adds the events that a lake lacks, each once, whatever is killed and repeated.

A run takes these steps:

1. It finds out what the lake lacks. If that is nothing, it ends here.
2. It puts its number into the marker. From now on, an earlier run can no longer commit.
3. Its tasks write files, under fresh names with its number. They also merge small files.
4. It names these files in the marker, with the numbers that the lake has reached: the commit.
5. It removes all files of this run and of earlier ones that the marker does not name. Then it notes there that it has
   ended.

A killed run leaves files that the marker does not name. The next run removes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import split
from jqueue.spark.lake.planning import Unit, in_lots, plans_of, rewrites_of
from jqueue.spark.lake.store import LakeStore, Marker, lake_name
from jqueue.spark.lake.tasks import LOTS, Written, do_lots
from jqueue.spark.staging import absolute
from jqueue.spark.tags import tagged
from jqueue.sync.background import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: Logger = logger_of("jqueue")

BYTES_EACH = 8 << 20
"""Bytes that a task reads, about."""


@dataclass(frozen=True)
class Archived:
    """The outcome of a run.

    Attributes:
        lake: path or URL of the lake, without secrets.
        queues: number of queues with a history.
        added: number of events by which the lake has grown.
        events: number of events in the lake.
        files: number of files in the lake.
        missing: number of events that this run looked for, and that no longer existed.
        seconds: duration of the run.
    """

    lake: str
    queues: int
    added: int
    events: int
    files: int
    missing: int
    seconds: float = field(compare=False)

    def __str__(self) -> str:
        gone = f"; {counted(self.missing, 'event was', 'events were')} gone already" if self.missing else ""
        return (
            f"{counted(self.added, 'event')} of {counted(self.queues, 'queue')} added, {self.events:,} in "
            f"{counted(self.files, 'file')}, in {self.seconds:.1f} s{gone}"
        )


def archive(spark: SparkSession, urls: str | Sequence[str], lake: str) -> Archived:
    """Add the events of queues to a lake, a folder of Parquet files. Events that it has are not added again.

    Args:
        spark: runs the tasks, which read the histories and write the files.
        urls: one URL, several with commas between them, or a sequence of URLs; with wildcards or without.
        lake: path or URL of the folder, created if it is missing. The tasks must be able to write to it.

    Raises:
        ImportError: Spark is too old.
        InvalidURLError: no queue matches, none of them has a history, or a URL is wrong.
        StorageError: a store failed, or an object is damaged. The lake is as it was, and the run can be repeated.
    """
    import pyspark

    from jqueue.spark.session import require_spark

    require_spark(pyspark.__version__, spark.version)
    addresses = split(urls if isinstance(urls, str) else ",".join(urls))
    clock, name = SystemClock(), lake_name(lake)
    began, run = clock.monotonic(), _Run(absolute(lake))
    has_work = wait_for(lambda: run.begin(addresses))
    before = run.marker.events
    if has_work:
        written = run.work(spark)
        wait_for(lambda: run.end(written))
    if run.missing:
        logger.warning(
            "%s of the history did not exist any longer, and could not be archived", counted(run.missing, "event")
        )
    added, files = run.marker.events - before, len(run.marker.files)
    seconds = clock.monotonic() - began
    return Archived(name, len(run.plans), added, run.marker.events, files, run.missing, seconds)


class _Run:
    """One run, from the reading of the marker to its end.

    Attributes:
        marker: as the lake has it; this run wrote it last if it has claimed the lake.
        plans: what the lake lacks of each queue.
        missing: number of events that no longer existed.
    """

    def __init__(self, lake: str) -> None:
        self._lake = lake
        self._etag: str | None = None

    async def begin(self, addresses: Sequence[str]) -> bool:
        """Find what the lake lacks. Unless that is nothing, claim the lake, so that no earlier run can commit.

        Returns:
            True if this run has claimed the lake, and must end.
        """
        async with LakeStore(self._lake) as store:
            self.marker, self._etag = await store.marker()
            self.plans = await plans_of(addresses, self.marker)
            self.new = [plan for plan in self.plans if plan.before != plan.after]
            self.missing = sum(plan.missing for plan in self.new)
            if not self.new and not self.marker.is_running:
                return False
            run, writer = self.marker.run + 1, SystemEntropy().new_id()
            await self._commit(store, replace(self.marker, run=run, writer=writer, is_running=True))
            await store.check(self.marker)
            return True

    def work(self, spark: SparkSession) -> list[Written]:
        """Have tasks write the files."""
        from jqueue.spark.errors import plain_errors

        cut = {plan.queue: plan.cut for plan in self.new if plan.cut is not None}
        units: list[Unit] = [unit for plan in self.new for unit in plan.events]
        lots = in_lots([*units, *rewrites_of(self.marker.files, cut)], BYTES_EACH)
        if not lots:
            return []
        task = partial(do_lots, self._lake, self.marker.run, {plan.queue: plan.url for plan in self.new})
        table = pa.table([range(len(lots)), [*map(msgspec.json.encode, lots)]], schema=LOTS)
        with tagged(spark, self.marker.writer), plain_errors():
            rows = spark.createDataFrame(table).repartitionById(len(lots), "lot").mapInArrow(task, "written binary")
            return [msgspec.json.decode(row.written, type=Written) for row in rows.collect()]

    async def end(self, results: Sequence[Written]) -> None:
        """Commit the files. Then remove all files that no longer count, and which no run can still commit."""
        self.missing += sum(written.missing for written in results)
        gone = {name for written in results for name in written.replaced}
        tails = {plan.queue for plan in self.new if plan.before and plan.before.tail != plan.after.tail}
        files = [each for each in self.marker.files if each.name not in gone and each.tail not in tails]
        files += [each for written in results for each in written.files]
        queues = {**self.marker.queues, **{plan.queue: plan.after for plan in self.new}}
        async with LakeStore(self._lake) as store:
            await self._commit(store, replace(self.marker, queues=queues, files=tuple(files)))
            names, runs = {each.name for each in files}, await store.names()
            await store.remove(name for name, run in runs.items() if name not in names and run <= self.marker.run)
            await self._commit(store, replace(self.marker, is_running=False))

    async def _commit(self, store: LakeStore, marker: Marker) -> None:
        self._etag = await store.swap(marker, self._etag)
        self.marker = marker
