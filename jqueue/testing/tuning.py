"""The numbers at which a queue acts, for tests: what takes thousands of jobs or minutes happens after a few."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict, TypeVar, Unpack

from jqueue.core.blob_queue import BlobQueue
from jqueue.domain.segments import Retention

Queue = TypeVar("Queue", bound=BlobQueue)


class Numbers(TypedDict, total=False):
    """The numbers that `tune` sets. A number that is left out stays as it is."""

    hot_bytes: int | None
    """Bytes of waiting jobs in the queue's object above which the last of them move to segments; None for never.

    262,144 by default.
    """
    fewest_rows: int
    """Number of jobs of one entrypoint below which none moves; 64 by default."""
    most_rows: int
    """Largest number of jobs in a segment; 65,536 by default."""
    most_bytes: int
    """Bytes of jobs at which a segment of a bulk enqueue is full, and one merge reads at most; 16 MiB by default."""
    chunk_rows: int
    """Number of jobs in a part of a segment that is read at once; 256 by default."""
    merged: int
    """Number of segments of about the same size that are merged into one; 16 by default."""
    holes: int
    """Number of gaps that claimed jobs have left, above which a segment is written anew; 64 by default."""
    bulk_jobs: int | None
    """Number of jobs of one enqueue above which they go to segments at once; `Limits.batch_size` by default."""
    rows_kept: int
    """Number of jobs of segments that are kept in memory; 16,384 by default."""
    rows_ahead: int
    """Number of jobs that are read before they are asked for; 512 by default."""
    commits_ahead: int
    """Number of commits for whose claims jobs are read before they are asked for; 4 by default."""
    damage_kept: float
    """Seconds after which a damaged segment is read again; 60 by default."""
    segment_named_within: timedelta
    """Longest time from the creation of a segment to the commit that names it; 5 minutes by default."""
    retention: Retention
    """How long a segment stays after its last job has left; an hour by default."""
    named_within: timedelta
    """The same for the object of a large payload or result; 45 minutes by default."""
    staged_named_within: timedelta
    """The same for a staged segment; 6 days by default."""
    kept_for: timedelta
    """Time after which an object that nothing names is removed; an hour by default."""
    staged_kept: timedelta
    """The same for staged segments; 7 days by default."""
    interval: float
    """Seconds between two searches for objects that nothing names; 600 by default."""
    events_per_object: int
    """Number of events of the history above which they move to an object of their own; 1,000 by default."""
    versions_kept: int
    """Number of versions for which the queue's object names its last writers; 128 by default."""


def tune(queue: Queue, **numbers: Unpack[Numbers]) -> Queue:
    """Let a queue act after other numbers of jobs, bytes and seconds, and return it.

    `tune(queue, hot_bytes=0, fewest_rows=1, chunk_rows=4)` moves waiting jobs to small segments at once, and
    `tune(queue, kept_for=timedelta(seconds=20), interval=5.0)` soon removes objects that nothing names. Queues with
    different numbers may share a store.

    Args:
        queue: before its first call.
        numbers: see `Numbers`. Those of segments and objects have no effect on a store that keeps no objects.
    """
    parts = queue._access.numbers, queue._objects, queue  # noqa: SLF001 - what it is for
    for name, number in numbers.items():
        for part in parts:
            if hasattr(part, name):
                setattr(part, name, number)
    return queue
