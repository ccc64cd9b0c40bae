"""The rules of a queue, which hold for many jobs: limits of entrypoints, settings, cron entries. Values only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, NamedTuple

from msgspec import Meta, field
from msgspec.structs import force_setattr

from jqueue.domain.fields import (
    COUNT_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    Count,
    Entry,
    JobId,
    Positive,
    Seconds,
    to_utc,
)

LIMITS = "limits"
"""The critical feature of a blob with limits. A program that does not know it would claim beyond the limits."""

HISTORY = "history"
"""The critical feature of a blob with a history. A program that does not know it would leave gaps."""


class EntrypointRules(Entry, frozen=True, omit_defaults=True, gc=False):
    """The limits and the pause of one entrypoint.

    Attributes:
        paused: True if none of its jobs may be claimed.
        max_running: number of its jobs that may be in progress at once; None means any number.
        rate: number of its jobs that may be claimed within any `per` seconds; None means any number.
        per: the window of `rate`, in seconds.
    """

    paused: bool = False
    max_running: Positive | None = None
    rate: Positive | None = None
    per: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) != (self.per is None):
            raise ValueError("rate and per belong together")


class Usage(NamedTuple):
    """Claims made between two moments, both in seconds since 1970."""

    first: float
    last: float
    claims: Count


class QueueSettings(Entry, frozen=True, omit_defaults=True, gc=False):
    """The settings of a queue as a whole.

    Attributes:
        dead_retention: seconds for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer uses its own `Limits`.
        history: seconds for which the events of jobs are kept; None: no history is kept.
        history_bytes: size of all objects of the history above which the oldest are removed; None: no limit.
        history_payloads: True if the history keeps the payloads of enqueued jobs.
    """

    dead_retention: Seconds | None = None
    blob_bytes: Positive | None = None
    history: Annotated[float, Meta(gt=0, le=COUNT_MAX)] | None = None
    history_bytes: Positive | None = None
    history_payloads: bool = False


SETTINGS = tuple(name for name in QueueSettings.__struct_fields__ if name != "extra")
"""The names of the settings."""


class Span(NamedTuple):
    """A span of time, both ends included, in which every occurrence of a cron entry is done: fired, or passed."""

    first: datetime
    last: datetime


class Schedule(Entry, frozen=True, omit_defaults=True, gc=False):
    """A cron entry: a job to enqueue at regular times. Frozen; times are aware and in UTC.

    Attributes:
        name: unique in its queue.
        cron: the expression, of five fields (or six, the first for seconds), as in cron.
        timezone: IANA name of the time zone of the expression.
        entrypoint, payload, priority, max_attempts, headers, unique_key, concurrency_key, concurrency_limit,
            keep_result: as in the jobs that it enqueues. See `Job`.
        next_at: the first occurrence after all that were fired. A clock that is not behind them fires it next.
        fired: the spans whose occurrences are done, in order: see `jqueue.domain.occurrences`. Empty if an older
            version wrote the entry; then nothing before `next_at` will be fired.
    """

    name: JobId
    cron: str
    entrypoint: str
    next_at: datetime
    timezone: str = "UTC"
    payload: bytes = b""
    priority: Annotated[int, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)] = 0
    max_attempts: Positive | None = None
    headers: dict[str, str] = field(default_factory=dict)
    unique_key: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: Positive | None = None
    keep_result: Seconds | None = None
    fired: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "next_at", to_utc(self.next_at))
        force_setattr(self, "fired", tuple(sorted(Span(to_utc(first), to_utc(last)) for first, last in self.fired)))

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r}: {self.cron!r} ({self.timezone}), {self.entrypoint!r}, next {self.next_at}>"
