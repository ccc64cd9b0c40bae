"""Under every fault of a real store's requests, each call is done once and returns the result that landed.

A proxy stands between the real client and the real server. It breaks one write in each possible way, mostly after
the server has committed.
"""

import asyncio
import itertools

import pytest

from jqueue import BrokerQueue, DirectQueue, JobStatus
from jqueue.operations import Ack, Enqueue
from tests.object_stores import behind_a_proxy, store_of
from tests.servers.fault_kinds import (
    BlackHole,
    DropAnswer,
    HangAnswer,
    Late,
    Refuse,
    ReplaceAnswer,
    ResetRequest,
    TruncateAnswer,
)

FAULTS = {
    "answer dropped": DropAnswer(),
    "answer reset": DropAnswer(reset=True),
    "answer hung": HangAnswer(),
    "answer cut in its head": TruncateAnswer(head=20),
    "answer cut and hung": TruncateAnswer(head=20, then="hang"),
    "done, and answered with 500": ReplaceAnswer(500),
    "done, and answered with 503": ReplaceAnswer(503),
    "refused": Refuse(),
    "swallowed": BlackHole(),
    "cut in its body": ResetRequest(body=0.5),
    "late": Late(0.4),
    "answered with 500": ReplaceAnswer(500, ask=False),
    "answered with 429": ReplaceAnswer(429, ask=False),
}
OFTEN = ["answer dropped", "done, and answered with 503", "cut in its body", "late"]
"""The faults of the default set: an answer lost twice over, a lost request, and a request that lands late."""

SERVERS = ["seaweedfs", "azurite", "gcs_server"]
WRITES = {"seaweedfs": "PUT", "azurite": "PUT", "gcs_server": "POST"}
CALL_TIMEOUT = 2.0


async def enqueue(queue, state):
    job = await queue.enqueue("work", b"new", job_id="new")
    return lambda after: after.find("new") == job


async def enqueue_many(queue, state):
    jobs = await queue.enqueue_many([Enqueue("work", b"", job_id=f"new {number}") for number in range(3)])
    return lambda after: [after.find(job.id) for job in jobs] == jobs and len(jobs) == 3


async def dequeue(queue, state):
    [job] = await queue.dequeue("work")
    return lambda after: after.find(job.id) == job and len(after.in_progress_jobs()) == 1


async def ack(queue, state):
    [job] = state
    await queue.ack(job)
    return lambda after: after.find(job.id) is None and after.finished[job.id] == job.attempt


async def nack(queue, state):
    [job] = state
    await queue.nack(job, error="try again")
    return lambda after: (after.find(job.id).status, after.find(job.id).error) == (JobStatus.QUEUED, "try again")


async def heartbeat(queue, state):
    [job] = state
    await queue.heartbeat(job)
    return lambda after: after.find(job.id).heartbeat_at > job.heartbeat_at


async def apply(queue, state):
    [job] = state
    await queue.apply(Ack(job), Enqueue("work", b"", job_id="child"))
    return lambda after: after.find(job.id) is None and after.find("child") is not None


WITHOUT_A_CLAIM = (enqueue, enqueue_many, dequeue)
WITH_A_CLAIM = (ack, nack, heartbeat, apply)


def every_combination():
    """Return each client with each fault; the two kinds of queues take turns. Most faults are `wide`."""
    kinds = itertools.cycle([DirectQueue, BrokerQueue])
    for server, (name, fault) in itertools.product(SERVERS, FAULTS.items()):
        marks = [] if server == "seaweedfs" and name in OFTEN else [pytest.mark.wide]
        yield pytest.param(server, next(kinds), fault, id=f"{server}-{name}", marks=marks)


@pytest.mark.parametrize(("server", "kind", "fault"), list(every_combination()))
async def test_each_call_is_done_once_and_returns_the_landed_result(request, server, kind, fault):
    store = store_of(request, server)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for operation in (*WITHOUT_A_CLAIM, *WITH_A_CLAIM):
            group.create_task(try_operation(operation, store, kind, fault))


async def try_operation(operation, honest, kind, fault):
    """Make one call on a queue of its own; its first write meets the fault."""
    async with behind_a_proxy(honest) as (broken, proxy):
        key = honest.new_key()
        async with (
            DirectQueue(honest.open(key)) as witness,
            kind(broken.open(key, timeout=CALL_TIMEOUT), call_timeout=CALL_TIMEOUT) as queue,
        ):
            await witness.enqueue("work", b"first")
            claimed = await queue.dequeue("work") if operation in WITH_A_CLAIM else None
            before = await queue.read_state()
            proxy.next(fault, method=WRITES[honest.name])
            holds = await operation(queue, claimed)
            after = await witness.read_state()
            assert proxy.fired[type(fault)] == 1, "the fault did not happen"
            assert holds(after), f"{operation.__name__} left something else than it returned"
            assert after.version == before.version + 1, f"{operation.__name__} took effect more than once"
