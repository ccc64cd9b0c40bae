"""The callers of calls that are answered together: one callback of the event loop wakes them all."""

import asyncio

from jqueue.core.claims import ClaimRegistry
from jqueue.core.requests import Callers, Request
from jqueue.domain.operations import Fence
from tests.virtual_world import in_virtual_time


async def unresolved(request, timeout):
    return []


@in_virtual_time
async def test_callers_that_are_answered_in_one_turn_are_woken_in_that_order_by_one_callback(monkeypatch):
    loop, scheduled, woken = asyncio.get_running_loop(), [], []
    callers = Callers(loop, ClaimRegistry(), hand_back=lambda claims: None, resolve=unresolved)
    calls = [Request([Fence()], callers) for _ in range(3)]

    async def await_answer(call):
        woken.append(await call)

    tasks = [asyncio.create_task(await_answer(call)) for call in calls]
    await asyncio.sleep(0)
    call_soon = loop.call_soon

    def counted(callback, *arguments, **options):
        scheduled.append(callback)
        return call_soon(callback, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(loop, "call_soon", counted)
        for number in (2, 0, 1):
            calls[number].settle([number])
    assert 1 == len(scheduled)
    await asyncio.gather(*tasks)
    assert [[2], [0], [1]] == woken
