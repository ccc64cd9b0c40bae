"""What a thread does for an event loop, and what becomes of its errors."""

import asyncio

import pytest

from jqueue.runtime.threads import in_a_thread


async def test_a_thread_gives_back_what_its_work_returns_or_raises():
    assert 3 == await in_a_thread(sum, [1, 2])
    with pytest.raises(ZeroDivisionError):
        await in_a_thread(divmod, 1, 0)


async def test_work_that_raises_what_no_future_carries_keeps_nobody_waiting():
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_a_thread(next, iter(()))
