"""Jobs on their way to new segments, and the segments that the tasks of a bulk enqueue stage for a later commit.

Rows are numbered from 1 on in each task. The commit adds to these numbers, in the manifest, so nothing is written
again, and the process that commits never sees a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from jqueue.core.blob.segment_object import EncodedSegment, SegmentBuilder
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import QUEUED, JobRecord
from jqueue.domain.job_options import check_columns
from jqueue.domain.limits import Limits, check_name, check_payloads
from jqueue.domain.operations.base import Preparation
from jqueue.domain.operations.bulk import NewSegment, bulk_ids, bulk_rest
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.domain.slices import exhaust

STAGED_ROWS = 131_072
"""Largest number of rows of a staged segment: large ones keep the manifest short."""

STAGED_BYTES = 48 << 20
"""Bytes of rows above which a staged segment is complete. They are held in memory until it is written."""

_FIELDS = JobRecord.__struct_fields__
_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(JobRecord) if not each.required}


class Group(NamedTuple):
    """The jobs of one new segment, or of several: what they have in common."""

    entrypoint: str
    scheduled: bool
    given: bool
    """True if callers have chosen their ids."""
    members_of: str | None = None
    """Id of the group that they belong to."""
    created_at: datetime | None = None
    """The time of their enqueue; None: that of the call."""
    turn: tuple[int, str] | None = None
    """Their priority and their fair key; None: they have no key."""


class JobGroups:
    """Jobs that wait to become segments, by group.

    Args:
        rows, size: numbers of jobs and of bytes at which a group is full.
        together: number of bytes of all groups above which the largest must be written.

    Attributes:
        features: critical features that the jobs need.
    """

    def __init__(self, rows: int, size: int, together: int) -> None:
        self._rows, self._size, self._together = rows, size, together
        self.features: set[str] = set()
        self._segments: dict[Group, SegmentBuilder] = {}
        self._full: dict[Group, None] = {}  # in order, and not a set: the same calls make the same segments
        self._total = 0

    def add(self, jobs: Sequence[JobRecord], given: Sequence[bool], created_at: datetime | None = None) -> None:
        """Add jobs to their groups.

        Args:
            jobs: the jobs.
            given: for each, True if the caller has chosen its id.
            created_at: as in `Group`.
        """
        scheduled = [job.run_at is not None and job.run_at > job.created_at for job in jobs]
        names, members = [job.entrypoint for job in jobs], [job.group for job in jobs]
        turns = [None if job.fair_key is None else (job.priority, job.fair_key) for job in jobs]
        kinds = list(zip(names, scheduled, given, members, turns, strict=True))
        groups: dict[Any, list[JobRecord]] = {kind: [] for kind in dict.fromkeys(kinds)}
        for kind, job in zip(kinds, jobs, strict=True) if len(groups) > 1 else ():
            groups[kind].append(job)
        for (name, is_scheduled, has_ids, group, turn), some in groups.items():
            self.extend(Group(name, is_scheduled, has_ids, group, created_at, turn), some or jobs)

    def extend(self, group: Group, jobs: Sequence[JobRecord]) -> None:
        """Add jobs of one group."""
        segment = self._segments.setdefault(group, SegmentBuilder())
        self._total -= segment.bytes
        segment.add(jobs)
        self._total += segment.bytes
        self.features |= segment.features
        if len(segment) >= self._rows or segment.bytes >= self._size:
            self._full[group] = None

    def full(self) -> Iterator[tuple[Group, SegmentBuilder]]:
        """Yield the jobs of groups that must be written, and forget them."""
        while self._full:
            yield self.pop(next(iter(self._full)))
        while self._total > self._together:
            yield self.pop(max(self._segments, key=lambda group: self._segments[group].bytes))

    def rest(self) -> Iterator[tuple[Group, SegmentBuilder]]:
        """Yield the jobs of all groups, and forget them. Those with most jobs come first."""
        while self._segments:
            yield self.pop(max(self._segments, key=lambda group: len(self._segments[group])))

    def pop(self, group: Group) -> tuple[Group, SegmentBuilder]:
        """Return the jobs of a group, and forget them."""
        segment = self._segments.pop(group)
        self._total -= segment.bytes
        self._full.pop(group, None)
        return group, segment


class InvalidRowError(InvalidJobError):
    """A job of `SegmentStager.add` is wrong.

    Attributes:
        row: the number of the job in the call, from 0 on.
    """

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class StagedTask(msgspec.Struct, frozen=True):
    """The segments that one task has staged. It is small, and may be pickled.

    Attributes:
        jobs: number of jobs in them.
        segments: the segments, with rows numbered from 1 on.
        features: critical features that the jobs need.
    """

    jobs: int
    segments: Sequence[NewSegment]
    features: frozenset[str] = frozenset()


class SegmentStager:
    """Encodes the jobs of one task.

    Args:
        limits: largest sizes that the queue accepts.
        created_at: the time of the enqueue, from which delays count.
        new_id: an id that no other task has, from which those of the jobs are made.
        rows, size, chunk_rows: largest number of rows and of bytes of a segment, and number of rows in a chunk.

    Attributes:
        jobs: number of jobs so far.
        created_at: as in the arguments.
    """

    def __init__(
        self,
        limits: Limits,
        created_at: datetime,
        new_id: str,
        *,
        rows: int = STAGED_ROWS,
        size: int = STAGED_BYTES,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self.jobs: int = 0
        self.created_at = created_at
        self._chunk_rows, self._limits, self._rest = chunk_rows, limits, bulk_rest(new_id)
        self._groups = JobGroups(rows, size, size)

    def add(
        self,
        entrypoints: Sequence[str],
        payloads: Sequence[bytes],
        options: Mapping[str, Sequence[Any]] | None = None,
        job_ids: Sequence[str] | None = None,
    ) -> None:
        """Add jobs, given by column.

        Args:
            entrypoints: the names of their handlers.
            payloads: bytes-like.
            options: by the name of an option in `IN_BULK`, its value for each job; None: the job's is the default.
                All values of a column but None have one type.
            job_ids: ids that no other jobs ever have; None: they are made here.

        Raises:
            InvalidRowError: a job is wrong.
        """
        options, limits = options or {}, self._limits
        try:
            payloads = check_payloads(payloads, limits)
            names = {name: check_name("entrypoint", name, limits) for name in set(entrypoints)}
            entrypoints = [names[name] for name in entrypoints]
            stored = check_columns(options, limits)
        except InvalidJobError as error:
            raise self._wrong(entrypoints, payloads, options, error) from None
        delays, at = stored.pop("delay", None), self.created_at
        if delays is not None:
            starts = {delay: at + timedelta(seconds=delay) for delay in set(delays) if delay is not None}
            times = stored.get("run_at", repeat(None))
            stored["run_at"] = [
                time if delay is None else starts[delay] for delay, time in zip(delays, times, strict=False)
            ]
        rows = range(self.jobs + 1, self.jobs + len(entrypoints) + 1)
        ids = bulk_ids(rows.start, rows.stop, self._rest) if job_ids is None else job_ids
        columns: dict[str, Iterable[Any]] = {"id": ids, "entrypoint": entrypoints, "payload": payloads}
        columns |= {"status": repeat(QUEUED), "sequence": rows, "created_at": repeat(at), **stored}
        last = max(map(_FIELDS.index, columns))
        cells = [columns.get(name, repeat(_DEFAULTS.get(name))) for name in _FIELDS[: last + 1]]
        jobs = list(map(JobRecord, *cells))
        self._groups.add(jobs, [job_ids is not None] * len(jobs), at)
        self.jobs += len(jobs)

    def _wrong(
        self,
        entrypoints: Sequence[str],
        payloads: Sequence[bytes],
        options: Mapping[str, Sequence[Any]],
        error: InvalidJobError,
    ) -> InvalidRowError:
        """Return the error about the first job that is wrong, as an enqueue of this job alone finds it."""
        preparation = Preparation(self._limits, 1.0, str, _no_claims)
        for number, (entrypoint, payload, *values) in enumerate(
            zip(entrypoints, payloads, *options.values(), strict=True)
        ):
            own = {name: value for name, value in zip(options, values, strict=True) if value is not None}
            try:
                Enqueue(entrypoint, payload, **own).prepared(preparation)
            except InvalidJobError as reason:
                return InvalidRowError(number, str(reason))
        raise error

    @property
    def features(self) -> set[str]:
        """Critical features that the jobs need."""
        return self._groups.features

    def full(self) -> Iterator[EncodedSegment]:
        """Yield segments that are complete, and forget their rows."""
        return map(self._encoded, self._groups.full())

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        return map(self._encoded, self._groups.rest())

    def _encoded(self, full: tuple[Group, SegmentBuilder]) -> EncodedSegment:
        group, segment = full
        return exhaust(
            segment.encoding(scheduled=group.scheduled, own_ids=not group.given, chunk_rows=self._chunk_rows)
        )


def _no_claims(job: object) -> Any:
    raise InvalidJobError("staged jobs have no claims")
