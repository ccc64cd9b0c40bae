"""The actors that enqueue jobs, work on jobs, and administer the queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.draft import Draft
from jqueue.domain.errors import (
    ClaimLostError,
    DuplicateJobError,
    GroupEndedError,
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    JobStateError,
    JobsUnreadableError,
    JQueueError,
    QueueMissingError,
    UnknownOutcomeError,
)
from jqueue.domain.job import Claim, JobStatus, Progress
from jqueue.domain.job_options import OnConflict
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack, Heartbeat, Nack, RecordStep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.queue import Wait
from tests.simulation.links import SimulatedSeat
from tests.simulation.plain_values import BLOB_BYTES
from tests.simulation.workload import DEADLINE, DRAWN, OBJECT_BYTES, OVERSIZED, STAGED, Actor

LARGER = 50
"""Number of times that a payload is repeated to make it a large one."""

CLAIM_TIMEOUTS = (6.0, 30.0)
LOST = (ClaimLostError, JobNotFoundError)


class Mistake(Operation, frozen=True):
    """An operation with a bug: it raises an unexpected error."""

    def change(self, draft: Draft, now: Any) -> None:
        """Raise an error that is not one of the queue's own."""
        raise ZeroDivisionError


class Producer(Actor):
    """Enqueues and cancels jobs, and makes mistakes."""

    async def step(self) -> None:
        """Take one step."""
        await self.pick(
            (30, self._enqueue),
            (32, self._enqueue_many),
            (8, self._enqueue_again),
            (8, self._cancel),
            (12, self._enqueue_with_key),
            (5, self._spoil),
            (6, self._fail_to_apply),
            (5, self._look),
        )()

    def _new(self, suffix: str = "") -> str:
        job_id = f"{self.moment}{suffix}"
        self.world.made.append(job_id)
        self.world.parents.append(job_id)
        return job_id

    def _details(self) -> dict[str, Any]:
        """Draw the options of a job besides its entrypoint."""
        dice = self.dice
        details: dict[str, Any] = {"max_attempts": dice.choice([None, 1, 3, 50])}
        details["priority"] = dice.choice([0, 0, 0, -1, 5])
        if dice.random() < 0.2:
            details["delay"] = 5.0
        if self.world.modern and dice.random() < self.world.keyed:
            details["concurrency_key"] = dice.choice(["ceiling 1", "ceiling 2"])
            details["concurrency_limit"] = dice.choice([None, 1, 2, 4])
        if self.world.fair and dice.random() < self.world.fair:
            details["fair_key"] = dice.choice(["tenant 1", "tenant 1", "tenant 1", "tenant 2", "tenant 3"])
            details["fair_weight"] = {1: 0.5, 3: 0.3}.get(details["max_attempts"])
        if self.world.modern and dice.random() < 0.4:
            details["keep_result"] = dice.choice([1.0, 20.0, 300.0])
        if self.world.modern and self.world.tag() % 4 == 0:
            details["encoding"] = "named"
        return details

    async def _enqueue(self) -> None:
        job_id, details = self._new(), self._details()
        if self.dice.random() < 0.05:
            details["expires_at"] = self.client.clock.now() + timedelta(seconds=self.dice.choice([20, 60]))
            self.world.parents.remove(job_id)  # its row may stay after its time, until it is loaded
        payload = _payload(job_id) * (LARGER if self.world.large and self.dice.random() < 0.7 else 1)
        work = self.queue.enqueue(self.entrypoint(), payload, job_id=job_id, **details)
        if "keep_result" in details:
            self.world.kept.append(job_id)
        error = await self.call("enqueue", work, job_ids=(job_id,), given=details)
        if isinstance(error, UnknownOutcomeError):
            if self.dice.random() < 0.5:
                await self.call("resolve", error.resolve(timeout=DEADLINE), job_ids=(job_id,))
            else:  # a careful program repeats the call: the id makes that safe
                again = self.queue.enqueue(self.entrypoint(), b"", job_id=job_id)
                await self.call("enqueue", again, job_ids=(job_id,))

    async def _enqueue_many(self) -> None:
        ids = tuple(self._new(f"-{number}") for number in range(self.dice.randint(2, 12)))
        jobs = [Enqueue(self.entrypoint(), b"", job_id=job_id, **self._details()) for job_id in ids]
        self.world.kept += [job.job_id for job in jobs if job.keep_result and job.job_id]
        await self.call("enqueue_many", self.queue.enqueue_many(jobs), job_ids=ids, operations=len(ids))

    async def _enqueue_again(self) -> None:
        if self.world.made:
            job_id = self.dice.choice(self.world.made)
            await self.call("enqueue", self.queue.enqueue("a", b"", job_id=job_id), job_ids=(job_id,))

    async def _enqueue_with_key(self) -> None:
        job_id, key = self._new(), self.dice.choice(["key 1", "key 2"])
        conflict: OnConflict = self.pick((1, "return"), (1, "raise"), (1, "replace"))
        details: dict[str, Any] = {"unique_key": key, "unique_for": self.dice.choice([None, None, 20.0])}
        details["max_attempts"] = self.dice.choice([None, 1])
        if self.world.modern and self.dice.random() < 0.5:
            details["keep_result"] = self.dice.choice([1.0, 20.0])
            self.world.kept.append(job_id)
        work = self.queue.enqueue(self.entrypoint(), b"", job_id=job_id, on_conflict=conflict, **details)
        await self.call("enqueue", work, job_ids=(job_id,), given=details, expected=(DuplicateJobError,))

    async def _cancel(self) -> None:
        if self.world.made:
            made = self.world.made
            if self.world.claimed and self.dice.random() < 0.3:
                made = self.world.claimed
            job_id = self.dice.choice(made)
            expected = (JobNotFoundError, JobStateError)
            job = await self.call("cancel", self.queue.cancel(job_id), job_ids=(job_id,), expected=expected)
            again = isinstance(job, Job) and self.dice.random() < 0.5
            if again and not job_id.startswith(("cron:", STAGED, DRAWN)):
                await self.call("enqueue", self.queue.enqueue("a", b"", job_id=job_id), job_ids=(job_id,))

    async def _spoil(self) -> None:
        """Make a call with a wrong argument. It is refused at once, and no other call is affected."""
        job_id = self._new()
        wrong: dict[str, Any] = self.dice.choice(
            [{"payload": "text"}, {"headers": {"a": "\ud800"}}, {"priority": 2**40}]
        )
        arguments: dict[str, Any] = {"payload": b"", "job_id": job_id, **wrong}
        work = self.queue.enqueue("a", **arguments)
        await self.call("enqueue", work, job_ids=(job_id,), expected=(InvalidJobError,), certain=True)

    async def _fail_to_apply(self) -> None:
        """Apply two operations, one of them refused: neither is done, and the commit's other calls are not affected."""
        job_id = self._new()
        operations: list[Operation] = [Enqueue("a", b"", job_id=job_id)]
        refused: Operation = self.dice.choice([Ack(Claim("nobody", 1)), Mistake()])
        operations.insert(self.dice.randint(0, 1), refused)
        work = self.queue.apply(*operations)
        await self.call("apply", work, job_ids=(job_id,), expected=(JQueueError,), certain=True, operations=2)

    async def _look(self) -> None:
        if self.world.segmented and self.dice.random() < 0.4:
            await self.call(
                "iterate", self._all_jobs(), expected=(JobsUnreadableError, QueueMissingError), limit=10 * DEADLINE
            )
        elif self.world.segmented and self.dice.random() < 0.4:
            await self.call("stats", self.queue.stats(), expected=(QueueMissingError,))
        else:
            await self.call("read_state", self.queue.read_state(hot=True))

    async def _all_jobs(self) -> list[Job]:
        return [job async for job in self.queue.iterate_jobs()]


