"""The metrics: name, kind, labels and description, each once. The exporter and the docs use this list.

Names, labels and units follow Prometheus. Its text format adds `_total` to the name of a counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: its name, without `_total`.
        kind: "gauge", "counter" or "histogram".
        description: one line.
        labels: the names of its labels.
    """

    name: str
    kind: str
    description: str
    labels: tuple[str, ...]


def _metrics(groups: Mapping[tuple[str, ...], Mapping[str, str]]) -> tuple[Metric, ...]:
    """Return the metrics whose descriptions are given by name, grouped by their kind and their labels."""
    return tuple(
        Metric(f"jqueue_{name}", kind, description, tuple(labels))
        for (kind, *labels), descriptions in groups.items()
        for name, description in descriptions.items()
    )


QUEUE_METRICS = _metrics(
    {
        ("gauge", "queue", "entrypoint", "status"): {
            "jobs": "Number of jobs by status: ready, scheduled, waiting, in_progress, dead or completed.",
        },
        ("gauge", "queue", "entrypoint"): {
            "oldest_ready_seconds": "Time for which the oldest ready job has waited; 0 if no job is ready.",
            "oldest_claim_seconds": (
                "Time for which the job that was claimed first has been in progress; 0 if no job is."
            ),
            "paused": "1 if the entrypoint is paused, 0 if not.",
        },
        ("counter", "queue", "entrypoint"): {
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
        },
        ("histogram", "queue", "entrypoint"): {
            "wait_seconds": "Time from ready to claimed.",
            "run_seconds": "Time from claimed to acked or nacked.",
        },
        ("gauge", "queue", "entrypoint", "value"): {
            "dropped_values": "Number of jobs whose result or error was not kept for want of room.",
        },
        ("gauge", "queue", "worker"): {
            "workers": "Number of workers that are not lost: they have committed lately.",
            "worker_slots": "Number of jobs that these workers can run.",
            "worker_busy": "Number of jobs that these workers hold.",
        },
        ("gauge", "queue"): {
            "up": "1 if the queue could be read at the last look, 0 if not.",
            "figures_age_seconds": "Time since these figures were read; absent until they were.",
            "version": "Version of the queue: it grows by one with each commit.",
            "size_bytes": "Size of the queue's object.",
            "size_limit_bytes": "Size from which enqueue refuses jobs.",
            "unreadable_lines": "Lines of the queue's object that are not jobs.",
            "segments": "Segments beside the queue's object, which hold waiting jobs.",
            "segment_jobs": "Waiting jobs in segments. They are among the jobs by status.",
            "segment_bytes": "Size of all segments.",
            "kept_keys": "Unique keys that are kept after their jobs.",
            "kept_key_bytes": "Bytes of the queue's object that they take.",
        },
        ("gauge", "version"): {"build_info": "1, labelled with the version of jqueue."},
    }
)
"""The metrics of a queue: the same from whichever process they are read."""

WORKER_METRICS = _metrics(
    {
        ("gauge", "queue", "worker"): {"worker_running": "Number of handlers that run in this process."},
        ("counter", "queue", "worker", "outcome"): {
            "worker_outcomes": (
                "Jobs of this worker by outcome: succeeded, failed, dead, snoozed, handed_back, cancelled or lost."
            ),
        },
    }
)
"""The metrics of a worker in this process."""

COMMIT_METRICS = _metrics(
    {
        ("counter", "queue"): {
            "commits": "Commits of this process that have landed.",
            "commits_recognised": "Those of them whose answer was lost, and which a later read found.",
            "conflicts": "Writes of this process that the store refused as conflicts.",
        },
        ("gauge", "queue"): {
            "broker_clients": "Clients that have a call at this broker: `jqueue serve`.",
            "broker_waiting_claims": "Those of their calls that wait for jobs.",
        },
        ("histogram", "queue"): {"commit_calls": "Number of calls in a commit of this process."},
        ("histogram", "queue", "call"): {
            "store_seconds": (
                "Time of calls to the store: read, write; of objects beside it: create, fetch, list, remove."
            ),
        },
        ("counter", "queue", "call", "kind"): {
            "store_errors": (
                "Failed calls of this process to the store, by kind: "
                "throttled, timeout, transient, missing, fatal or other."
            ),
        },
    }
)
"""The metrics of the commits of this process."""

METRICS = {metric.name: metric for metric in (*QUEUE_METRICS, *WORKER_METRICS, *COMMIT_METRICS)}
"""All metrics, by name."""
