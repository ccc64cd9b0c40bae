"""Two writers that never pause, one of them five times slower than the other: both must make progress."""

from __future__ import annotations

import asyncio
import itertools

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JobNotFoundError
from tests.simulation.history import Call, Recorder, Violation
from tests.simulation.loop import SimulatedLoop, SimulatedProcess
from tests.simulation.workload import SeededEntropy, SimulatedClock, World

FAST, SLOW = 0.04, 0.2
"""Seconds that a request takes to the store, and the same for its answer."""

HEAD_START = 2.0
"""Seconds for which the slow writer is alone, so that it becomes known."""

SETTLING = 1.0
"""Seconds until the commits that the slow writer began alone are over, and counting starts."""

SECONDS = 120.0
"""Seconds of contention. Alone, the slow writer would write some 300 times."""

FEWEST = 3
"""Number of commits that the slow writer must have made by the end."""


async def contend(world: World, loop: SimulatedLoop) -> None:
    """Let a fast writer and a slow writer write without a pause.

    Raises:
        Violation: the slow writer starved.
    """
    since, until = loop.time() + HEAD_START + SETTLING, loop.time() + HEAD_START + SECONDS
    slow = SimulatedProcess("slow", loop).start(_write(world, loop, "slow", SLOW, since, until))
    await asyncio.sleep(HEAD_START)
    fast = SimulatedProcess("fast", loop).start(_write(world, loop, "fast", FAST, since, until))
    beside, written = await fast, await slow
    if written < FEWEST:
        raise Violation(0, f"a slow writer starved: {written} commits beside {beside} of a fast one")


async def _write(world: World, loop: SimulatedLoop, name: str, latency: float, since: float, until: float) -> int:
    """Enqueue and cancel one job after the other. Return the number of calls that ended between two times."""
    entropy = SeededEntropy(world.schedule.dice(name), name)
    storage = world.network.client(name, latency)
    queue = DirectQueue(storage, clock=SimulatedClock(loop, 0.0), entropy=entropy, deadline=SECONDS)
    queue.observe(Recorder(name, world.records))
    written = 0
    for number in itertools.count():
        job_id = f"{name} {number // 2}"
        call = Call(name, "enqueue", job_ids=(job_id,), limit=SECONDS)
        if number % 2:
            call.verb, call.expected = "cancel", (JobNotFoundError,)  # raised if the enqueue was not done in time
        await world.history.record(call, queue.cancel(job_id) if number % 2 else queue.enqueue("a", b"", job_id=job_id))
        written += since <= loop.time() <= until
        if loop.time() > until:
            break
    return written