class Consumer(Actor):
    """Claims jobs, works on them, and ends each claim in one of the possible ways."""

    async def step(self) -> None:
        """Claim jobs and work on them."""
        dice = self.dice
        entrypoint = dice.choice([*"ab", None])
        wait = dice.choice([None, None, None, None, 3.0, 12.0])
        batch = dice.choice([1, 4, 12])
        tag = dice.choice(CLAIM_TIMEOUTS) + self.world.tag() / 10_000
        patience = dice.uniform(0, 6) if dice.random() < 0.2 else None
        names = [*"ab"] if self.world.modern and entrypoint is None and dice.random() < 0.5 else entrypoint
        given = None if wait is None else Wait(wait)
        work = self.queue.dequeue(names, batch_size=batch, wait=given, claim_timeout=tag)
        if given is not None and patience is not None and batch > 1:  # the wait is ended, not the call
            asyncio.get_running_loop().call_later(patience, given.end)
            wait, patience = min(given, patience), None
        limit = DEADLINE + (wait or 0.0)
        call = self.call("dequeue", work, entrypoint=entrypoint, limit=limit, wait=wait or 0.0)
        try:
            async with asyncio.timeout(patience):
                jobs = await call
        except TimeoutError:
            return
        if not isinstance(jobs, list):
            return
        if self.world.modern:
            self.world.claimed += [job.id for job in jobs]
        self._check_payloads(jobs)
        if jobs and dice.random() > 0.06:  # otherwise they are forgotten, and go stale
            try:
                await self._work(jobs)
            except JobCancelledError:
                await self._nack_many(jobs)
                return
            except ClaimLostError:
                return
            if dice.random() < 0.2:
                await self._beat_and_look(jobs)
            if self.world.stepped:
                await self._take_steps(jobs)
            await self._finish(jobs)

    def _check_payloads(self, jobs: list[Job]) -> None:
        """Check that large payloads were loaded."""
        for job in jobs:
            if job.payload_object is not None and job.payload != _payload(job.id) * LARGER:
                self.world.errors.append(AssertionError(f"job {job.id} was handed out without its payload"))

    async def _work(self, jobs: list[Job]) -> None:
        seconds = self.dice.choice([0.0, 0.0, 0.1, 0.5, 1.5, 3.0]) * (jobs[0].claim_timeout or 0.0)
        if seconds > 1 and self.dice.random() < 0.7:
            claims, timeout = tuple(job.claim for job in jobs), jobs[0].claim_timeout
            details: dict[str, Any] = {"claims": claims, "timeout": timeout, "limit": seconds, "expected": LOST}
            error = await self.call("work", self._work_with_heartbeats(jobs, seconds), **details)
            if error is not None:
                raise error
        else:
            await asyncio.sleep(seconds)

    async def _work_with_heartbeats(self, jobs: list[Job], seconds: float) -> None:
        async with HeartbeatManager(RecordedHeartbeats(self), jobs):
            await asyncio.sleep(seconds)

    async def _beat_and_look(self, jobs: list[Job]) -> None:
        """Send heartbeats and a dequeue at once, as a worker does: both may go into one commit."""
        claims, tag = tuple(job.claim for job in jobs), CLAIM_TIMEOUTS[0] + self.world.tag() / 10_000
        beat = self.call("heartbeat_many", self.queue.heartbeat_many(jobs), claims=claims, operations=len(claims))
        look = self.queue.dequeue("nobody's", claim_timeout=tag)
        await asyncio.gather(beat, self.call("dequeue", look, entrypoint="nobody's"))

    async def _take_steps(self, jobs: list[Job]) -> None:
        """Record one or two more steps of each job. One whose outcome is unknown is recorded again, as by a worker."""
        dice = self.world.schedule.dice(f"steps of {self.moment}")
        for number in range(dice.choice([0, 1, 1, 2])):
            steps: list[Operation] = [
                RecordStep(job, "charge", len(job.steps) + number + dice.choice([1, 1, 1, 0]) or 1, self._step_result())
                for job in jobs
            ]
            if dice.random() < 0.5:
                reports = tuple(Progress(number, dice.choice([None, 9]), "x" * number) for _ in jobs)
                steps.append(Heartbeat(tuple(jobs), tolerant=True, progress=reports))
            details: dict[str, Any] = {"claims": tuple(job.claim for job in jobs), "operations": len(jobs)}
            for _ in range(3):
                answers = await self.call("apply_each", self.queue.apply_each(*steps), **details)
                if not isinstance(answers, UnknownOutcomeError):
                    break

    def _step_result(self) -> Any:
        tag = self.world.tag()
        return {"by": self.moment, "tag": tag, "all": "x" * 2 * OBJECT_BYTES * (self.world.large and tag % 2)}

    async def _finish(self, jobs: list[Job]) -> None:
        if self.world.modern and self.dice.random() < 0.4:
            await self._end_each(jobs)
            return
        if len(jobs) > 1 and self.dice.random() < 0.85:
            many = self.dice.choice([self._ack_many, self._nack_many])
            await many(jobs)
            return
        for job in jobs:
            ending = self.pick(
                (50, self._ack),
                (8, self._ack_by_id),
                (14, self._nack),
                (10, self._beat_and_ack),
                (12, self._chain),
                (6, self._fail_to_chain),
            )
            await ending(job)

    async def _ack(self, job: Job) -> None:
        """Try until the ack is done or refused, as a careful program does. Sometimes repeat a successful ack."""
        results = self._results([job]) if self.world.modern else {}
        for _ in range(3):
            work = self.queue.ack(job, result=results.get(job.claim))
            error = await self.call("ack", work, claims=(job.claim,), expected=LOST)
            if not isinstance(error, UnknownOutcomeError) and self.dice.random() < 0.9:
                return

    def _results(self, jobs: list[Job]) -> dict[Claim, Any]:
        """Make a result for the ack of each job, unlike all others.

        Some are larger than the queue may become. If payloads are kept in objects, they are large enough for an object.
        """
        results: dict[Claim, Any] = {}
        for job in jobs:
            tag = self.world.tag()
            results[job.claim] = {"by": self.moment, "said": [tag, job.attempt]}
            if self.world.large and tag % 2:
                results[job.claim]["all"] = "x" * 2 * OBJECT_BYTES
            elif not self.world.large and tag % OVERSIZED == 0:
                results[job.claim]["all"] = "x" * BLOB_BYTES
        return results

    async def _end_each(self, jobs: list[Job]) -> None:
        """End the claims on many jobs in one commit, as a worker does: most with an ack, some with a nack."""
        details = self._nacking()
        results = self._results([job for job in jobs if self.dice.random() < 0.7])
        operations: list[Operation] = [
            Ack(job, results[job.claim]) if job.claim in results else Nack(job, **details) for job in jobs
        ]
        claims = tuple(job.claim for job in jobs)
        await self.call("apply_each", self.queue.apply_each(*operations), claims=claims, operations=len(jobs))

    async def _ack_by_id(self, job: Job) -> None:
        await self.call("ack", self.queue.ack(job.id), claims=(job.claim,), expected=LOST)

    async def _ack_many(self, jobs: list[Job]) -> None:
        claims = tuple(job.claim for job in jobs)
        await self.call("ack_many", self.queue.ack_many(jobs), claims=claims, operations=len(jobs))

    def _nacking(self) -> dict[str, Any]:
        dice = self.dice
        charge, dead = dice.random() < 0.7, dice.random() < 0.3
        delay = 3.0 if dice.random() < 0.2 else None
        return {"error": f"nack {self.world.tag()}", "charge": charge, "dead": dead and charge, "delay": delay}

    async def _nack(self, job: Job) -> None:
        details = self._nacking()
        await self.call("nack", self.queue.nack(job, **details), claims=(job.claim,), expected=LOST)
        if self.world.corrects and details["dead"]:
            work = self.queue.redrive(job.id, payload=b"corrected")
            await self.call("redrive", work, job_ids=(job.id,), expected=(*LOST, JobStateError, DuplicateJobError))

    async def _nack_many(self, jobs: list[Job]) -> None:
        claims, work = tuple(job.claim for job in jobs), self.queue.nack_many(jobs, **self._nacking())
        await self.call("nack_many", work, claims=claims, operations=len(jobs))

    async def _beat_and_ack(self, job: Job) -> None:
        await self.call("heartbeat", self.queue.heartbeat(job), claims=(job.claim,), expected=LOST)
        await self._ack(job)

    async def _chain(self, job: Job) -> None:
        child = f"{self.moment}-{job.id}-{job.attempt}"
        end = Ack(job, keep_result=0 if self.world.modern and job.attempt % 2 else None)
        enqueue = Enqueue(self.entrypoint(), b"", job_id=child, max_attempts=3)
        if job.group is not None and self.dice.random() < 0.7:  # a member that ends may always add members
            enqueue = replace(enqueue, group=job.group)
        work = self.queue.apply(end, enqueue)
        expected = (*LOST, *([GroupEndedError] if self.world.edited else []))
        await self.call("apply", work, claims=(job.claim,), job_ids=(child,), expected=expected, operations=2)

    async def _fail_to_chain(self, job: Job) -> None:
        child = f"{self.moment}-{job.id}-{job.attempt}"
        work = self.queue.apply(Ack(job), Enqueue("a", b"", job_id=child), Ack(Claim(job.id, job.attempt + 1000)))
        details: dict[str, Any] = {"claims": (job.claim,), "job_ids": (child,), "certain": True, "operations": 3}
        await self.call("apply", work, expected=LOST, **details)


