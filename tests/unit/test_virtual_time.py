"""Time that passes only when nothing else can."""

import asyncio
import time

import pytest

from jqueue.testing.virtual_time import VirtualClock, run


def test_sleeping_for_a_year_takes_no_time():
    async def main():
        clock = VirtualClock()
        before = clock.now()
        await asyncio.sleep(365 * 86400)
        return (clock.now() - before).days

    began = time.monotonic()
    assert 365 == run(main())
    assert time.monotonic() - began < 5


def test_the_timer_due_first_runs_first():
    async def main():
        order = []

        async def note(seconds):
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(note(3), note(1), note(2))
        return order

    assert [1, 2, 3] == run(main())


def test_work_in_threads_is_waited_for_before_the_clock_jumps():
    async def main():
        release = asyncio.get_running_loop().create_future()
        work = asyncio.to_thread(time.sleep, 0.05)
        both = [asyncio.ensure_future(work), release]
        done, _ = await asyncio.wait(both, timeout=3600, return_when=asyncio.FIRST_COMPLETED)
        return len(done)

    assert 1 == run(main())


def test_waiting_for_an_event_that_never_comes_is_an_error_and_no_hang():
    with pytest.raises(RuntimeError, match="cannot advance"):
        run(asyncio.Event().wait())
