"""The access of a queue object to its store. It outlives the sessions of the object, which share it.

A session is what a queue object has in one process and on one event loop: the engine with its writer id and the known
state, the calls, the tasks, and the connection to a broker. After a fork, or on another event loop, a new session takes
the place of the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from jqueue.core.observers import Observers
from jqueue.domain.durations import exact_time, to_seconds
from jqueue.domain.history import EVENTS_PER_OBJECT
from jqueue.domain.large_values import NAMED_WITHIN
from jqueue.domain.limits import VERSIONS_KEPT
from jqueue.domain.segments import RETENTION, STAGED_KEPT, STAGED_NAMED_WITHIN, Retention
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects, SupportsStoreTime, SupportsWatching
from jqueue.runtime.queue_options import QueueOptions


class Numbers(msgspec.Struct):
    """The numbers at which a queue object acts. Tests and the simulation make them small."""

    hot_bytes: int | None
    """Bytes of waiting jobs in the blob above which the last of them are spilled, down to a quarter of it."""
    fewest_rows: int = 64
    """Number of jobs of one entrypoint below which none is spilled, unless they take a quarter of `hot_bytes`."""
    most_rows: int = 65_536
    """Largest number of rows of a segment."""
    most_bytes: int = 16 << 20
    """Bytes of rows at which a segment of a bulk enqueue is full, and that one merge reads at most. They are held in
    memory until the segment is written. A queue with very many bytes has larger merges: see `MOST_FULL`."""
    chunk_rows: int = 256
    """Number of rows in a chunk."""
    merged: int = 16
    """Number of segments of about the same size that are merged into one."""
    holes: int = 64
    """Number of spans of taken rows above which a segment is written anew."""
    bulk_jobs: int | None = None
    """Number of jobs of one enqueue above which they are written to segments at once. None: `Limits.batch_size`."""
    few_staged: int = 1000
    """Number of staged jobs that their commit puts into the blob at most, if they fit into it and into `hot_bytes`."""
    rows_kept: int = 16_384
    """Number of loaded rows, leased ones included, above which all are dropped. If they are soon needed again, twice as
    many are kept."""
    rows_ahead: int = 512
    """Smallest number of rows that are kept loaded ahead of the claims."""
    commits_ahead: int = 4
    """Number of commits like the last one for which rows are kept loaded."""
    damage_kept: float = 60.0
    """Seconds after which a damaged segment is read again, all of it."""
    segment_named_within: timedelta = timedelta(minutes=5)
    """Longest time from the creation of a segment to the commit that names it."""
    retention: Retention = RETENTION
    """How long a segment stays after its last job has left."""
    kept_for: timedelta = timedelta(hours=1)
    """Age up to which an object that nothing names is never removed. Longer than `NAMED_WITHIN`."""
    staged_kept: timedelta = STAGED_KEPT
    """The same for staged segments."""
    interval: float = 600.0
    """Seconds between two searches for objects that nothing names."""
    events_per_object: int = EVENTS_PER_OBJECT
    """Number of events of the history above which they move to an object of their own."""
    versions_kept: int = VERSIONS_KEPT
    """Number of versions for which the blob names its last writers."""


assert Numbers(None).kept_for > NAMED_WITHIN
assert STAGED_KEPT > STAGED_NAMED_WITHIN


class Access:
    """The access of one queue object to its store.

    Args:
        storage: holds the blob.
        options: settings of the queue.
        max_conflicts: maximum number of conflicts in one commit; the next one raises CASConflictError. None: no limit.

    Attributes:
        objects: the storage, if it holds objects beside the blob.
        clock: tells the time if the store does not.
        entropy: makes ids and jitter.
        observers: told of the calls to the store.
        numbers: the numbers at which the queue object acts.
        call_timeout: seconds within which a call to the store must end.
        claim_timeout: seconds, for claims in the blob that carry no timeout of their own.
        store_time: returns the time by a clock that all users of the store share; None if there is no such clock.
        watched: returns the folders in which every change can be seen; None if the queue is in no folder.
    """

    def __init__(self, storage: ObjectStoragePort, options: QueueOptions, max_conflicts: int | None = None) -> None:
        self.storage: ObjectStoragePort = storage
        self.options = options
        self.max_conflicts = max_conflicts
        self.objects: SupportsObjects | None = storage if isinstance(storage, SupportsObjects) else None
        self.clock: Clock = options.clock
        self.entropy: Entropy = options.entropy
        self.observers: Observers = Observers(options.clock)
        self.numbers: Numbers = Numbers(options.limits.hot_bytes)
        self.call_timeout: float = to_seconds("call_timeout", options.call_timeout)
        self.claim_timeout: float = to_seconds("stale_timeout", options.stale_timeout)
        self.store_time: Callable[[], datetime | None] = (
            storage.store_time if isinstance(storage, SupportsStoreTime) else lambda: None
        )
        self.watched: Callable[[], Sequence[Path]] | None = (
            storage.watched if isinstance(storage, SupportsWatching) else None
        )

    def now(self) -> datetime:
        """Return the time by the store's clock if it has one, or else by the own clock."""
        return exact_time(self.store_time() or self.clock.now())
