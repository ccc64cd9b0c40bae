"""What a version holds back, and in which order it serves: pauses, limits, concurrency keys and aging.

Written from what is promised of them, and not from the queue's own code.
"""

from __future__ import annotations

from datetime import datetime

from jqueue.testing.simulation.chain import IN_PROGRESS, Fields, Version, is_ready, status_of

ROUNDING = 0.002
"""Seconds by which two ages may differ and be taken for the same."""


def seconds(moment: str) -> float:
    """A time of the blob, in seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()


def running(version: Version, entrypoint: str) -> int:
    """How many jobs of an entrypoint are in progress."""
    return sum(job["entrypoint"] == entrypoint and status_of(job) == IN_PROGRESS for job in version.jobs.values())


def running_with_key(version: Version, key: str) -> int:
    """How many jobs with a concurrency key are in progress, whatever their entrypoint."""
    return sum(job.get("concurrency_key") == key and status_of(job) == IN_PROGRESS for job in version.jobs.values())


def may_be_held(job: Fields, version: Version) -> bool:
    """Whether something may hold a job back: whatever has a rate limit is taken for held."""
    rules = version.rules.get(job["entrypoint"])
    if rules is not None:
        if rules.get("paused") or rules.get("rate") is not None:
            return True
        if rules.get("max_running") is not None and running(version, job["entrypoint"]) >= rules["max_running"]:
            return True
    key = job.get("concurrency_key")
    return key is not None and running_with_key(version, key) >= (job.get("concurrency_limit") or 1)


def is_free(job: Fields, version: Version, entrypoint: str | None = None) -> bool:
    """Whether anybody who looks for the entrypoint can have a job, whatever the time."""
    return is_ready(job, entrypoint) and not may_be_held(job, version)


def comes_first(one: Fields, other: Fields, version: Version) -> bool:
    """Whether a job is certainly to be served before another.

    With aging, so many seconds of waiting make up for one step of priority: what counts is when a job of priority 0
    would have to have come to stand in its place.
    """
    aging = version.settings.get("aging")
    if aging is None:
        return _place(one) < _place(other)
    difference = _came(one, aging) - _came(other, aging)
    return difference < -ROUNDING or (difference == 0 and one["sequence"] < other["sequence"])


def _place(job: Fields) -> tuple[int, int]:
    return job.get("priority", 0), job.get("sequence", 0)


def _came(job: Fields, aging: float) -> float:
    return seconds(job.get("run_at") or job["created_at"]) + float(job.get("priority", 0) * aging)
