"""The row of the data pipeline on Spark: `make bench ROWS=pipeline`. docs/reference/pipeline.md has the figures."""

from __future__ import annotations

from benchmarks.contest import FIRST_RELEASE, OURS, PROGRAMS, Contestant, Line, Measure, Row, alone, first_release
from benchmarks.figures import Target

ROWS = 100_000
PAYLOAD = 64
BATCH = 10_000
STANDING = 10_000
WRITERS = 3
ROUNDS = 3
"""Number of unmeasured rounds of each part first: Java compiles code that runs often."""

DEADLINE = 30
"""Default deadline of the commit of a bulk enqueue, in seconds."""


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
        most_runs=3,
    )
