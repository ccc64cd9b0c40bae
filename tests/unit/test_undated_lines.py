"""A line that was written by hand without `created_at` is dated by the last commit before it, for all readers."""

import asyncio
from datetime import UTC, datetime, timedelta

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob.codec import decode
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

LINE = b'"by hand": {"entrypoint": "t", "payload": "", "headers": {"note": "\\"created_at\\""}},\n'


def a_queue(storage, skew=0.0):
    clock = VirtualClock()
    clock.skew = timedelta(seconds=skew)
    return DirectQueue(storage, clock=clock)


async def edited(storage):
    """Add the line to a queue a minute after its last commit. Return the time of that commit."""
    await a_queue(storage).enqueue("t", b"")
    committed = VirtualClock().now()
    await asyncio.sleep(60)
    content, etag = await storage.read()
    await storage.write(content.replace(b'jobs": {\n', b'jobs": {\n' + LINE), etag)
    return committed


@in_virtual_time
async def test_readers_with_other_clocks_and_later_readers_agree_on_its_time():
    storage = InMemoryStorage(clock=VirtualClock())
    committed = await edited(storage)
    dates = [(await a_queue(storage, skew).find("by hand")).created_at for skew in (0, -5000, 5000)]
    assert [committed] * 3 == dates
    assert committed == (await a_queue(storage, 99).read_state()).jobs[0].created_at
    assert committed == decode((await storage.read())[0]).jobs[0].created_at


@in_virtual_time
async def test_the_next_commit_writes_its_time_so_that_it_stays():
    storage = InMemoryStorage(clock=VirtualClock())
    committed = await edited(storage)
    await a_queue(storage, 5000).pause("another")
    [line] = [each for each in (await storage.read())[0].splitlines() if each.startswith(b'"by hand"')]
    assert b'"created_at": "%b"' % committed.isoformat().encode() in line
    await asyncio.sleep(60)
    await a_queue(storage).resume("another")
    assert committed == (await a_queue(storage, -5000).find("by hand")).created_at


@in_virtual_time
async def test_in_an_object_without_a_commit_the_first_commit_keeps_the_time_of_its_reader():
    storage = InMemoryStorage(b'{"format": 2, "jobs": {\n' + LINE[:-2] + b"\n}}\n")
    await a_queue(storage).pause("another")
    first = (await a_queue(storage).find("by hand")).created_at
    assert abs((datetime.now(UTC) - first).total_seconds()) < 600
    assert first == (await a_queue(storage).find("by hand")).created_at
