"""The columns of a job in a DataFrame. `jqueue.spark.lines` makes them.

Whole numbers are `long`: a blob that another program wrote may hold priorities and counts beyond 32 bits, and one such
job must not make a table of a million others unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jqueue.domain.errors import InvalidJobError, shown
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.spark.fleet import addresses_of, names_several

QUEUE = "queue"
"""Name of the column that says which queue a row comes from, if several are read."""

_ORDER = (
    *("id", "entrypoint", "payload", "status", "priority", "attempt", "failures", "max_attempts", "created_at"),
    *("run_at", "expires_at", "heartbeat_at", "finished_at", "dead_at", "error", "headers", "unique_key"),
    *("concurrency_key", "result", "holder", "sequence", "claim_timeout", "attempts_before"),
)
"""Columns that tables have had from the start: their order must not change."""

_NOT_SHOWN = {
    *("unique_for", "concurrency_limit", "keep_result", "cancel_requested", "error_dropped", "result_dropped"),
    *("errors", "traceback", "payload_object", "result_object", "after", "waits_for", "on_dead", "steps", "progress"),
}
"""Fields of a job that have no column."""

_TYPES: dict[Any, DataType] = {
    **dict.fromkeys((str, JobStatus, Any, Literal), StringType()),
    bytes: BinaryType(),
    int: LongType(),
    float: DoubleType(),
    datetime: TimestampType(),
    Mapping: MapType(StringType(), StringType()),
}


def _kind_of(hint: Any) -> Any:
    """Return the plain type in a type hint, without None and without annotations."""
    if get_origin(hint) is Annotated:
        return _kind_of(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _kind_of(next(part for part in get_args(hint) if part is not type(None)))
    return get_origin(hint) or hint


_JOB_KINDS = {name: _kind_of(field.annotation) for name, field in Job.model_fields.items()}
_NAMES = dict.fromkeys([*_ORDER, *(name for name in _JOB_KINDS if name not in _NOT_SHOWN)])
_KINDS: dict[str, DataType] = {**{name: _TYPES[_JOB_KINDS[name]] for name in _NAMES}, QUEUE: StringType()}
"""Every column, with its type."""


def _schema(names: Iterable[str]) -> StructType:
    return StructType([StructField(name, _KINDS[name]) for name in names])


_ON_REQUEST = ("claim_timeout", "attempts_before", QUEUE)
"""Columns that a snapshot of one queue has only if its reader names them."""

SNAPSHOT_SCHEMA = _schema(name for name in _KINDS if name not in _ON_REQUEST)
"""The columns of a job in a snapshot of one queue."""

FLEET_SCHEMA = _schema([*SNAPSHOT_SCHEMA.names, QUEUE])
"""The columns of a job in a snapshot of several queues."""


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns of a table that is read with these options.

    Raises:
        InvalidURLError: they name no queue.
    """
    return FLEET_SCHEMA if names_several(addresses_of(options)) else SNAPSHOT_SCHEMA


def check_schema(schema: StructType, *, fleet: bool) -> None:
    """Check that the columns a reader asks for exist, and have these types.

    Args:
        schema: the columns.
        fleet: True if several queues are read.

    Raises:
        InvalidJobError: a column does not exist, or has another type.
    """
    kinds = {name: kind for name, kind in _KINDS.items() if fleet or name != QUEUE}
    for field in schema:
        if field.name not in kinds:
            raise InvalidJobError(f"there is no column {shown(field.name)} here: there are {', '.join(kinds)}")
        if field.dataType != kinds[field.name]:
            ours, theirs = kinds[field.name].simpleString(), field.dataType.simpleString()
            raise InvalidJobError(f"column {field.name} is of type {ours}, and not {theirs}")
