"""Jobs that a version holds back, and the order in which it serves jobs: pauses, limits, concurrency keys and aging.

Written from the documented promises, and not from the queue's own code.
"""

from __future__ import annotations

from datetime import datetime

from tests.simulation.chain import IN_PROGRESS, Fields, Version, is_ready, status_of

ROUNDING = 0.002
"""Seconds by which two ages may differ and still count as equal."""


def seconds(moment: str) -> float:
    """Return a time of the blob as seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()


def running(version: Version, entrypoint: str) -> int:
    """Return the number of jobs of an entrypoint in progress."""
    return sum(job["entrypoint"] == entrypoint and status_of(job) == IN_PROGRESS for job in version.jobs.values())


def running_with_key(version: Version, key: str) -> int:
    """Return the number of jobs with a concurrency key in progress, of all entrypoints."""
    return sum(job.get("concurrency_key") == key and status_of(job) == IN_PROGRESS for job in version.jobs.values())


def may_be_held(job: Fields, version: Version) -> bool:
    """True if a pause, a limit or a concurrency key may hold a job back. Every job with a rate limit counts as held."""
    rules = version.rules.get(job["entrypoint"])
    if rules is not None:
        if rules.get("paused") or rules.get("rate") is not None:
            return True
        if rules.get("max_running") is not None and running(version, job["entrypoint"]) >= rules["max_running"]:
            return True
    key = job.get("concurrency_key")
    return key is not None and running_with_key(version, key) >= (job.get("concurrency_limit") or 1)


def is_free(job: Fields, version: Version, entrypoint: str | None = None) -> bool:
    """True if a dequeue of the entrypoint can certainly claim a job: it is ready, and nothing holds it back."""
    return is_ready(job, entrypoint) and not may_be_held(job, version)


def comes_first(one: Fields, other: Fields, version: Version) -> bool:
    """True if a job must be served before another.

    With aging, `aging` seconds of waiting make up for one step of priority. So jobs are compared by the time at which a
    job of priority 0 would have had to come to get the same place.
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
