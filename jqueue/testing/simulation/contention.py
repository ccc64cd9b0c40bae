"""Writers that never pause, one of them five times slower than the other: each must come through."""

from __future__ import annotations

import asyncio
import itertools

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JobNotFoundError
from jqueue.testing.simulation.calls import Violation
from jqueue.testing.simulation.history import Call
from jqueue.testing.simulation.loop import SimulatedLoop, SimulatedProcess
from jqueue.testing.simulation.workload import SeededEntropy, SimulatedClock, World

FAST, SLOW = 0.04, 0.2
"""Seconds that a request takes to the store, and its answer back."""

HEAD_START = 2.0
"""Seconds for which the slow one is alone, and becomes known."""

SETTLING = 1.0
"""Seconds after which what the slow one began alone is over, and its commits are counted."""

SECONDS = 120.0
"""How long they contend: the slow one, alone, would write some 300 times."""

FEWEST = 3
"""How often the slow one must have come through by then."""


async def contend(world: World, loop: SimulatedLoop) -> None:
    """Have a fast writer and a slow one write without a pause.

    Raises:
        Violation: the slow one starved.
    """
    since, until = loop.time() + HEAD_START + SETTLING, loop.time() + HEAD_START + SECONDS
    slow = SimulatedProcess("slow", loop).start(_write(world, loop, "slow", SLOW, since, until))
    await asyncio.sleep(HEAD_START)
    fast = SimulatedProcess("fast", loop).start(_write(world, loop, "fast", FAST, since, until))
    beside, written = await fast, await slow
    if written < FEWEST:
        raise Violation(0, f"a slow writer starved: {written} commits beside {beside} of a fast one")


async def _write(world: World, loop: SimulatedLoop, name: str, latency: float, since: float, until: float) -> int:
    """Enqueue and cancel one job after the other; returns how often that was done between two times."""
    entropy = SeededEntropy(world.schedule.dice(name), name)
    storage = world.network.client(name, latency)
    queue = DirectQueue(storage, clock=SimulatedClock(loop, 0.0), entropy=entropy, deadline=SECONDS)
    written = 0
    for number in itertools.count():
        job_id = f"{name} {number // 2}"
        call = Call(name, "enqueue", job_ids=(job_id,), limit=SECONDS)
        if number % 2:
            call.verb, call.expected = "cancel", (JobNotFoundError,)  # if the one before was not done in time
        await world.history.record(call, queue.cancel(job_id) if number % 2 else queue.enqueue("a", b"", job_id=job_id))
        written += since <= loop.time() <= until
        if loop.time() > until:
            break
    return written