def _payload(job_id: str) -> bytes:
    """Return a payload that no other job has."""
    return b"for " + job_id.encode()


class RecordedHeartbeats:
    """The queue of an actor, as a `HeartbeatManager` uses it: every heartbeat is recorded."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        """Return the rest of the queue."""
        return getattr(self._actor.queue, name)

    async def heartbeat_many(self, jobs: list[Job], *, deadline: float) -> list[JobNotFoundError]:
        """Send one heartbeat for many claims."""
        claims = tuple(job.claim for job in jobs)
        work = self._actor.queue.heartbeat_many(jobs, deadline=deadline)
        details: dict[str, Any] = {"claims": claims, "operations": len(claims), "limit": deadline}
        errors = await self._actor.call("heartbeat_many", work, **details)
        if isinstance(errors, JQueueError):
            raise errors
        lost: list[JobNotFoundError] = errors
        return lost


class Operator(Actor):
    """Redrives and purges jobs, and requeues jobs in progress. If waiting jobs are in segments, it purges old ones."""

    async def step(self) -> None:
        """Give one order."""
        order = self.dice.random()
        if self.world.segmented and self.dice.random() < 0.3:
            age = self.dice.choice([None, 0, 5, 20])
            await self.call("purge", self.queue.purge(status=JobStatus.QUEUED, older_than=age))
        elif order < 0.4 and self.world.claimed and self.world.modern and self.world.tag() % 3 == 0:
            claimed = self.world.claimed[-8:]
            job_id, expected = (
                claimed[self.world.tag() % len(claimed)],
                (JobNotFoundError, JobStateError, DuplicateJobError),
            )
            work = self.queue.redrive(job_id, payload=b"corrected")
            await self.call("redrive", work, job_ids=(job_id,), expected=expected)
        elif order < 0.4:
            fresh = self.world.stepped and self.world.tag() % 2 > 0
            await self.call("redrive", self.queue.redrive(entrypoint=self.dice.choice(["a", "b", None]), fresh=fresh))
        elif order < 0.55:
            status = JobStatus.COMPLETED if self.world.modern and self.dice.random() < 0.3 else JobStatus.DEAD
            await self.call("purge", self.queue.purge(status=status, entrypoint=self.entrypoint()))
        elif order < 0.75:
            await self.call("requeue_stale", self.queue.requeue_stale(self.dice.choice([2.0, 20.0])))
        elif self.world.large or self.world.segmented:
            with suppress(JQueueError):
                await self.queue.collect()
        else:
            await self.call("stats", self.queue.stats(), expected=(QueueMissingError,))


class Offerer(Actor):
    """Has the queue object serve other processes, and stays there for some steps."""

    async def act(self) -> None:
        """Offer to serve, and take the steps."""
        network, name = self.world.network, self.client.process.name
        if network.by_header and self.client.shares:
            network.servers[name] = SimulatedSeat(network, self.queue.service().handle)
        self.queue.offer(name)
        await super().act()

    async def step(self) -> None:
        """Do nothing but stay."""
