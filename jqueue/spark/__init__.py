"""The data pipeline on Spark: jobs in and out of DataFrames and streams, and handlers on executors.

    spark.read.format("jqueue").load("s3://bucket/queue.json")
    df.write.format("jqueue").mode("append").option("entrypoint", "resize").save("s3://bucket/queue.json")

The queue stays the one point of commit; Spark brings the machines. It needs `pip install "jqueue[spark]"` and Java 17.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jqueue.spark.batch.run import BatchFailedError, BatchReport, run_batch
    from jqueue.spark.enqueue.bad_rows import split_bad_rows
    from jqueue.spark.session import local_session
    from jqueue.spark.stream.end_batch import EndedBatch, end_batch

__all__ = [
    "HISTORY_SCHEMA",
    "BatchFailedError",
    "BatchReport",
    "EndedBatch",
    "end_batch",
    "local_session",
    "run_batch",
    "split_bad_rows",
]

HISTORY_SCHEMA = (
    "number BIGINT, at TIMESTAMP, verb STRING, job_id STRING, entrypoint STRING, before STRING, after STRING, "
    "attempt BIGINT, holder STRING, wait_seconds DOUBLE, run_seconds DOUBLE, created_at TIMESTAMP, error STRING, "
    "payload BINARY, jobs BIGINT, rows ARRAY<STRUCT<segment: STRING, spans: ARRAY<ARRAY<BIGINT>>>>, asked_by STRING, "
    "`group` STRING"
)
"""The columns of the JSON lines in the folder `<queue>.history`: the fields of a `HistoryEvent`."""

_LATER = {
    "batch.run": ("BatchFailedError", "BatchReport", "run_batch"),
    "enqueue.bad_rows": ("split_bad_rows",),
    "session": ("local_session",),
    "stream.end_batch": ("EndedBatch", "end_batch"),
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: the modules are slow to import, and Spark starts new processes again and again."""
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"jqueue.spark.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
