"""Counters for the cost of claims: comparisons, jobs that are looked at, entries that are checked."""

from datetime import UTC, datetime
from math import log2

from jqueue.domain.draft import Draft
from jqueue.domain.models import Job
from jqueue.domain.operations import Dequeue
from jqueue.domain.order import Order
from tests.deep_queue import DEEP

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("mail", "resize", "report")
FEW = 6 * log2(DEEP)
"""Upper bound for a few comparisons: about eighty."""


class CountedNumber(int):
    """A number that counts its comparisons."""

    times = 0

    def __eq__(self, other):
        CountedNumber.times += 1
        return int.__eq__(self, other)

    def __lt__(self, other):
        CountedNumber.times += 1
        return int.__lt__(self, other)

    __hash__ = int.__hash__


class CountedJobs(dict):
    """The table of the jobs, which counts the jobs that are looked at."""

    jobs = 0

    def __getitem__(self, job_id):
        CountedJobs.jobs += 1
        return super().__getitem__(job_id)

    def get(self, job_id, default=None):
        CountedJobs.jobs += 1
        return super().get(job_id, default)

    def __iter__(self):
        CountedJobs.jobs += len(self)
        return super().__iter__()

    def values(self):
        CountedJobs.jobs += len(self)
        return super().values()

    def items(self):
        CountedJobs.jobs += len(self)
        return super().items()


class Costs:
    """The counts since the last call of `since`."""

    def __init__(self, monkeypatch):
        self.checks = 0
        is_ready = Order._is_ready

        def counted(order, entry):
            self.checks += 1
            return is_ready(order, entry)

        monkeypatch.setattr(Order, "_is_ready", counted)

    def since(self):
        found = (CountedNumber.times, CountedJobs.jobs, self.checks)
        CountedNumber.times = CountedJobs.jobs = self.checks = 0
        return found


def waiting(number, **fields):
    """Return a job with one of three entrypoints and one of a thousand priorities."""
    job = Job(id=f"job {number}", entrypoint=NAMES[number % 3], payload=b"", created_at=NOW, sequence=number + 1)
    return job.evolve(priority=CountedNumber(number * 7919 % 1000), **fields)


def deep_draft(count=DEEP, **fields):
    """Return a draft with `count` waiting jobs. If there are many, nearly all of them are packed."""
    draft = Draft()
    draft.load(waiting(number, **fields) for number in range(count))
    draft.jobs.entries = CountedJobs(draft.jobs.entries)
    return draft


def claim(draft, names, count=1):
    claimed = Dequeue(names, batch_size=count, claim_timeout=30.0).change(draft, NOW)
    draft.settle()
    return claimed
