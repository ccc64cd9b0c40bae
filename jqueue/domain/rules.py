"""The rules of a queue, which hold for many jobs: limits of entrypoints, settings, cron entries. Values only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from jqueue.domain.fields import (
    COUNT_MAX,
    NO_HEADERS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    Count,
    Finite,
    Headers,
    JobId,
    Payload,
    Seconds,
    Timestamp,
)

LIMITS = "limits"
"""The critical feature of a blob with limits. A program that does not know it would claim beyond the limits."""

HISTORY = "history"
"""The critical feature of a blob with a history. A program that does not know it would leave gaps."""


class EntrypointRules(BaseModel):
    """The limits and the pause of one entrypoint.

    Attributes:
        paused: True if none of its jobs may be claimed.
        max_running: number of its jobs that may be in progress at once; None means any number.
        rate: number of its jobs that may be claimed within any `per` seconds; None means any number.
        per: the window of `rate`, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    paused: bool = False
    max_running: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    rate: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    per: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.rate is None) != (self.per is None):
            raise ValueError("rate and per belong together")
        return self


class Usage(NamedTuple):
    """Claims made between two moments, both in seconds since 1970."""

    first: Finite
    last: Finite
    claims: Count


class QueueSettings(BaseModel):
    """The settings of a queue as a whole.

    Attributes:
        dead_retention: seconds for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer uses its own `Limits`.
        history: seconds for which the events of jobs are kept; None: no history is kept.
        history_bytes: size of all objects of the history above which the oldest are removed; None: no limit.
        history_payloads: True if the history keeps the payloads of enqueued jobs.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    dead_retention: Seconds | None = None
    blob_bytes: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    history: Annotated[float, Field(gt=0, le=COUNT_MAX, allow_inf_nan=False)] | None = None
    history_bytes: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    history_payloads: bool = False


class Span(NamedTuple):
    """A span of time, both ends included, in which every occurrence of a cron entry is done: fired, or passed."""

    first: Timestamp
    last: Timestamp


def _in_order(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(sorted(spans))


class Schedule(BaseModel):
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

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    name: JobId
    cron: str
    timezone: str = "UTC"
    entrypoint: str
    payload: Payload = b""
    priority: Annotated[int, Field(ge=PRIORITY_MIN, le=PRIORITY_MAX)] = 0
    max_attempts: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    headers: Headers = NO_HEADERS
    unique_key: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    keep_result: Seconds | None = None
    next_at: Timestamp
    fired: Annotated[tuple[Span, ...], AfterValidator(_in_order)] = ()

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield (name, f"<{len(self.payload)} bytes>") if name == "payload" else (name, value)
