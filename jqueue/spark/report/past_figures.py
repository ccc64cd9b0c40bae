"""The figures of the events in a lake, computed by Spark SQL. An event of many jobs counts as many times."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from jqueue.domain.job import JobStatus
from jqueue.domain.transitions import Verb
from jqueue.spark.report.figures import STALE_CLAIM, error_class, from_zero

READ = (
    *("at", "verb", "entrypoint", "before", "after", "attempt", "holder", "jobs", "wait_seconds", "run_seconds"),
    *("created_at", "error"),
)
"""The columns of a lake that are read."""

SHARES = {"median": 0.5, "p95": 0.95, "p99": 0.99}
TIMES = ("wait", "run", "total")

WHOLE, BY_WINDOW, BY_ENTRYPOINT, BY_BOTH, BY_HOLDER = 7, 6, 3, 2, 5
"""Levels of a row of figures, as Spark numbers them: a bit for each left-out column of entrypoint, holder and start."""


def facts_of(events: DataFrame, window: float) -> DataFrame:
    """Return the facts for the figures, one row for each event.

    Args:
        events: with the columns `READ`.
        window: length of a window, in seconds.
    """
    verb, jobs = F.col("verb"), F.col("jobs")
    done, failed = verb == Verb.ACK.value, verb.isin(Verb.NACK.value, Verb.REVOKE.value)
    dead = (F.col("after") == JobStatus.DEAD.value) & (F.col("before") == JobStatus.IN_PROGRESS.value)
    start = F.floor(F.unix_micros("at") / F.lit(window * 1e6)) * F.lit(window)
    stale = F.col("error").isNull() & (verb == Verb.REVOKE.value)
    error = F.when(stale, F.lit(STALE_CLAIM)).otherwise(F.col("error"))
    total = (F.unix_micros("at") - F.unix_micros("created_at")) / F.lit(1e6)

    def count(wanted: Column) -> Column:
        return F.when(wanted, jobs).otherwise(0)

    return events.select(
        "entrypoint",
        "holder",
        start.cast("long").alias("start"),
        jobs.alias("weight"),
        count(verb == Verb.ENQUEUE.value).alias("enqueued"),
        count(verb == Verb.CLAIM.value).alias("claimed"),
        count(done).alias("done"),
        count(failed).alias("failed"),
        count(dead).alias("dead"),
        F.when(done | dead, F.col("attempt")).alias("tries"),
        from_zero(F.col("wait_seconds")).alias("wait"),
        F.when(done | failed, from_zero(F.col("run_seconds"))).alias("run"),
        F.when(done, from_zero(total)).alias("total"),
        F.when(failed, F.coalesce(error_class(error), F.lit("other"))).alias("error"),
    )


def figures_of(facts: DataFrame) -> DataFrame:
    """Return the figures of each entrypoint, holder and window, with the column `level`."""
    tried = F.when(F.col("tries").isNotNull(), F.col("weight"))
    names = ("enqueued", "claimed", "done", "failed", "dead")
    counts = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]
    mean = F.sum(F.col("tries") * F.col("weight")) / F.sum(tried)
    attempts = [mean.alias("mean_attempts"), F.max("tries").alias("most_attempts")]
    times = []
    for name in TIMES:
        shares = F.percentile(name, list(SHARES.values()), F.col("weight"))
        times += [F.get(shares, place).alias(f"{share}_{name}") for place, share in enumerate(SHARES)]
    groups = facts.where("entrypoint is not null").groupingSets(
        [["entrypoint", "start"], ["start"], ["entrypoint"], ["holder"], []], "entrypoint", "holder", "start"
    )
    return groups.agg(F.grouping_id().alias("level"), *counts, *attempts, *times)


def failures_of(facts: DataFrame) -> DataFrame:
    """Return the number of failed attempts by entrypoint, class of the error, and window."""
    failed = facts.where("error is not null and entrypoint is not null")
    return failed.groupBy("entrypoint", "error", "start").agg(
        F.sum("failed").alias("failed"), F.sum("dead").alias("dead")
    )
