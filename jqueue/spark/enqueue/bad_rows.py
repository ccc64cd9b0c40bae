"""The helper for rows that cannot become jobs, which otherwise fail the write that has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql
from pyspark.sql.types import BinaryType, DayTimeIntervalType, StringType

from jqueue.domain.durations import LONGEST
from jqueue.domain.fields import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.job_options import IN_BULK
from jqueue.domain.limits import Limits
from jqueue.spark.enqueue.columns import MICROS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNREADABLE = r"^$|[\p{C}\p{Z}&&[^ ]]"
"""A name that is not allowed: an empty one, or one with a character for which `str.isprintable` is false."""


def split_bad_rows(jobs: DataFrame, *, payload_bytes: int | None = None) -> tuple[DataFrame, DataFrame]:
    """Return the rows that can be jobs, and the others, which get a column `reason`.

    The checks are on nulls, names, numbers, durations, times, headers and the size of a binary or text payload. The
    write alone checks values that become JSON.

    Args:
        jobs: the rows, with the columns of a bulk enqueue.
        payload_bytes: the option `max_payload_bytes` of the write, if it has one.
    """
    limits = Limits() if payload_bytes is None else Limits(payload_bytes=payload_bytes)
    reason = sql.coalesce(*(sql.when(is_bad, why) for is_bad, why in _checks(jobs, limits)), sql.lit(None))
    return jobs.where(reason.isNull()), jobs.where(reason.isNotNull()).withColumn("reason", reason)


def _checks(jobs: DataFrame, limits: Limits) -> Iterator[tuple[Column, str]]:
    """Yield a condition and a reason for each thing that may be wrong with a row. A condition that is null is false."""
    fields = {field.name.lower(): field for field in jobs.schema.fields}
    columns = {name: jobs[fields[name].name] for name in fields if name in ("entrypoint", "payload", *IN_BULK)}
    for name, column in columns.items():
        kind, option = fields[name].dataType, IN_BULK.get(name)
        if option is None:
            yield column.isNull(), f"{name} is null"
        if name == "entrypoint" or (option is not None and option.kind is str):
            yield column.rlike(UNREADABLE), f"{name} must be printable and not empty"
            yield sql.octet_length(column) > limits.name_bytes, f"{name} is longer than {limits.name_bytes} bytes"
        elif name == "payload" and isinstance(kind, StringType | BinaryType):
            most = limits.most_payload(objects=False)
            yield sql.octet_length(column) > most, f"payload is larger than {most} bytes"
        elif name == "headers":
            texts, names = sql.map_values(column), sql.map_keys(column)
            is_wrong = sql.exists(texts, sql.isnull) | sql.exists(names, lambda each: each.rlike(UNREADABLE))
            yield is_wrong, "a header has no text, or a name that is not printable"
            is_long = sql.exists(names, lambda each: sql.octet_length(each) > limits.name_bytes)
            yield is_long, f"a header's name is longer than {limits.name_bytes} bytes"
            size = sql.aggregate(
                sql.concat(names, texts), sql.lit(0), lambda total, each: total + sql.octet_length(each)
            )
            yield size > limits.header_bytes, f"headers take more than {limits.header_bytes} bytes"
        elif option is not None and option.kind is int:
            low, high = (PRIORITY_MIN, PRIORITY_MAX) if name == "priority" else (1, COUNT_MAX)
            yield ~column.between(low, high), f"{name} must be from {low} to {high}"
        elif option is not None and option.kind is timedelta:
            longest: Any = timedelta(seconds=LONGEST) if isinstance(kind, DayTimeIntervalType) else LONGEST
            yield ~column.between(longest * 0, longest), f"{name} must be from 0 seconds to 100 years"
        elif option is not None and option.kind is datetime:
            yield ~sql.unix_micros(column).between(*MICROS), f"{name} must be in the years 1 to 9999"
        if option is not None and option.needs is not None:
            missing = columns[option.needs].isNull() if option.needs in columns else sql.lit(True)
            yield column.isNotNull() & missing, f"{name} needs a {option.needs}"
        if option is not None and option.excludes in columns:
            both = column.isNotNull() & columns[option.excludes].isNotNull()
            yield both, f"give either {name} or {option.excludes}, not both"
