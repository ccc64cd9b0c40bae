"""The actor of groups: it opens a group, adds jobs, closes it, and looks after it."""

from __future__ import annotations

from typing import Any

from jqueue.domain.errors import GroupEndedError, QueueMissingError, ResultTimeoutError, UnknownOutcomeError
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.groups import CancelGroup, CloseGroup, LookAtGroup, OpenGroup
from jqueue.domain.operations.operator import Redrive
from tests.simulation.workload import DEADLINE, Actor

REFUSED = (GroupEndedError, QueueMissingError)


class Grouper(Actor):
    """Opens a group at the first step, and adds to it, closes it or gives an order about it at the others."""

    group = ""

    async def step(self) -> None:
        """Take one step."""
        if not self.group:
            await self._open()
            return
        await self.pick(
            (3, self._add), (2, self._add_many), (4, self._close), (1, self._order), (1, self._wait), (1, self._open)
        )()

    async def _apply(self, operation: Operation) -> Any:
        """Apply an operation on a group, again while its outcome is not known."""
        for _ in range(3):
            answer = await self.call("apply", self.queue.apply(operation), expected=REFUSED)
            if not isinstance(answer, UnknownOutcomeError):
                break
        return answer

    async def _open(self) -> None:
        self.group = f"group {self.moment}"
        self.world.groups.append(self.group)
        jobs: dict[str, Enqueue] = {}
        if self.dice.random() < 0.8:
            jobs["then"] = Enqueue("a", b"then " + self.group.encode(), delay=self.dice.choice([None, None, 3.0]))
        if self.dice.random() < 0.4:
            jobs["on_end"] = Enqueue("b", b"on end")
        await self._apply(OpenGroup(self.group, **jobs))
        for _ in range(self.dice.choice([0, 1, 1, 2])):
            await self._add()
        if self.dice.random() < 0.4:
            await self._close()

    def _job(self, suffix: str) -> dict[str, Any]:
        job_id = f"{self.moment}{suffix}"
        self.world.made.append(job_id)
        attempts = self.dice.choice([None, None, 1, 2])
        group = self.dice.choice([*[self.group] * 4, self.dice.choice(self.world.groups)])
        return {"job_id": job_id, "max_attempts": attempts, "group": group}

    async def _add(self) -> None:
        job = self._job(f" {self.dice.random()}")
        work = self.queue.enqueue(self.entrypoint(), b"", **job)
        await self.call("enqueue", work, job_ids=(job["job_id"],), given=job, expected=REFUSED)

    async def _add_many(self) -> None:
        jobs = [Enqueue(self.entrypoint(), b"", **self._job(f"-{number}")) for number in range(self.dice.randint(2, 9))]
        ids = tuple(str(job.job_id) for job in jobs)
        work = self.queue.enqueue_many(jobs)
        await self.call("enqueue_many", work, job_ids=ids, operations=len(ids), expected=REFUSED)

    async def _close(self) -> None:
        await self._apply(CloseGroup(self.group))

    async def _order(self) -> None:
        group = self.dice.choice(self.world.groups)
        await self._apply(self.pick((1, CancelGroup(group)), (2, Redrive(group=group)), (2, LookAtGroup(group))))

    async def _wait(self) -> None:
        group, limit = self.queue.group(self.dice.choice(self.world.groups)), self.dice.choice([1.0, 8.0])
        expected = (*REFUSED, ResultTimeoutError)
        await self.call("wait_group", group.wait(limit), limit=DEADLINE + limit, expected=expected)
