"""The end of a simulation: once the faults are over, every job must be claimable, and is finished."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress
from datetime import datetime
from typing import Any

from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import HistoryDamagedError, QueueMissingError
from jqueue.testing.virtual_time import VirtualClock
from tests.simulation.chain import COMPLETED, DEAD, Fields, Version, last_version, status_of
from tests.simulation.history import Call, Recorder
from tests.simulation.orders import held_for, lift_everything
from tests.simulation.workload import SeededEntropy, World

DRAIN_SECONDS = 45.0
"""Seconds after the last fault within which every job can be claimed: the longest claim timeout, 30 s, and a sweep."""

DRAIN_CLAIM_TIMEOUT = 30.0
"""Seconds that a claim without a timeout of its own lasts during the drain."""

BETWEEN_LOOKS = 5.0


async def drain(world: World) -> list[str]:
    """Claim and ack every job. Return the ids of jobs that could not be claimed in time."""
    loop = asyncio.get_running_loop()
    needs_objects = world.keeps_history or world.large or world.segmented
    storage = world.network.client("drain", 0.01, abilities=world.with_objects if needs_objects else 0)
    entropy = SeededEntropy(random.Random(0), "drain", world.deaths)
    left: list[str] = []

    def record(verb: str, work: Awaitable[Any], **details: Any) -> Awaitable[Any]:
        return world.history.record(Call("drain", verb, limit=DRAIN_SECONDS, **details), work)

    timeout = DRAIN_CLAIM_TIMEOUT
    clock = VirtualClock()
    async with BrokerQueue(storage, clock=clock, entropy=entropy, stale_timeout=timeout, holder="drain") as queue:
        queue.observe(Recorder("drain", world.records, world.sent))
        until, wait = loop.time() + DRAIN_SECONDS, 0.0
        if world.modern:
            await lift_everything(queue, record)
            slow = held_for(await queue.read_state(hot=True), last_version(world.network))
            until, wait = until + slow, BETWEEN_LOOKS if slow else 0.0
        while loop.time() < until:
            tag = 300 + world.tag() / 10_000
            work = queue.dequeue(batch_size=100, claim_timeout=tag, wait=wait)
            jobs = await record("dequeue", work)
            if isinstance(jobs, list) and jobs:
                claims = tuple(job.claim for job in jobs)
                await record("ack_many", queue.ack_many(jobs), claims=claims, operations=len(jobs))
                continue
            left = _left(last_version(world.network))
            if not left:
                break
            await asyncio.sleep(BETWEEN_LOOKS - wait)
        if world.keeps_history:
            world.read_events = []
            with suppress(HistoryDamagedError, QueueMissingError):  # the audit names what is missing
                async for event in queue.history():
                    world.read_events.append(event)
    return left


def _left(version: Version) -> list[str]:
    """Return the ids of jobs that are not done, except for jobs that a clock hours ahead has scheduled."""
    over = (DEAD, COMPLETED)
    left = [job_id for job_id, job in version.jobs.items() if status_of(job) not in over and not _is_ahead(job)]
    return [job_id for job_id in left if not _waits_for_the_dead(job_id, version)]


def _waits_for_the_dead(job_id: str, version: Version) -> bool:
    """True if a job waits for a dead one, for one that is scheduled for later, or for one that waits for such a job."""
    waits_for = version.jobs[job_id].get("waits_for", ())
    there = {each: version.jobs[each] for each in waits_for if each in version.jobs}
    ever = (
        status_of(job) == DEAD or _is_ahead(job) or _waits_for_the_dead(each, version) for each, job in there.items()
    )
    return any(ever)


def _is_ahead(job: Fields) -> bool:
    """True if a job is scheduled for later."""
    run_at = job.get("run_at")
    return run_at is not None and datetime.fromisoformat(run_at) > VirtualClock().now()
