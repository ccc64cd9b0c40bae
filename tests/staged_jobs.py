"""Staged jobs for tests: blocks of them, queues in virtual time, and the ids that a new reader sees."""

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


def block(*ids, entrypoint="work", **details):
    """Return staged jobs with these ids, as another process reads them."""
    writer = StagedWriter()
    for job_id in ids:
        writer.add(job_id, entrypoint, b"for " + job_id.encode(), **details)
    return read_staged(writer.finish())


def queue_on(kind, storage, **options):
    return kind(storage, clock=VirtualClock(), **options)


def store():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()))


async def ids_in(storage):
    """Return the ids of all jobs in order, as a new reader sees them."""
    state = await DirectQueue(storage, clock=VirtualClock()).read_state()
    assert not state.set_aside
    places = [job.sequence for job in state.jobs]
    assert len(places) == len(set(places)), "two jobs have the same sequence number"
    return [job.id for job in sorted(state.jobs, key=lambda job: job.sequence)]
