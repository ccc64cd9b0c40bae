"""The metrics: name, kind, labels and description, each once. The exporter and the docs use this list.

Names, labels and units follow Prometheus. Its text format adds `_total` to the name of a counter.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

BUCKETS = tuple(2.0**power / 1000 for power in range(27))
"""Bounds of the histograms of seconds: 1 ms, doubled up to 18.6 hours. The blob counts durations in these buckets."""

CALLS = tuple(float(2**power) for power in range(13))
"""Bounds of the histogram of calls in a commit: 1 to 4,096."""

OF_QUEUE = ("queue",)
OF_ENTRYPOINT = ("queue", "entrypoint")
OF_WORKER = ("queue", "worker")


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: its name, without `_total`.
        kind: its kind.
        description: one line.
        labels: the names of its labels.
        bounds: the upper bounds of a histogram's buckets.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    description: str
    labels: tuple[str, ...] = OF_QUEUE
    bounds: tuple[float, ...] = ()


JOBS = Metric(
    "jqueue_jobs",
    "gauge",
    "Number of jobs by status: ready, scheduled, in_progress, dead or completed.",
    (*OF_ENTRYPOINT, "status"),
)
OLDEST_READY = Metric(
    "jqueue_oldest_ready_seconds",
    "gauge",
    "Time for which the oldest ready job has waited; 0 if no job is ready.",
    OF_ENTRYPOINT,
)
OLDEST_CLAIM = Metric(
    "jqueue_oldest_claim_seconds",
    "gauge",
    "Time for which the job that was claimed first has been in progress; 0 if no job is.",
    OF_ENTRYPOINT,
)
PAUSED = Metric("jqueue_paused", "gauge", "1 if the entrypoint is paused, 0 if not.", OF_ENTRYPOINT)
TOTALS = {
    kind: Metric(f"jqueue_{kind}", "counter", description, OF_ENTRYPOINT)
    for kind, description in {
        "enqueued": "Jobs added.",
        "claimed": "Claims made by workers.",
        "done": "Jobs acked.",
        "failed": "Claims that ended with a failure.",
        "retried": "Failures after which the job was queued again.",
        "dead": "Failures after which the job was dead.",
        "cancelled": "Jobs cancelled.",
        "expired": "Jobs removed because their time was over.",
        "recovered": "Stale claims, whose worker was gone.",
        "removed": "Jobs purged, or moved to another queue.",
    }.items()
}
"""The counter of each number in `Totals`."""

HISTOGRAMS = {
    "waits": Metric("jqueue_wait_seconds", "histogram", "Time from ready to claimed.", OF_ENTRYPOINT, BUCKETS),
    "runs": Metric("jqueue_run_seconds", "histogram", "Time from claimed to acked or nacked.", OF_ENTRYPOINT, BUCKETS),
}
"""The histogram of each of those in `Totals`."""

DROPPED = Metric(
    "jqueue_dropped_values",
    "gauge",
    "Number of jobs whose result or error was not kept for want of room.",
    (*OF_ENTRYPOINT, "value"),
)
WORKERS = Metric(
    "jqueue_workers", "gauge", "Number of workers that are not lost: they have committed lately.", OF_WORKER
)
SLOTS = Metric("jqueue_worker_slots", "gauge", "Number of jobs that these workers can run.", OF_WORKER)
BUSY = Metric("jqueue_worker_busy", "gauge", "Number of jobs that these workers hold.", OF_WORKER)
UP = Metric("jqueue_up", "gauge", "1 if the queue could be read at the last look, 0 if not.")
OF_QUEUE_STATS = {
    "version": Metric("jqueue_version", "gauge", "Version of the queue: it grows by one with each commit."),
    "size": Metric("jqueue_size_bytes", "gauge", "Size of the queue's object."),
    "size_limit": Metric("jqueue_size_limit_bytes", "gauge", "Size from which enqueue refuses jobs."),
    "unreadable": Metric("jqueue_unreadable_lines", "gauge", "Lines of the queue's object that are not jobs."),
    "segments": Metric("jqueue_segments", "gauge", "Segments beside the queue's object, which hold waiting jobs."),
    "segment_jobs": Metric(
        "jqueue_segment_jobs", "gauge", "Waiting jobs in segments. They are among the jobs by status."
    ),
    "segment_bytes": Metric("jqueue_segment_bytes", "gauge", "Size of all segments."),
}
"""The gauge of each of these fields of `QueueStats`."""

BUILD = Metric("jqueue_build_info", "gauge", "1, labelled with the version of jqueue.", ("version",))

COMMITS = Metric("jqueue_commits", "counter", "Commits of this process that have landed.")
RECOGNISED = Metric(
    "jqueue_commits_recognised",
    "counter",
    "Those of them whose answer was lost, and which a later read found.",
)
CONFLICTS = Metric("jqueue_conflicts", "counter", "Writes of this process that the store refused as conflicts.")
COMMIT_CALLS = Metric("jqueue_commit_calls", "histogram", "Number of calls in a commit of this process.", bounds=CALLS)
STORE = Metric(
    "jqueue_store_seconds",
    "histogram",
    "Time of calls to the store: read, write; of objects beside it: create, fetch, list, remove.",
    ("queue", "call"),
    BUCKETS,
)
STORE_ERRORS = Metric(
    "jqueue_store_errors",
    "counter",
    "Failed calls of this process to the store, by kind: throttled, timeout, transient, missing, fatal or other.",
    ("queue", "call", "kind"),
)
RUNNING = Metric("jqueue_worker_running", "gauge", "Number of handlers that run in this process.", OF_WORKER)
OUTCOMES = Metric(
    "jqueue_worker_outcomes",
    "counter",
    "Jobs of this worker by outcome: succeeded, failed, dead, snoozed, handed_back, cancelled or lost.",
    (*OF_WORKER, "outcome"),
)

QUEUE_METRICS = (
    *(JOBS, OLDEST_READY, OLDEST_CLAIM, PAUSED, *TOTALS.values(), *HISTOGRAMS.values(), DROPPED),
    *(WORKERS, SLOTS, BUSY, UP, *OF_QUEUE_STATS.values(), BUILD),
)
"""The metrics of a queue: the same from whichever process they are read."""

WORKER_METRICS = (RUNNING, OUTCOMES)
"""The metrics of a worker in this process."""

COMMIT_METRICS = (COMMITS, RECOGNISED, CONFLICTS, COMMIT_CALLS, STORE, STORE_ERRORS)
"""The metrics of the commits of this process."""

METRICS = (*QUEUE_METRICS, *WORKER_METRICS, *COMMIT_METRICS)
"""All metrics."""
