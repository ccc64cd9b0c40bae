"""The actor that looks at the queue, thinks, and acts on what it has seen: it changes, cancels, purges and runs."""

from __future__ import annotations

import asyncio

from jqueue.domain.errors import (
    ChangedMeanwhileError,
    DuplicateJobError,
    InvalidJobError,
    JobNotFoundError,
    JobStateError,
    JQueueError,
)
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job, QueueState
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.operator import Cancel, CreateQueue, Purge, Reprioritise, Reschedule
from jqueue.domain.operations.rules import RunSchedule
from jqueue.domain.selection import QUEUED, Phase, Selection
from tests.simulation.workload import Actor

THOUGHT = (0.0, 0.0, 0.2, 1.0, 4.0)
"""Seconds between a look and the order that it leads to."""

PHASES = {JobStatus.QUEUED: QUEUED, JobStatus.IN_PROGRESS: {Phase.IN_PROGRESS}, JobStatus.DEAD: {Phase.DEAD}}
REFUSED: tuple[type[JQueueError], ...] = (ChangedMeanwhileError, JobNotFoundError, JobStateError)
LIVE = (JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.IN_PROGRESS)


class Overseer(Actor):
    """Gives orders for single jobs and cron entries, most of them under a guard, as the command line does."""

    async def step(self) -> None:
        """Give one order. The first is often to create the queue."""
        if self.moment.endswith(".1") and self.dice.random() < 0.2:
            await self.call("create", self.one(CreateQueue()), expected=(InvalidJobError,))
            return
        await self.pick(
            (20, self._cancel), (8, self._cancel_many), (44, self._change), (12, self._purge), (16, self._run)
        )()

    async def _look(self) -> QueueState | None:
        """Read the queue, and think."""
        state = await self.call("read_state", self.queue.read_state(hot=True))
        await asyncio.sleep(self.dice.choice(THOUGHT))
        return state if isinstance(state, QueueState) else None

    def _choose(self, state: QueueState | None, *statuses: JobStatus) -> Job | None:
        status = self.dice.choice(statuses)
        jobs = [] if state is None else [job for job in state.jobs if job.status is status]
        return self.dice.choice(jobs) if jobs else None

    def _guarded(self, job: Job, operation: Operation) -> Operation:
        """Draw a guard: the job must be as it was seen, or must fit the filters by which it was found."""
        kind = self.dice.random()
        if kind < 0.45:
            return Guarded(operation, job=job)
        if kind > 0.9 or job.status not in PHASES:
            return operation
        return Guarded(operation, job_id=job.id, selection=_choice(job))

    async def _order(self, verb: str, job: Job, operation: Operation) -> None:
        work = self.one(self._guarded(job, operation))
        await self.call(verb, work, job_ids=(job.id,), expected=REFUSED)

    async def _cancel(self) -> None:
        state = await self._look()
        job, running = self._choose(state, *LIVE), self.dice.random() < 0.8
        if job is not None:
            await self._order("cancel", job, Cancel(job.id, running))

    async def _cancel_many(self) -> None:
        """Cancel all jobs of a choice in one commit, each under a guard of its own."""
        state = await self._look()
        first = self._choose(state, JobStatus.QUEUED, JobStatus.IN_PROGRESS)
        if state is None or first is None:
            return
        selection = _choice(first)
        jobs = [job for job in state.jobs if selection.matches(job, self.client.clock.now())]
        operations = [Guarded(Cancel(job.id, running=True), job_id=job.id, selection=selection) for job in jobs]
        ids = tuple(job.id for job in jobs)
        await self.call("cancel_many", self.queue.apply_each(*operations), job_ids=ids, operations=len(ids))

    async def _purge(self) -> None:
        state = await self._look()
        job = self._choose(state, JobStatus.DEAD, JobStatus.DEAD, JobStatus.QUEUED)
        if job is not None:
            await self._order("purge_job", job, Purge(job_id=job.id))

    async def _change(self) -> None:
        state = await self._look()
        job = self._choose(state, JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.DEAD)
        if job is None:
            return
        if self.dice.random() < 0.6:
            await self._order("reprioritise", job, Reprioritise(job.id, self.dice.choice([-9, 0, 2])))
        else:
            await self._order("reschedule", job, Reschedule(job.id, delay=self.dice.choice([0, 1.0, 3.0])))

    async def _run(self) -> None:
        state = await self._look()
        if state is None or not state.schedules:
            return
        entry = self.dice.choice(list(state.schedules.values()))
        operation: Operation = RunSchedule(entry.name)
        if self.dice.random() < 0.5:
            operation = Guarded(operation, schedule=entry)
        expected = (ChangedMeanwhileError, DuplicateJobError, InvalidJobError)
        await self.call("run_now", self.one(operation), expected=expected)


def _choice(job: Job) -> Selection:
    """Return filters that a job fits."""
    return Selection(frozenset(PHASES[job.status]), frozenset({job.entrypoint}), error=job.error)
