"""The figures of a snapshot, computed by Spark SQL: pure functions from DataFrames to DataFrames.

None of them runs a Spark job or asks for a schema. So they also work in a declarative pipeline, which allows neither in
the definitions of its tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, JobStatus
from jqueue.domain.operations.ends import STALE_ERROR
from jqueue.spark.report.columns import AGES, ATTEMPTS

READ = (
    "entrypoint string, status string, attempt long, attempts_before long, created_at timestamp, run_at timestamp, "
    "expires_at timestamp, heartbeat_at timestamp, finished_at timestamp, claim_timeout double, error string"
)
"""The columns of a snapshot that are read, besides `queue`."""

STALE_CLAIM, TIMEOUT, OTHER = "stale claim", "timeout", "other"

TIMED_OUT = r"^timed out after \d"
"""Beginning of the error that a worker stores for a handler that ran for longer than it may."""

ERROR_CLASS = r"^(\p{Lu}[\p{L}\p{N}_]{0,99}|[\p{Ll}_][\p{L}\p{N}_]{0,94}[Ee]rror): "
"""Beginning of a stored error that consists of a class and its message. A lower-case word is a class only if it ends as
errors do: "password: …" is a user's own text."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EACH, QUEUE, ALL = 0, 1, 3
"""Levels of a row of figures, as Spark numbers them: one entrypoint in one queue, one queue, or all queues."""

STATES = ("ready", "scheduled", "in_progress", "dead", "completed", "expired")


def facts_of(snapshot: DataFrame, now: datetime) -> DataFrame:
    """Return the facts for the figures, one row for each job: small, and without private data.

    Args:
        snapshot: with the columns `READ` and `queue`.
        now: the time from which ages are measured.
    """
    at = F.lit((now - EPOCH) // timedelta(microseconds=1))
    due = F.unix_micros(F.coalesce("run_at", "created_at"))
    status = F.col("status")
    state = (
        F.when(status != JobStatus.QUEUED.value, status)
        .when(F.unix_micros("run_at") > at, "scheduled")
        .when(F.unix_micros("expires_at") <= at, "expired")
        .otherwise("ready")
    )
    lasts = F.coalesce("claim_timeout", F.lit(DEFAULT_CLAIM_TIMEOUT.total_seconds()))
    silent = (at - F.unix_micros("heartbeat_at")) / F.lit(1e6)
    taken = (status == JobStatus.IN_PROGRESS.value) & F.coalesce(silent > lasts, F.lit(True))
    finished = F.when(status == JobStatus.COMPLETED.value, F.unix_micros("finished_at"))
    return snapshot.select(
        "queue",
        "entrypoint",
        state.alias("state"),
        F.when(state == "ready", from_zero((at - due) / F.lit(1e6))).alias("age"),
        F.when(state == "scheduled", F.col("run_at")).alias("next_at"),
        F.coalesce(taken, F.lit(False)).alias("stale"),
        F.greatest(F.col("attempt") - F.col("attempts_before"), F.lit(0)).alias("tries"),
        from_zero((finished - due) / F.lit(1e6)).alias("turnaround"),
        error_class(F.col("error")).alias("error"),
    )


def standings_of(facts: DataFrame) -> DataFrame:
    """Return the figures of each entrypoint of a queue, of each queue, and of all: those of `EntrypointFigures`.

    The column `level` is `EACH`, `QUEUE` or `ALL`.
    """
    ages, turnarounds = (F.percentile(name, [0.5, 0.95]) for name in ("age", "turnaround"))
    tried = F.when(F.col("tries") > 0, F.col("tries"))
    return facts.rollup("queue", "entrypoint").agg(
        F.grouping_id().alias("level"),
        F.count("*").alias("jobs"),
        *(F.count_if(F.col("state") == state).alias(state) for state in STATES),
        F.max("age").alias("oldest_age"),
        F.get(ages, 0).alias("median_age"),
        F.get(ages, 1).alias("p95_age"),
        F.min("next_at").alias("next_at"),
        F.count_if("stale").alias("stale"),
        F.count(tried).alias("tried"),
        F.avg(tried).alias("mean_attempts"),
        F.max(tried).alias("most_attempts"),
        F.count("error").alias("failing"),
        F.get(turnarounds, 0).alias("median_turnaround"),
        F.get(turnarounds, 1).alias("p95_turnaround"),
        F.max("turnaround").alias("longest_turnaround"),
    )


def counts_of(facts: DataFrame) -> DataFrame:
    """Return the number of jobs in each part of each histogram, and with each class of errors, in one pass.

    The columns are `queue, entrypoint, state, kind, part, jobs`.
    """
    parts = {
        "age": _bucket(F.col("age"), AGES),
        "turnaround": _bucket(F.col("turnaround"), AGES),
        "attempts": _bucket(F.col("tries"), ATTEMPTS),
        "error": F.col("error"),
    }
    structs = (F.struct(F.lit(kind).alias("kind"), part.alias("part")) for kind, part in parts.items())
    each = facts.select("queue", "entrypoint", "state", F.inline(F.array(*structs)))
    known = each.where(F.col("part").isNotNull())
    return known.groupBy("queue", "entrypoint", "state", "kind", "part").agg(F.count("*").alias("jobs"))


def _bucket(value: Column, bounds: Iterable[float]) -> Column:
    """Return the number of the part that a value belongs to, as text; null if there is no value."""
    passed = (F.when(value >= bound, 1).otherwise(0) for bound in [*bounds][1:])
    return F.when(value.isNotNull(), reduce(Column.__add__, passed).cast("string"))


def error_class(error: Column) -> Column:
    """Return the class of a stored error; null if there is no error."""
    found = F.regexp_extract(error, ERROR_CLASS, 1)
    named = F.when(error.isin(STALE_ERROR, STALE_CLAIM), STALE_CLAIM)
    named = named.when(error.rlike(TIMED_OUT), TIMEOUT).when(found != "", found).otherwise(OTHER)
    return F.when(error.isNotNull(), named)


def from_zero(seconds: Column) -> Column:
    """Return zero for negative seconds, which come from clocks that disagree. Null stays null."""
    return F.when(seconds < 0, 0.0).otherwise(seconds)
