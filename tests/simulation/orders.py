"""The actors of a queue with limits, cron entries, results and a history: one gives orders, one waits for results."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

from jqueue.domain.errors import (
    InvalidJobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
    QueueMissingError,
    ResultNotKeptError,
    ResultTimeoutError,
    WorkerNotFoundError,
)
from jqueue.domain.header import WorkerRecord
from jqueue.domain.operations.rules import PauseSchedule, Reset, SetBy, SetLimits, SetSchedule
from tests.simulation.chain import IN_PROGRESS, NOTHING, QUEUED, Version, status_of
from tests.simulation.history import NEVER, Violation
from tests.simulation.workload import CRONS, DEADLINE, Actor, World

NAMES = ("cron 1", "cron 2")
ORIGINS: tuple[tuple[SetBy, ...], ...] = (("",), ("program",), ("operator", "program"))
"""Origins of values that are set one after the other. A program that starts is the last."""
WORKERS = ("worker 1", "worker 2")
GONE = (JobNotFoundError, JobStateError)
HISTORY_KEPT = 365 * 86400.0
"""Seconds for which events are kept: no object is removed for its age."""


class Ruler(Actor):
    """Sets limits, cron entries and settings, and gives orders for single jobs."""

    async def step(self) -> None:
        """Give one order."""
        await self.pick(
            (14, self._limit_running),
            (10, self._limit_rate),
            (4, self._limit),
            (10, self._pause),
            (8, self._configure),
            (16, self._schedule),
            (5, self._unschedule),
            (5, self._pause_entry),
            (5, self._reset),
            (2, self._list),
            (14, self._stop),
            (8, self._reschedule),
            (9, self._reprioritise),
        )()

    async def _limit_running(self) -> None:
        limits: dict[str, Any] = {"running": self.dice.choice([1, 1, 2, 3])}
        if self.world.fair and self.dice.random() < 0.7:
            limits |= {
                "running": None,
                "key_rate": self.dice.choice([1, 2, 4]),
                "key_per": self.dice.choice([2.0, 6.0]),
            }
        await self._limit(**limits)

    async def _limit_rate(self) -> None:
        running = self.dice.choice([None, None, 2])
        await self._limit(running=running, rate=self.dice.choice([1, 2, 4]), per=self.dice.choice([1.0, 2.0, 6.0]))

    async def _limit(self, **limits: Any) -> None:
        """Set limits, or lift them all, as an operator or as a program that starts."""
        entrypoint = self.entrypoint()
        for by in self.dice.choice(ORIGINS):
            await self.call("limit", self.one(SetLimits(entrypoint, **limits, by=by)))
            limits = {"running": self.dice.choice([None, 4])}

    async def _reset(self) -> None:
        """Give up what operators have set."""
        name = self.dice.choice(["", *NAMES])
        work = self.one(Reset(self.dice.choice([self.entrypoint(), ""]), name))
        await self.call("reset", work, expected=(InvalidJobError,))

    async def _pause(self) -> None:
        """Pause, and after a while usually resume, whatever the outcome of the pause."""
        entrypoint = self.entrypoint()
        await self.call("pause", self.queue.pause(entrypoint))
        await asyncio.sleep(self.dice.choice([0.0, 0.5, 4.0]))
        if self.dice.random() < 0.9:
            await self.call("resume", self.queue.resume(entrypoint))

    async def _configure(self) -> None:
        await self.call("configure", self.queue.configure(dead_retention=self.dice.choice([None, 2.0, 30.0])))

    async def _schedule(self) -> None:
        dice, name = self.dice, self.dice.choice(NAMES)
        details: dict[str, Any] = {"priority": dice.choice([0, 0, -1]), "max_attempts": dice.choice([None, 1, 3])}
        if dice.random() < 0.2:
            details["unique_key"] = "key 3"
        if dice.random() < 0.3:
            details["keep_result"] = 20.0
        if dice.random() < 0.3:
            details["concurrency_key"] = "ceiling 1"
        if self.world.fair:
            details["fair_key"] = "tenant 2"
        for by in dice.choice(ORIGINS):
            cron, entrypoint = dice.choice([*CRONS]), self.entrypoint()
            await self.call("schedule", self.one(SetSchedule(name, cron, entrypoint, name.encode(), **details, by=by)))

    async def _pause_entry(self) -> None:
        """Pause a cron entry, and after a while usually resume it."""
        name = self.dice.choice(NAMES)
        await self.call("pause_entry", self.one(PauseSchedule(name)), expected=(InvalidJobError,))
        await asyncio.sleep(self.dice.choice([0.0, 0.5, 4.0]))
        if self.dice.random() < 0.9:
            await self.call("resume_entry", self.one(PauseSchedule(name, paused=False)), expected=(InvalidJobError,))

    async def _unschedule(self) -> None:
        await self.call("unschedule", self.queue.unschedule(self.dice.choice(NAMES)))

    async def _list(self) -> None:
        await self.call("schedules", self.queue.schedules(), expected=(QueueMissingError,))

    async def _stop(self) -> None:
        """Stop a job in progress, most likely one of those claimed last."""
        if self.world.claimed:
            job_id, running = self.dice.choice(self.world.claimed[-6:]), self.dice.random() < 0.9
            work = self.queue.cancel(job_id, running=running)
            await self.call("cancel", work, job_ids=(job_id,), expected=GONE)

    async def _reschedule(self) -> None:
        if self.world.made:
            job_id = self.dice.choice(self.world.made[-8:])
            given: dict[str, Any] = {"delay": self.dice.choice([0, 3.0])}
            if self.dice.random() < 0.2:
                given = {"run_at": self.client.clock.now() - timedelta(seconds=1)}
            work = self.queue.reschedule(job_id, **given)
            await self.call("reschedule", work, job_ids=(job_id,), expected=GONE)

    async def _reprioritise(self) -> None:
        if self.world.made:
            job_id, priority = self.dice.choice(self.world.made[-8:]), self.dice.choice([-7, 3])
            work = self.queue.reprioritise(job_id, priority)
            await self.call("reprioritise", work, job_ids=(job_id,), expected=GONE)


class Attendee(Actor):
    """A worker that shows itself in the queue until it is told to stop, and tells others, or itself, to stop."""

    async def act(self) -> None:
        """Show the worker while it takes its steps."""
        run, name = f"run of {self.name}", self.dice.choice(WORKERS)
        self.world.attendees[run] = self.client.process.name
        told = self.world.told

        def stop() -> None:
            told.setdefault(run, asyncio.get_running_loop().time())

        self.queue.attend(run, lambda at: WorkerRecord(name=name, host="here", pid=7, at=at), stop)
        try:
            await super().act()
        finally:
            self.queue.leave(run)

    async def step(self) -> None:
        """Stop a worker by one of its names, now and then; most often wait."""
        if f"run of {self.name}" not in self.world.told and self.dice.random() < 0.3:
            runs = [*self.world.attendees, "nobody"]
            worker = self.dice.choice([*WORKERS, f"{WORKERS[0]}@here:7", *runs[-3:]])
            await self.call("stop_worker", self.queue.stop_worker(worker), expected=(WorkerNotFoundError,))


def check_orders_to_stop(versions: Sequence[Version], world: World) -> int:
    """Check that workers stop because of an order, and because of each. Return the number of those that stopped.

    Raises:
        Violation: one was told to stop without an order in the queue; or made two commits after one, and was not told.
    """
    heard: Counter[str] = Counter()
    ordered: dict[str, float] = {}
    for before, version in pairwise([NOTHING, *versions]):
        for run, seen in version.workers.items():
            if seen.get("stopping"):
                ordered.setdefault(run, version.at)
                is_shown = before.workers.get(run, {}).get("at") != seen["at"]  # otherwise it may have left
                heard[run] += is_shown and world.attendees.get(run) == version.by
                if heard[run] > 1 and run not in world.told:
                    raise Violation(0, f"{run} was not told to stop", version=version)
    for run, at in world.told.items():
        if ordered.get(run, NEVER) > at:
            raise Violation(20, f"{run} was told to stop, and nobody had ordered it")
    return len(world.told)


class Waiter(Actor):
    """Waits for results."""

    async def step(self) -> None:
        """Wait for one result."""
        made = self.world.kept if self.dice.random() < 0.9 else self.world.made
        if not made:
            return
        job_id, timeout = self.dice.choice(made[-10:]), self.dice.choice([0.0, 2.0, 9.0])
        work = self.queue.result(job_id, timeout=timeout)
        expected: tuple[type[JQueueError], ...] = (
            *(JobFailedError, JobNotFoundError, ResultNotKeptError, ResultTimeoutError),
        )
        patience = self.dice.uniform(0, 4) if self.dice.random() < 0.1 else None
        call = self.call(
            "result", work, job_ids=(job_id,), expected=expected, limit=DEADLINE + timeout, given={"timeout": timeout}
        )
        try:
            async with asyncio.timeout(patience):
                await call
        except TimeoutError:
            return


class Historian(Actor):
    """Switches the history on, and sometimes off and on again."""

    async def step(self) -> None:
        """Set the history."""
        kept = None if self.dice.random() < 0.1 else HISTORY_KEPT
        if kept is not None and not self.queue.capabilities.history:
            return
        await self.call("configure", self.queue.configure(history=kept))


async def lift_everything(queue: Any, record: Any) -> None:
    """Remove every cron entry, and resume every paused entrypoint: otherwise they would last forever.

    Args:
        queue: the queue.
        record: records a call and awaits it.
    """
    state = await queue.read_state(hot=True)
    for name in state.schedules:
        await record("unschedule", queue.unschedule(name))
    for entrypoint, rules in state.entrypoints.items():
        if rules.paused:
            await record("resume", queue.resume(entrypoint), entrypoint=entrypoint)


def held_for(state: Any, version: Version) -> float:
    """Return the seconds that claiming every job may take within the rate limits.

    Args:
        state: the queue.
        version: the same, with the jobs in segments.
    """
    waiting = [job["entrypoint"] for job in version.jobs.values() if status_of(job) in (QUEUED, IN_PROGRESS)]
    slow = sum(
        (waiting.count(entrypoint) // rate + 2) * per * 1.1
        for entrypoint, rules in state.entrypoints.items()
        for rate, per in ((rules.rate, rules.per), (rules.key_rate, rules.key_per))
        if rate is not None and per is not None
    )
    return float(slow)
