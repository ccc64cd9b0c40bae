"""Jobs are served by priority and then by the moment from which they waited, for any verbs that queued them."""

import asyncio
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Job
from jqueue.operations import Dequeue, Enqueue, Nack, Redrive
from jqueue.testing.virtual_time import EPOCH, VirtualClock, run

ORDER = settings(max_examples=40, deadline=None)
kinds = st.sampled_from([DirectQueue, BrokerQueue])
paths = st.sampled_from(["verb", "many", "apply"])
arrivals = st.lists(st.tuples(st.integers(-2, 2), st.sampled_from("xy"), paths), min_size=1, max_size=8)
ways = st.lists(
    st.tuples(st.sampled_from(["give back", "hand back", "revoke", "die", "keep"]), paths), min_size=8, max_size=8
)
consumers = st.sampled_from([None, ["x", "y"], ["y", "x", "z"]])


async def enqueue(queue, path, name, **options):
    """Add one job by one of the verbs that add jobs."""
    if path == "verb":
        return await queue.enqueue(name, b"", **options)
    operation = Enqueue(name, b"", **options)
    [job] = await (queue.enqueue_many([operation]) if path == "many" else queue.apply(operation))
    return job


async def nack(queue, path, job, **options):
    """Hand a job back by one of the verbs that do so."""
    if path == "verb":
        await queue.nack(job, **options)
    elif path == "many":
        assert [] == await queue.nack_many([job], **options)
    else:
        await queue.apply(Nack(job, **options))


async def serve(queue, path, names, size):
    """Dequeue until no job is ready, and return the jobs in the order of service."""
    served: list[Job] = []
    while True:
        if path == "apply":
            [jobs] = await queue.apply(Dequeue(names, batch_size=size))
        else:
            jobs = await queue.dequeue(names, batch_size=size)
        if not jobs:
            return served
        served += jobs


def in_line(line):
    """Return the ids of (priority, id) pairs, given in the order of arrival, in the order of service."""
    return [job_id for _, job_id in sorted(line, key=lambda waiting: waiting[0])]


@ORDER
@given(kinds, arrivals, ways, consumers, st.integers(1, 9), paths)
def test_jobs_are_served_by_priority_and_then_in_the_order_in_which_they_came_or_came_back(
    kind, arrivals, ways, names, size, path
):
    async def try_it():
        async with kind(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
            line = []
            for priority, name, by in arrivals:
                job = await enqueue(queue, by, name, priority=priority)
                line.append((priority, job.id))
            claimed = await queue.dequeue(batch_size=100)
            assert in_line(line) == [job.id for job in claimed]
            for job, (way, by) in zip(claimed, ways, strict=False):
                await turn(queue, way, by, job, line)
            assert in_line(line) == [job.id for job in await serve(queue, path, names, size)]

    run(try_it())


async def turn(queue, way, by, job, line):
    """A claimed job comes back or not, and the order of the waiting jobs changes accordingly."""
    waiting = (job.priority, job.id)
    if way == "keep":
        line.remove(waiting)
        await queue.ack(job)
    elif way == "hand back":
        await nack(queue, by, job, charge=False)
    else:
        line.remove(waiting)
        line.append(waiting)
        await nack(queue, by, job, dead=way == "die")
        if way == "die":
            await (queue.apply(Redrive(job.id)) if by == "apply" else queue.redrive(job.id))


@ORDER
@given(kinds, arrivals, st.permutations(range(8)))
def test_jobs_revoked_together_come_back_in_the_order_in_which_they_stood(kind, arrivals, order):
    async def try_it():
        async with kind(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
            line = []
            for priority, name, by in arrivals:
                line.append((priority, (await enqueue(queue, by, name, priority=priority)).id))
            jobs = await queue.dequeue(batch_size=100)
            for at in order:  # when they were confirmed does not matter
                await asyncio.sleep(1)
                await queue.heartbeat_many(jobs[at : at + 1])
            late = await queue.enqueue("x", b"")
            assert len(jobs) == await queue.requeue_stale(0)
            served = [job.id for job in await queue.dequeue(batch_size=100)]
            assert in_line([(0, late.id), *line]) == served

    run(try_it())


@ORDER
@given(kinds, st.lists(st.tuples(st.integers(-1, 1), st.integers(0, 4), st.booleans()), max_size=8), st.integers(0, 5))
def test_a_scheduled_job_whose_time_has_come_takes_the_place_that_it_had(kind, arrivals, passed):
    async def try_it():
        async with kind(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
            line: list[tuple[int, str]] = []
            later: list[tuple[int, str]] = []
            for priority, delay, as_time in arrivals:
                when = {"run_at": EPOCH + timedelta(seconds=delay)} if as_time else {"delay": delay}
                job = await queue.enqueue("x", b"", priority, **when)
                (line if delay <= passed else later).append((priority, job.id))
            assert [] == await queue.dequeue("nobody", wait=passed)
            assert in_line(line) == [job.id for job in await queue.dequeue(batch_size=100)]
            assert [] == await queue.dequeue("nobody", wait=10)
            assert in_line(later) == [job.id for job in await queue.dequeue(batch_size=100)]

    run(try_it())
