"""Deadlines of many calls share one timer of the event loop, are kept, and leave nothing in memory."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.calls.deadlines import FLOOR, Alarms
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import DeadlineExceededError, UnknownOutcomeError
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now

pytestmark = pytest.mark.wide

both = pytest.mark.parametrize("make", [DirectQueue, BrokerQueue])


class SlowStorage(InMemoryStorage):
    """A store in memory that answers slowly or never."""

    latency = 0.02

    async def read(self):
        await asyncio.sleep(self.latency)
        return await super().read()

    async def write(self, content, if_match=None):
        await asyncio.sleep(self.latency)
        return await super().write(content, if_match)


class Timers:
    """Lists of all timers made on the running loop, and of the timers for deadlines."""

    def __init__(self):
        loop: Any = asyncio.get_running_loop()
        self.made = 0
        self.alarms: list[float] = []
        call_at, call_later = loop.call_at, loop.call_later

        def counted_at(when, callback, *args, **options):
            self.made += 1
            if getattr(callback, "__func__", None) is Alarms._on_timer:
                self.alarms.append(when)
            return call_at(when, callback, *args, **options)

        def counted_later(delay, callback, *args, **options):
            self.made += 1
            return call_later(delay, callback, *args, **options)

        loop.call_at, loop.call_later = counted_at, counted_later


@in_virtual_time
async def test_a_thousand_calls_in_flight_take_one_timer():
    async with BrokerQueue(SlowStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        await queue.enqueue("work", b"payload")
        await asyncio.sleep(1)
        timers, began = Timers(), now()
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(1000)))
        assert [began + 30] == timers.alarms
        assert timers.made <= 4  # one for the deadlines, one for the call to the store, one for its latency


@in_virtual_time
async def test_a_thousand_calls_of_a_direct_queue_take_one_timer_for_their_deadlines():
    async with DirectQueue(SlowStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        timers = Timers()
        await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(1000)))
        assert 1 == len(timers.alarms)


@both
@in_virtual_time
async def test_consecutive_calls_take_few_timers(make):
    """A dequeue waits meanwhile, so that the writer does not end between the calls."""
    async with make(SlowStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        waiting = asyncio.create_task(queue.dequeue("nobody", wait=3600))
        await asyncio.sleep(1)
        timers = Timers()
        for _ in range(3000):  # a minute, which is twice the deadline
            await queue.enqueue("work", b"payload", unique_key="the same")
        assert len(timers.alarms) <= 3
        waiting.cancel()


@both
@in_virtual_time
async def test_each_deadline_holds_beside_those_of_other_calls(make):
    storage = SlowStorage(clock=VirtualClock())
    async with make(storage, clock=VirtualClock(), call_timeout=3600) as queue:
        await queue.enqueue("work", b"payload")
        storage.latency = 1000
        began, timers = now(), Timers()
        ended: dict[float | None, list[float]] = {}

        async def call(seconds):
            with pytest.raises((DeadlineExceededError, UnknownOutcomeError)):
                await queue.enqueue("work", b"payload", deadline=seconds)
            ended.setdefault(seconds, []).append(round(now() - began, 3))

        deadlines = [5, None, 1, 60, 0.5, 5, None, 31, 29, 60]
        await asyncio.gather(*(call(seconds) for seconds in deadlines * 50))
        assert ended == {seconds: [seconds or 30] * 50 * deadlines.count(seconds) for seconds in deadlines}
        assert len(timers.alarms) <= 2 * len(set(deadlines))
        storage.latency = 0


@both
@in_virtual_time
async def test_a_default_deadline_that_began_later_ends_later(make):
    storage = SlowStorage(clock=VirtualClock())
    async with make(storage, clock=VirtualClock(), call_timeout=3600) as queue:
        await queue.enqueue("work", b"payload")
        storage.latency = 1000
        ended = []

        async def call(after):
            await asyncio.sleep(after)
            began = now()
            with pytest.raises((DeadlineExceededError, UnknownOutcomeError)):
                await queue.enqueue("work", b"payload")
            ended.append((after, round(now() - began, 3)))

        await asyncio.gather(*(call(after) for after in (0, 1, 2.5, 29.9, 31, 70)))
        assert [(after, 30) for after in (0, 1, 2.5, 29.9, 31, 70)] == ended
        storage.latency = 0


@both
@in_virtual_time
async def test_alarms_forget_calls_that_are_done(make):
    async with make(SlowStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        waiting = asyncio.create_task(queue.dequeue("nobody", wait=36_000))
        for number in range(2000):
            await queue.dequeue("work", deadline=3600 + number, wait=0)
            assert len(queue._writer.calls.alarms._entries) <= FLOOR + 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert [] == queue._writer.calls.alarms._entries


@in_virtual_time
async def test_many_calls_that_wait_are_all_kept_and_then_forgotten():
    storage = SlowStorage(clock=VirtualClock())
    async with BrokerQueue(storage, clock=VirtualClock(), poll_interval=60) as queue:
        waiting = [asyncio.create_task(queue.dequeue("nobody", wait=100 + number)) for number in range(300)]
        await asyncio.sleep(1)
        alarms = queue._writer.calls.alarms
        assert 2 * 300 == len(alarms._entries)  # the end of the wait, and the deadline behind it
        for task in waiting[30:]:
            task.cancel()
        await asyncio.sleep(1)
        timers = Timers()
        more = [asyncio.create_task(queue.dequeue("nobody", wait=3600)) for _ in range(400)]
        await asyncio.sleep(1)
        assert len(alarms._entries) <= 2 * (30 + 400)
        assert len(timers.alarms) <= 2
        assert [[]] * 30 == await asyncio.gather(*waiting[:30])
        for task in more:
            task.cancel()


@both
@in_virtual_time
async def test_a_finished_call_is_not_kept_in_memory(make):
    async with make(SlowStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        waiting = asyncio.create_task(queue.dequeue("nobody", wait=3600))
        await asyncio.sleep(1)
        request = queue._writer.enter(queue._dequeues("work", {}), 30)
        await request
        known = weakref.ref(request)
        await queue.enqueue("work", b"payload")
        del request
        gc.collect()
        assert known() is None
        waiting.cancel()
