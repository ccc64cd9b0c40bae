"""Work that a thread does for an event loop, and the errors of such work."""

import asyncio

import pytest

from jqueue.runtime.threads import in_a_thread


async def test_a_thread_passes_on_the_result_or_the_error_of_its_work():
    assert 3 == await in_a_thread(sum, [1, 2])
    with pytest.raises(ZeroDivisionError):
        await in_a_thread(divmod, 1, 0)


async def test_work_that_raises_stop_iteration_does_not_hang_its_caller():
    async with asyncio.timeout(60):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_a_thread(next, iter(()))
