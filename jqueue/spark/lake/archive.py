"""`archive(spark, urls, lake)`: adds the events that a lake lacks, each once, whatever is killed and repeated.

A run takes these steps:

1. It finds out what the lake lacks. If that is nothing, it ends here.
2. It names itself in the marker. From now on, an earlier run can no longer commit.
3. Its tasks write files, under fresh names.
4. It names these files in the marker, with the numbers that the lake has reached: the commit.
5. It merges small files in the same way.
6. It removes all files that the marker does not name, and its own name from the marker.

A killed run leaves files that the marker does not name. The next run removes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jqueue.domain.errors import StorageFatalError
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import split
from jqueue.spark.lake.marker import DATA_FILE, DataFile, Marker, QueueMark, decode, encode
from jqueue.spark.lake.planning import QueuePlan, Source, lots_of, plans_of, with_missing
from jqueue.spark.lake.store import LakeStore, awaited, lake_name, lost, without_marker
from jqueue.spark.lake.tasks import RESULT_DDL, UNIT, LakeTask
from jqueue.spark.tags import tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logger_of("jqueue")

Work = Callable[[LakeTask, Sequence[Sequence[str]]], list[str]]
"""Does lots of units by a task, and returns the results."""

BYTES_EACH = 8 << 20
"""Bytes of history that a task archives, about."""

SMALL, MANY = 32 << 20, 8
"""Files of one folder below this size in bytes are merged, from this number on."""

MERGED = 64 << 20
"""Most bytes of files that are merged into one."""


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
    addresses = split(urls) if isinstance(urls, str) else [each for url in urls for each in split(url)]
    return Archiver(lake, lambda task, lots: _on_spark(spark, task, lots)).run(addresses)


def _on_spark(spark: SparkSession, task: LakeTask, lots: Sequence[Sequence[str]]) -> list[str]:
    """Do each lot in a task of its own."""
    from jqueue.spark.errors import plain_errors

    numbers = [number for number, lot in enumerate(lots) for _ in lot]
    table = pa.table([numbers, [unit for lot in lots for unit in lot]], schema=UNIT)
    with tagged(spark, task.run), plain_errors():
        units = spark.createDataFrame(table).repartitionById(len(lots), "lot")
        return [row.result for row in units.mapInArrow(task, RESULT_DDL).collect()]


@dataclass
class Archiver:
    """Archives queues in one lake.

    Attributes:
        lake: path or URL of the lake.
        work: does the work of tasks.
        opening: opens the lake.
        clock: measures the run.
        entropy: makes ids.
        bytes_each: bytes of history for a task.
        many: number of small files in a folder that are merged.
    """

    lake: str
    work: Work
    opening: Callable[[str], LakeStore] = LakeStore
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=SystemEntropy)
    bytes_each: int = BYTES_EACH
    many: int = MANY

    def run(self, addresses: Sequence[str]) -> Archived:
        """Add what the lake lacks of the queues with these addresses."""
        name = lake_name(self.lake)
        began = self.clock.monotonic()
        marker, etag, plans = awaited(self._begin(addresses))
        before = marker.events
        new = [plan for plan in plans if not plan.is_empty]
        if new or marker.run is not None:
            marker = self._add(marker, etag, new)
        missing = sum(
            marker.queues[plan.source.queue].missing - (plan.before.missing if plan.before else 0) for plan in new
        )
        if missing:
            logger.warning(
                "%s of the history did not exist any longer, and could not be archived",
                counted(missing, "event", "events"),
            )
        seconds = self.clock.monotonic() - began
        return Archived(name, len(plans), marker.events - before, marker.events, len(marker.files), missing, seconds)

    def _add(self, marker: Marker, etag: str | None, plans: Sequence[QueuePlan]) -> Marker:
        run = _Run(self, marker, etag)
        run.claim()
        cut = {plan.source.queue: plan.cut for plan in plans if plan.cut is not None}
        if cut:
            run.take_back(cut)
        if plans:
            run.add(plans)
        run.merge_small()
        run.end()
        return run.marker

    async def _begin(self, addresses: Sequence[str]) -> tuple[Marker, str | None, list[QueuePlan]]:
        async with self.opening(self.lake) as store:
            data, etag = await store.marker()
            if etag is None and (problem := without_marker(store.name, await store.names())):
                raise StorageFatalError(problem)
        marker = Marker() if etag is None else decode(data, store.name)
        return marker, etag, await plans_of(addresses, marker)


class _Run:
    """One run that has something to add, from its claim to its end.

    Attributes:
        marker: as this run wrote it last.
    """

    def __init__(self, archiver: Archiver, marker: Marker, etag: str | None) -> None:
        self.marker = marker
        self._etag = etag
        self._archiver = archiver
        self._id = archiver.entropy.new_id()

    def claim(self) -> None:
        """Name this run in the marker, so that no earlier run can commit. Check that no file is lost."""
        self._commit(replace(self.marker, run=self._id))

        async def check() -> None:
            async with self._store() as store:
                gone = sorted(self.marker.files.keys() - await store.names())
                if gone:
                    raise StorageFatalError(lost(store.name, gone))

        awaited(check())

    def take_back(self, cut: dict[str, int]) -> None:
        """Remove events that no longer count, because a backup of their queue was restored."""
        units = [json.dumps({"merge": [name], "cut": cut}) for name, each in self.marker.files.items() if not each.tail]
        marker = self._done([[unit] for unit in units], (), [each.name for each in self._tails(cut)])
        queues = {
            queue: replace(mark, through=cut[queue], tail=None) if queue in cut else mark
            for queue, mark in marker.queues.items()
        }
        self._commit(replace(marker, queues=queues))

    def add(self, plans: Sequence[QueuePlan]) -> None:
        """Add what the lake lacks."""
        replaced = {plan.source.queue for plan in plans if plan.outbox is not None}
        lots = lots_of(plans, self._archiver.bytes_each)
        missing: dict[str, int] = {}
        dropped = [each.name for each in self._tails(replaced)]
        marker = self._done(lots, [plan.source for plan in plans], dropped, missing)
        marks: dict[str, QueueMark] = {
            plan.source.queue: with_missing(plan.after, missing.get(plan.source.queue, 0)) for plan in plans
        }
        self._commit(replace(marker, queues={**marker.queues, **marks}))

    def merge_small(self) -> None:
        """Merge the small files of each folder that has many of them."""
        small: dict[str, list[DataFile]] = {}
        for each in self.marker.files.values():
            if not each.tail and each.size < SMALL:
                small.setdefault(each.folder, []).append(each)
        lots = []
        for files in small.values():
            if len(files) >= self._archiver.many:
                lots += [[json.dumps({"merge": names})] for names in _groups(files)]
        if lots:
            self._commit(self._done(lots, (), ()))

    def end(self) -> None:
        """Remove the files that the marker does not name, and the name of this run from the marker."""

        async def sweep() -> None:
            async with self._store() as store:
                litter = [name for name in await store.names() - self.marker.files.keys() if DATA_FILE.fullmatch(name)]
                await store.remove(litter)

        awaited(sweep())
        self._commit(replace(self.marker, run=None))

    def _tails(self, queues: Any) -> list[DataFile]:
        return [each for each in self.marker.files.values() if each.tail in queues]

    def _done(
        self,
        lots: Sequence[Sequence[str]],
        sources: Sequence[Source],
        dropped: Sequence[str],
        missing: dict[str, int] | None = None,
    ) -> Marker:
        """Do lots of units, and return the marker with their files. Add the numbers of missing events to `missing`."""
        task = LakeTask(self._archiver.lake, self._id, sources, self._archiver.opening)
        results = [json.loads(text) for text in self._archiver.work(task, lots)] if lots else []
        added = [DataFile(*each) for result in results for each in result["files"]]
        gone = [name for result in results for name in result["gone"]]
        names = {name: true for result in results for name, true in result["names"].items()}
        for result in results:
            for queue, count in result["missing"].items():
                if missing is not None:
                    missing[queue] = missing.get(queue, 0) + count
        with_names = replace(self.marker, names={**self.marker.names, **names})
        return with_names.with_files(added, [*dropped, *gone])

    def _store(self) -> LakeStore:
        return self._archiver.opening(self._archiver.lake)

    def _commit(self, marker: Marker) -> None:
        """Write the marker.

        Raises:
            StorageFatalError: another run has taken the place of this run.
        """
        new = replace(marker, commit=self._archiver.entropy.new_id())

        async def swap() -> str | None:
            async with self._store() as store:
                return await store.swap(encode(new), self._etag)

        etag = awaited(swap())
        if etag is None:
            raise StorageFatalError(
                "another run archives into this lake, and has taken the place of this one: start a run when the one "
                "before has ended"
            )
        self.marker, self._etag = new, etag


def _groups(files: Sequence[DataFile]) -> list[list[str]]:
    """Return the names of files to be merged, in groups that are not too large. A group of one file is left out."""
    groups: list[list[str]] = [[]]
    size = 0
    for each in files:
        if size + each.size > MERGED and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(each.name)
        size += each.size
    return [group for group in groups if len(group) > 1]
