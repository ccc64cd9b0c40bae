"""A waiting dequeue reads the store in time, although other jobs come due meanwhile."""

import asyncio

import pytest

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

PATIENCE = 3.0
"""Seconds within which a job of another queue object is found; the poll interval is one second."""


def queues():
    storage = InMemoryStorage(clock=VirtualClock())
    return BrokerQueue(storage, clock=VirtualClock()), BrokerQueue(storage, clock=VirtualClock())


@in_virtual_time
async def test_due_jobs_of_another_entrypoint_do_not_delay_the_poll():
    one, other = queues()
    async with one, other:
        await other.enqueue_many(Enqueue("b", b"", delay=number / 2) for number in range(1, 240))
        waiting = asyncio.create_task(one.dequeue("a", wait=300))
        await asyncio.sleep(10)
        await other.enqueue("a", b"")
        await asyncio.wait_for(waiting, PATIENCE)


@pytest.mark.parametrize("held", ["paused", "running"])
@in_virtual_time
async def test_due_jobs_that_are_held_back_do_not_delay_the_poll(held):
    one, other = queues()
    async with one, other:
        await other.enqueue("a", b"")
        if held == "paused":
            await other.pause("a")
        else:
            await other.limit("a", running=1)
            [running] = await other.dequeue("a")
        await other.enqueue_many(Enqueue("a", b"", delay=number / 2) for number in range(1, 240))
        waiting = asyncio.create_task(one.dequeue("a", wait=300))
        await asyncio.sleep(10)
        assert not waiting.done()
        await (other.resume("a") if held == "paused" else other.ack(running))
        assert 1 == len(await asyncio.wait_for(waiting, PATIENCE))
