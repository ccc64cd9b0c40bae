"""Counts what claims cost: comparisons, jobs that are looked at, entries that are checked."""

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
"""What is meant by a few: about eighty."""


class Compared(int):
    """A number that counts how often it is compared."""

    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return int.__eq__(self, other)

    def __lt__(self, other):
        Compared.times += 1
        return int.__lt__(self, other)

    __hash__ = int.__hash__


class Looked(dict):
    """The table of the jobs, which counts how many of them are looked at."""

    jobs = 0

    def __getitem__(self, job_id):
        Looked.jobs += 1
        return super().__getitem__(job_id)

    def get(self, job_id, default=None):
        Looked.jobs += 1
        return super().get(job_id, default)

    def __iter__(self):
        Looked.jobs += len(self)
        return super().__iter__()

    def values(self):
        Looked.jobs += len(self)
        return super().values()

    def items(self):
        Looked.jobs += len(self)
        return super().items()


class Costs:
    """What has been counted since one asked last."""

    def __init__(self, monkeypatch):
        self.checks = 0
        is_ready = Order._is_ready

        def counted(order, entry):
            self.checks += 1
            return is_ready(order, entry)

        monkeypatch.setattr(Order, "_is_ready", counted)

    def since(self):
        found = (Compared.times, Looked.jobs, self.checks)
        Compared.times = Looked.jobs = self.checks = 0
        return found


def waiting(number, **fields):
    """A job of any of three entrypoints and of any of a thousand priorities."""
    job = Job(id=f"job {number}", entrypoint=NAMES[number % 3], payload=b"", created_at=NOW, sequence=number + 1)
    return job.evolve(priority=Compared(number * 7919 % 1000), **fields)


def deep_draft(count=DEEP, **fields):
    """A draft of the jobs. If there are many, nearly all of them are packed."""
    draft = Draft()
    draft.load(waiting(number, **fields) for number in range(count))
    draft.jobs.entries = Looked(draft.jobs.entries)
    return draft


def claim(draft, names, count=1):
    claimed = Dequeue(names, batch_size=count, claim_timeout=30.0).change(draft, NOW)
    draft.settle()
    return claimed
