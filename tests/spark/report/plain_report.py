"""The figures of a report computed by plain Python, for comparison with Spark's, and jobs to compute them from."""

import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from pyspark.sql import SparkSession

from jqueue.domain.operations.operator import STALE_ERROR
from jqueue.spark.report import Report
from jqueue.spark.report.columns import AGES, ATTEMPTS, EntrypointFigures, Failure, HistogramBucket
from jqueue.spark.report.figures import READ

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
SCHEMA = f"{READ}, queue string"

NAMES = ("resize", "<script>alert(1)</script>", "日本語の名前", "x" * 500, 'a"b&c', "$\\frac{")
ERRORS = {
    "timed out after 3 s": "timeout",
    "timed out after 0.5 s, and still ran after it was told to stop: its process was ended": "timeout",
    "timed out waiting for the server": "other",
    "ValueError: 451": "ValueError",
    "gaierror: no such host": "gaierror",
    "Größe: zu groß": "Größe",
    "TimeoutError: ": "TimeoutError",
    "E1: \nValueError: two": "E1",
    STALE_ERROR: "stale claim",
    "the server said 451": "other",
    "password: hunter2": "other",
    "ValueError without a colon": "other",
    "<b>Bad</b>: no": "other",
    f"{'X' * 101}: long": "other",
    " ValueError: indented": "other",
    "": "other",
}
"""Stored errors, with the class under which each is counted."""


@dataclass(frozen=True)
class Line:
    """One job in the form of a snapshot."""

    queue: str = "q"
    entrypoint: str = "e"
    status: str = "queued"
    attempt: int = 0
    attempts_before: int = 0
    created_at: datetime = NOW
    run_at: datetime | None = None
    expires_at: datetime | None = None
    heartbeat_at: datetime | None = None
    finished_at: datetime | None = None
    claim_timeout: float | None = None
    error: str | None = None

    def cells(self):
        return tuple(getattr(self, column.split()[0]) for column in SCHEMA.split(", "))

    @property
    def tries(self):
        return max(0, self.attempt - self.attempts_before)

    def state(self):
        if self.status != "queued":
            return self.status
        if self.run_at is not None and self.run_at > NOW:
            return "scheduled"
        return "ready" if self.expires_at is None or self.expires_at > NOW else "expired"

    def age(self):
        return seconds(self.run_at or self.created_at, NOW) if self.state() == "ready" else None

    def turnaround(self):
        return seconds(self.run_at or self.created_at, self.finished_at) if self.status == "completed" else None

    def is_stale(self):
        if self.status != "in_progress":
            return False
        lasts = timedelta(seconds=300 if self.claim_timeout is None else self.claim_timeout)
        return self.heartbeat_at is None or NOW - self.heartbeat_at > lasts


def seconds(since, until):
    return max(0.0, (until - since).total_seconds())


def percentile(values, share):
    """A percentile by linear interpolation, as in Spark's `percentile`."""
    if not values:
        return None
    values = sorted(values)
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def standing(queue, entrypoint, lines):
    states = Counter(line.state() for line in lines)
    ages = [age for line in lines if (age := line.age()) is not None]
    times = [time for line in lines if (time := line.turnaround()) is not None]
    tried = [line.tries for line in lines if line.tries]
    return EntrypointFigures(
        queue=queue,
        entrypoint=entrypoint,
        jobs=len(lines),
        ready=states["ready"],
        scheduled=states["scheduled"],
        in_progress=states["in_progress"],
        dead=states["dead"],
        completed=states["completed"],
        expired=states["expired"],
        oldest_age=max(ages, default=None),
        median_age=percentile(ages, 0.5),
        p95_age=percentile(ages, 0.95),
        next_at=min((line.run_at for line in lines if line.state() == "scheduled"), default=None),
        stale=sum(line.is_stale() for line in lines),
        tried=len(tried),
        mean_attempts=sum(tried) / len(tried) if tried else None,
        most_attempts=max(tried, default=None),
        failing=sum(line.error is not None for line in lines),
        median_turnaround=percentile(times, 0.5),
        p95_turnaround=percentile(times, 0.95),
        longest_turnaround=max(times, default=None),
    )


def grouped(lines, *fields):
    groups: dict[tuple, list] = {}
    for line in lines:
        groups.setdefault(tuple(getattr(line, field) for field in fields), []).append(line)
    return groups


def standings(lines):
    groups = grouped(lines, "queue", "entrypoint")
    return tuple(standing(queue, name, groups[queue, name]) for queue, name in sorted(groups))


def totals(lines, queues):
    found = {queue: standing(queue, None, [line for line in lines if line.queue == queue]) for queue in queues}
    return {None: standing(None, None, lines), **found}


def failures(lines):
    made = []
    for (queue, name), group in grouped(
        [line for line in lines if line.error is not None], "queue", "entrypoint"
    ).items():
        by_class: dict[str, list] = {}
        for line in group:
            by_class.setdefault(ERRORS[line.error], []).append(line)
        for error, failed in by_class.items():
            dead = sum(line.status == "dead" for line in failed)
            completed = sum(line.status == "completed" for line in failed)
            made.append(Failure(queue, name, error, len(failed), dead, len(failed) - dead - completed, completed))
    return tuple(sorted(made, key=lambda each: (-each.jobs, each)))


def histogram(lines, value, bounds):
    counts: Counter[tuple] = Counter()
    for line in lines:
        if (found := value(line)) is not None:
            bound = max(bound for bound in bounds if bound <= found)
            counts[line.queue, line.entrypoint, bound] += 1
    below = dict(zip(bounds, (*bounds[1:], None), strict=True))
    return tuple(
        HistogramBucket(queue, name, bound, below[bound], jobs) for (queue, name, bound), jobs in sorted(counts.items())
    )


def plain_report(lines, queues=("q",)):
    """Make the report of jobs without Spark."""
    return Report(
        spark=cast(SparkSession, None),
        now=NOW,
        queues=tuple(queues),
        standings=standings(lines),
        totals=totals(lines, queues),
        failures=failures(lines),
        ages=histogram(lines, Line.age, AGES),
        turnarounds=histogram(lines, Line.turnaround, AGES),
        attempts=histogram(lines, lambda line: line.tries, ATTEMPTS),
    )


def some_lines(seed, count, queues=("a", "b")):
    """Random jobs in any state, many of them with values at a limit."""
    dice = random.Random(seed)

    def near(*choices):
        return NOW + timedelta(seconds=dice.choice([*choices, dice.uniform(-1e6, 1e6)]))

    made = []
    for _ in range(count):
        status = dice.choice(["queued", "queued", "in_progress", "dead", "completed"])
        made.append(
            Line(
                queue=dice.choice(queues),
                entrypoint=dice.choice(NAMES),
                status=status,
                attempt=dice.choice([0, 1, 2, 3, 4, 5, 9, 10, 19, 20, 10**12]),
                attempts_before=dice.choice([0, 0, 1, 300]),
                created_at=near(0, -1, -10, -60, -600, -3600, -86400, -7 * 86400, 1),
                run_at=dice.choice([None, None, near(0, -1, 1, 3600)]),
                expires_at=dice.choice([None, None, near(0, -1, 1)]),
                heartbeat_at=dice.choice([None, near(-300, -301, -299.999999, -10)])
                if status == "in_progress"
                else None,
                finished_at=near(0, 1) if status == "completed" else None,
                claim_timeout=dice.choice([None, 10.0, 0.5]) if status == "in_progress" else None,
                error=dice.choice([None, None, *ERRORS]),
            )
        )
    return made
