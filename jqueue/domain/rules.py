"""What is decided for a whole queue, not for one job: limits of entrypoints, settings, cron entries. Values only."""

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
"""The critical feature of a blob with limits: a program that does not know them would claim beyond them."""


class EntrypointRules(BaseModel):
    """What holds the jobs of one entrypoint back.

    Attributes:
        paused: whether none is claimed.
        max_running: so many may be in progress at once; None means any number.
        rate: so many may be claimed within any `per` seconds; None means any number.
        per: see `rate`.
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
    """What holds for a queue as a whole.

    Attributes:
        aging: so many seconds of waiting are worth one step of priority; None: a priority stays as it is.
        dead_retention: seconds for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer goes by its own `Limits`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    aging: Annotated[float, Field(gt=0, le=COUNT_MAX, allow_inf_nan=False)] | None = None
    dead_retention: Seconds | None = None
    blob_bytes: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None


class Span(NamedTuple):
    """A stretch of time, both ends included, in which every occurrence of a cron entry is dealt with."""

    first: Timestamp
    last: Timestamp


def _in_order(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    return tuple(sorted(spans))


class Schedule(BaseModel):
    """A cron entry: when to enqueue what. Frozen; times are aware and in UTC.

    Attributes:
        name: unique in its queue.
        cron: five fields (or six, the first for seconds), as cron has them.
        timezone: in which they are meant, by its IANA name.
        entrypoint, payload, priority, max_attempts, headers, unique_key, concurrency_key, concurrency_limit,
            keep_result: of the jobs. See `Job`.
        next_at: its first occurrence after all that were fired: due by a clock that is not behind them.
        fired: the stretches of time whose occurrences are dealt with, in order: see `jqueue.domain.occurrences`. Empty
            if an older version wrote the entry; then nothing before `next_at` is fired.
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
