"""The rows of the data pipeline on Spark: `make bench ROWS=pipeline`. docs/reference/pipeline.md has the figures."""

from __future__ import annotations

from typing import Any

from benchmarks.contest import FIRST_RELEASE, OURS, PROGRAMS, Contestant, Line, Measure, Row, alone, first_release
from benchmarks.figures import Target

ROWS = 100_000
PAYLOAD = 64
BATCH = 10_000
STANDING = 10_000
WRITERS = 3
ROUNDS = 2
"""Number of unmeasured rounds of each part first: Java compiles code that runs often."""

DEADLINE = 30
"""Default deadline of the commit of a bulk enqueue, in seconds."""

MILLION = 1_000_000
DEEP: dict[str, dict[str, Any]] = {
    "enqueue": {"rows": 5 * MILLION, "pairs": 5, "few_rows": ROWS, "in_flight": 100, "seconds": 5.0, "short": 1_000},
    "options": {"rows": MILLION, "pairs": 5},
    "first_write": {"rows": 1_000},
    "first_table": {"rows": 1_000},
    "commit": {"rows": ROWS, "writers": WRITERS, "commits": 9},
    "batch": {"rows": MILLION, "warm_rows": ROWS},
    "sleep": {"rows": 20_000, "warm_rows": 1_000},
    "stream": {"rows": MILLION, "warm_rows": 2 * ROWS, "batch": 2 * ROWS},
    "snapshot": {"rows": MILLION, "warm_rows": ROWS},
    "archive": {"rows": MILLION, "warm_rows": ROWS},
}
"""The parts of the pipeline at depth, each a program of its own, and their arguments."""

PARTS = {
    "enqueue": f"bulk enqueue of {5 * MILLION:,} rows",
    "options": f"bulk enqueue of {MILLION:,} rows with five options",
    "first_write": "first bulk enqueue of a session, of 1,000 rows",
    "first_table": "first Parquet table of a session, of 1,000 rows",
    "commit": f"commit of {ROWS:,} staged rows",
    "batch": f"run_batch of {MILLION:,} jobs",
    "sleep": "run_batch of 20,000 jobs",
    "stream": f"streaming source, {2 * ROWS:,} jobs a batch",
    "snapshot": f"snapshot of {MILLION:,} jobs",
    "archive": f"archive of {MILLION:,} events",
}
"""The same in words, as the names of the contestants."""


def pipeline_rows() -> list[Row]:
    """The rows of the data pipeline, each run once."""
    return [pipeline_row(), deep_pipeline_row()]


def pipeline_row() -> Row:
    """Each part of the pipeline on two cores and a file, and the first release's codec beside the bulk enqueue."""
    given = {"storage": "file", "rows": ROWS, "payload_bytes": PAYLOAD}
    told = {**given, "batch": BATCH, "batch_jobs": BATCH, "standing": STANDING, "writers": WRITERS, "rounds": ROUNDS}
    measured = Measure(OURS, "rows_per_second")
    return Row(
        "pipeline",
        "on Spark, local[2], a file",
        (
            Contestant(OURS, "jqueue-spark", PROGRAMS / "pipeline.py", told, timeout=600),
            first_release("bulk", given, note="its models, its codec and one write, no fsync, without Spark"),
        ),
        (
            Line(f"bulk enqueue of {ROWS:,} rows of {PAYLOAD} bytes, rows/s", measured, None, Target(">=", 100_000)),
            Line("the same", measured, Measure(FIRST_RELEASE, "rows_per_second"), Target(">=", 3)),
            Line(
                "its commit alone, when the rows are staged, rows/s",
                Measure(OURS, "rows_committed_per_second"),
                Measure(FIRST_RELEASE, "rows_per_second"),
            ),
            alone("snapshot_seconds", Target("<=", 1), f"snapshot of {ROWS:,} jobs, every column, seconds"),
            alone("streamed_per_second", Target(">=", 10_000), f"streaming source, {BATCH:,} jobs a batch, jobs/s"),
            alone("streamed_from_start_per_second", None, "the same, with the query's start and end, jobs/s"),
            alone("run_per_second", Target(">=", 5_000), f"run_batch, {BATCH:,} jobs that do nothing, jobs/s"),
            alone(
                "contended_seconds",
                Target("<=", DEADLINE),
                f"bulk enqueue of {BATCH:,} rows on {STANDING:,} jobs, {WRITERS} writers busy, seconds",
            ),
        ),
        most_runs=1,
    )


def deep_pipeline_row() -> Row:
    """Each part of the pipeline at depth, in a process of its own."""
    return Row(
        "pipeline",
        "on Spark at depth, local[2], a file",
        tuple(_part(name, arguments) for name, arguments in DEEP.items()),
        (
            _line("enqueue", "rows_per_second", Target(">=", 400_000), f"rows of {PAYLOAD} bytes, rows/s"),
            _line(
                "enqueue", "rows_per_second", Target(">=", 0.5), "the same against Parquet", "parquet_rows_per_second"
            ),
            _line(
                "enqueue",
                "driver_mebibytes",
                Target("<=", 1.2),
                f"MiB of the driver, against those for {ROWS:,} rows",
                "driver_mebibytes_for_few",
            ),
            _line(
                "enqueue",
                "worker_per_second",
                Target(">=", 0.8),
                "then a worker's operations/s, against those on a short queue",
                "worker_per_second_when_short",
            ),
            _line("options", "rows_per_second", Target(">=", 0.4), "against Parquet", "parquet_rows_per_second"),
            Line(
                "the first write of a session, seconds",
                Measure(PARTS["first_write"], "first_seconds"),
                Measure(PARTS["first_table"], "first_seconds"),
                Target("<=", 3),
            ),
            _line("commit", "commit_ms", Target("<=", 50), f"beside {WRITERS} busy writers, ms"),
            _line("commit", "slowest_commit_ms", None, f"the slowest of {DEEP['commit']['commits']}, ms"),
            _line("batch", "run_per_second", None, "that do nothing, jobs/s"),
            _line(
                "batch",
                "run_per_second",
                Target(">=", 0.2),
                "the same handler in mapInArrow over Parquet",
                "in_arrow_per_second",
            ),
            _line(
                "sleep",
                "run_per_second",
                Target(">=", 0.95),
                "that sleep 1 ms, one at a time, against mapInArrow",
                "in_arrow_per_second",
            ),
            _line("stream", "streamed_per_second", Target(">=", 150_000), "jobs/s"),
            _line("stream", "streamed_from_start_per_second", None, "with the query's start and end, jobs/s"),
            _line("snapshot", "read_per_second", Target(">=", 0.4), "against Parquet", "parquet_read_per_second"),
            _line("snapshot", "counted_per_second", None, "count() against Parquet", "parquet_counted_per_second"),
            _line("archive", "archive_seconds", Target("<=", 15), "seconds"),
        ),
        most_runs=1,
    )


def _part(name: str, arguments: dict[str, Any]) -> Contestant:
    given = {"part": name, "storage": "file", "payload_bytes": PAYLOAD, **arguments}
    return Contestant(PARTS[name], "jqueue-spark", PROGRAMS / "deep_pipeline.py", given, timeout=600)


def _line(part: str, figure: str, target: Target | None, what: str, other: str | None = None) -> Line:
    name = PARTS[part]
    theirs = None if other is None else Measure(name, other)
    return Line(f"{name}: {what}", Measure(name, figure), theirs, target)
