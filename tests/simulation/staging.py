"""The actors of bulk enqueues: one stages jobs and adds them in transactions, one claims under a name.

An application continues where it was, in any process. A version of its writes is repeated until some process was told
that it is done, sometimes with the very same jobs, sometimes with new jobs that mean the same.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.domain.errors import CASConflictError, DuplicateJobError, JQueueError, UnknownOutcomeError
from jqueue.domain.job import JobStatus
from jqueue.domain.job_options import OnConflict
from jqueue.domain.models import Job, QueueState
from jqueue.domain.operations.bulk import NewSegment, StagedReceipt, Transaction
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.lookups import LastTransaction
from jqueue.domain.segments import FOLDER, staged_name
from jqueue.ports.storage import SupportsObjects
from tests.simulation.actors import CLAIM_TIMEOUTS, Consumer
from tests.simulation.history import NEVER
from tests.simulation.workload import APPS, CALL_TIMEOUT, DEADLINE, KEYED, STAGED, STAGED_NAMED_WITHIN, Actor, Content
from tests.staged_jobs import TaskOfJobs

HOLDERS = ("holder 1", "holder 2")


class Stager(Actor):
    """Stages jobs and adds them, again and again until it is done, as the driver of a stream does."""

    async def step(self) -> None:
        """Take one step."""
        await self.pick((30, self._add_version), (6, self._add_an_old_version), (8, self._ask))()

    async def _add_version(self) -> None:
        app = self.dice.choice(APPS)
        for _ in range(self.dice.choice([1, 2, 3])):
            version = self.world.app_versions[app]
            if await self._add_transaction(app, version):
                return

    async def _add_an_old_version(self) -> None:
        """Repeat an old version, as a process does that does not know of its successor."""
        app = self.dice.choice(APPS)
        await self._add_transaction(app, max(0, self.world.app_versions[app] - self.dice.choice([1, 1, 3])))

    async def _add_transaction(self, app: str, version: int) -> bool:
        """Try once. Return True if the transaction is known to be done."""
        made = self.world.staged_contents[app, version]
        fitting = [content for content in made if not self._is_aged(content)]
        content: Content | None
        if fitting and self.dice.random() < 0.5:
            content = self.dice.choice(fitting)
        else:
            content = await self._stage(app, version)
            if content is None:
                return False
            made.append(content)
        receipt = await self._enqueue(content, (app, version))
        if receipt is not None:
            self.world.app_versions[app] = max(self.world.app_versions[app], version + 1)
        return receipt is not None

    def _is_aged(self, content: Content) -> bool:
        """Return True if the segments of a content may be too old to be named, as after a pause of the process."""
        age = asyncio.get_running_loop().time() - content.staged_at
        return age >= STAGED_NAMED_WITHIN.total_seconds() - 1.5 * DEADLINE

    async def _ask(self) -> None:
        app = self.dice.choice(APPS)
        await self.call("last_transaction", self.one(LastTransaction(app)))

    async def _enqueue(self, content: Content, transaction: tuple[str, int]) -> StagedReceipt | None:
        raises = self.dice.random() < 0.2
        on_conflict: OnConflict = "raise" if raises else "return"
        details: dict[str, Any] = {"job_ids": content.ids, "transaction": transaction}
        operations = len(content.ids) + len(content.keyed)
        found = await self.call(
            "enqueue_staged",
            self.queue.enqueue_staged(content.tasks, Transaction(*transaction), on_conflict=on_conflict),
            operations=operations,
            expected=(DuplicateJobError,),
            aged=self._is_aged(content),
            **details,
        )
        if isinstance(found, UnknownOutcomeError) and self.dice.random() < 0.3:
            found = await self.call(
                "resolve_staged", found.resolve(timeout=DEADLINE), expected=(DuplicateJobError,), **details
            )
        if not isinstance(found, StagedReceipt):
            return None
        self.world.repeated += found.repeated
        return found

    async def _stage(self, app: str, version: int) -> Content | None:
        """Store segments as the tasks of a write do. If the store fails, return None: the segments are litter."""
        dice, ids, keyed, tasks = self.dice, [], [], []
        began = asyncio.get_running_loop().time()
        try:
            created_at = await self.queue.staging_time()
        except JQueueError:
            return None
        assert created_at is not None
        moment = f"{STAGED}{self.moment}/{self.world.tag()}"
        for task in range(dice.choice([1, 1, 2, 3])):
            sizes = {"rows": dice.choice([1, 3, 100]), "chunk_rows": dice.choice([1, 2, 3])}
            stager = TaskOfJobs(created_at, "unused", **sizes)
            for number in range(dice.choice([1, 2, 5])):
                ids.append(f"{moment}-{task}-{number}")
                attempts, headers = dice.choice([None, 1, 3]), {"task": f"{task}"}
                delay, entrypoint = dice.choice([None, None, None, 5.0]), self.entrypoint()
                priority = dice.choice([0, 0, -1, 5])
                options: dict[str, Any] = {"max_attempts": attempts, "headers": headers, "delay": delay}
                stager.add(Enqueue(entrypoint, b"", priority, job_id=ids[-1], **options))
            if dice.random() < 0.3:
                keyed.append(f"{moment}-{task}")
                payload, key = KEYED + keyed[-1].encode(), dice.choice(["key 1", "key 2"])
                stager.add(Enqueue(self.entrypoint(), payload, job_id=f"{keyed[-1]}-keyed", unique_key=key))
            new = []
            for encoded in (*stager.full(), *stager.rest()):
                name = staged_name(app, version, f"{self.world.tag()}")
                if not await self._create(name, encoded.content):
                    return None
                new.append(NewSegment(name, encoded.entry, created_at=stager.created_at))
            tasks.append(StagedTask(stager.jobs, new, frozenset(stager.features)))
        return Content(tuple(tasks), tuple(ids), tuple(keyed), began)

    async def _create(self, name: str, content: bytes) -> bool:
        """Store a segment. Return True if it is there: an earlier try may have created it."""
        storage = self.queue.storage
        assert isinstance(storage, SupportsObjects)
        for _ in range(4):
            try:
                async with asyncio.timeout(CALL_TIMEOUT):
                    await storage.create_object(FOLDER + name, content)
            except CASConflictError:
                return True
            except (JQueueError, TimeoutError):
                await asyncio.sleep(self.dice.random())
            else:
                return True
        return False


class Holder(Consumer):
    """Claims under a name, and finds by it the jobs that it had claimed in an earlier life."""

    async def step(self) -> None:
        """Continue with the jobs held under the name, or claim."""
        name = self.dice.choice(HOLDERS)
        state = await self.call("read_state", self.queue.read_state(hot=True)) if self.dice.random() < 0.6 else None
        if isinstance(state, QueueState):
            mine = [job for job in state.jobs if job.holder == name and job.status is JobStatus.IN_PROGRESS]
            if mine and self.dice.random() < 0.7:
                self.world.adopted += len(mine)
                await self._go_on_with(mine)
                return
        await self._claim(name, state)

    async def _go_on_with(self, jobs: list[Job]) -> None:
        claims = tuple(job.claim for job in jobs)
        await self.call("heartbeat_many", self.queue.heartbeat_many(jobs), claims=claims, operations=len(claims))
        await self._finish(jobs)

    async def _claim(self, name: str, state: object) -> None:
        dice = self.dice
        through: float = NEVER
        if isinstance(state, QueueState) and dice.random() < 0.7:
            places = sorted(job.sequence for job in state.jobs)
            through = dice.choice(places[len(places) // 2 :]) if places else 0
        tag = dice.choice(CLAIM_TIMEOUTS) + self.world.tag() / 10_000
        entrypoint, batch = dice.choice(["a", "b", None]), dice.choice([1, 4, 12])
        bound = None if through == NEVER else int(through)
        operation = Dequeue(entrypoint, batch_size=batch, claim_timeout=tag, holder=name, through=bound)
        jobs = await self.call("dequeue", self.one(operation), entrypoint=entrypoint)
        if isinstance(jobs, list) and jobs and dice.random() < 0.6:  # otherwise left to another holder of the name
            await self._finish(jobs)

    async def _chain(self, job: Job) -> None:
        """Ack alone: another holder of the name may have acked, and the next job would be added without an ack."""
        await self._ack(job)
