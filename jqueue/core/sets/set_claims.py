"""The claims of a queue set: it peeks at each queue, chooses by priority and age over all, and claims the chosen jobs.

Only jobs to be handed out are claimed, so no other job loses its place or an attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jqueue.core.sets.members import ClaimOwners, Member, Names, in_order
from jqueue.core.sets.same_place import name_of
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueClosedError
from jqueue.domain.models import Job
from jqueue.domain.printable import counted
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

SLOW = 2.0
"""Seconds for which a queue that does not answer delays the jobs of the others."""


@dataclass
class DequeueCall:
    """The arguments of a dequeue, and its state.

    Attributes:
        names: the entrypoints.
        batch_size: maximum number of jobs.
        claim_timeout: of the claims; None: the default of each queue.
        holder: name kept with the claims, in queues that keep one; None: the default of each queue.
        clock: tells which jobs are due in queues without `SupportsPeek`.
        pause: seconds between two peeks at such queues.
        trouble: the error of a failed queue, raised if no other queue has jobs.
    """

    names: Names
    batch_size: int
    claim_timeout: Duration | None
    holder: str | None
    clock: Clock
    pause: float
    trouble: Exception | None = field(default=None)

    def options_for(self, member: Member) -> dict[str, Any]:
        """Return the options of the claims in a queue."""
        options: dict[str, Any] = {"claim_timeout": self.claim_timeout}
        if self.holder is not None and member.queue.capabilities.holders:
            options["holder"] = self.holder
        return options

    def begin(self, batch_size: int) -> None:
        """Start a new look for this number of jobs."""
        self.batch_size, self.trouble = batch_size, None

    def note(self, member: Member, error: BaseException) -> None:
        """Note that a queue failed. The others go on unless the call itself is wrong or the queue is closed.

        Raises:
            InvalidJobError: the call is wrong.
            QueueClosedError: the queue is not open.
        """
        if isinstance(error, InvalidJobError | QueueClosedError) or not isinstance(error, Exception):
            raise error
        if not isinstance(error, JQueueError):
            logger.warning("the queue at %s raised %s", name_of(member.queue), type(error).__name__, exc_info=error)
        self.trouble = error


class Peeks:
    """One look at each of several queues, and the wait for further jobs.

        async with Peeks(members, call, deadline) as peeks:
            found = await peeks.found()

    Args:
        members: the queues.
        call: the dequeue whose jobs are looked for.
        deadline: maximum seconds for one call.
    """

    def __init__(self, members: Sequence[Member], call: DequeueCall, deadline: float) -> None:
        self._call = call
        self._deadline = deadline
        self._tasks = {member: asyncio.create_task(self._peek(member)) for member in members}
        self._others: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Peeks:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._tasks.values(), *self._others]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it

    async def found(self) -> dict[Member, list[Job]]:
        """Return the jobs of each queue once all queues have answered, but after `SLOW` seconds at the latest.

        Raises:
            JQueueError: the call is wrong, or a queue is not open.
        """
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=SLOW)
        return self.answered()

    async def late(self) -> dict[Member, list[Job]]:
        """Return the jobs of each queue once a slow queue has answered with jobs, or all queues have answered.

        Raises:
            JQueueError: see `found`.
        """
        pending = {task for task in self._tasks.values() if not task.done()}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is None and task.result() for task in done):
                break
        return self.answered()

    def answered(self) -> dict[Member, list[Job]]:
        """Return the jobs of each queue that has answered by now.

        Raises:
            JQueueError: see `found`.
        """
        found = {}
        for member, task in self._tasks.items():
            if not task.done():
                continue
            if (error := task.exception()) is not None:
                self._call.note(member, error)
            elif task.result():
                found[member] = task.result()
        return found

    async def until_ready(self, seconds: float, changed: asyncio.Event) -> bool:
        """Wait until a queue may have a job, or the set has changed. Return False if neither happens in time.

        A queue that fails is left out, and the wait for the others goes on.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        waits = {asyncio.create_task(self._become_ready(member, seconds)): member for member in self._tasks}
        change: asyncio.Task[Any] = asyncio.create_task(changed.wait())
        self._others += [*waits, change]
        pending: set[asyncio.Task[Any]] = {*waits, change}
        while (left := end - loop.time()) > 0:
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if change in done:
                return True
            for task in done:
                if (error := task.exception()) is not None:
                    self._call.note(waits[task], error)
                elif task.result():
                    return True
        return False

    async def _peek(self, member: Member) -> list[Job]:
        call = self._call
        return await member.peek(call.names, call.batch_size, call.clock, self._deadline)

    async def _become_ready(self, member: Member, seconds: float) -> bool:
        look = self._tasks[member]
        if not look.done():  # its look has not ended, so its result will be fresh
            return bool(await look)
        if look.exception() is not None:
            await asyncio.sleep(self._call.pause)
            return seconds > self._call.pause
        return await member.until_ready(self._call.names, seconds, self._call.pause, self._deadline)


def shares(found: Mapping[Member, Sequence[Job]], owners: ClaimOwners, most: int) -> dict[Member, int]:
    """Return the number of jobs to claim from each queue, so that the first jobs over all queues are claimed."""
    return dict(Counter(member for member, _ in in_order(found, owners, most)))


class Claiming:
    """Claims from several queues at once.

    Args:
        shares: number of jobs to claim from each queue.
        call: the arguments of the dequeue.
        deadline: maximum seconds for one call.
    """

    def __init__(self, shares: Mapping[Member, int], call: DequeueCall, deadline: float) -> None:
        self._call = call
        self._tasks = {
            member: asyncio.create_task(
                member.queue.dequeue(call.names, batch_size=share, deadline=deadline, **call.options_for(member))
            )
            for member, share in shares.items()
        }

    async def claimed(self) -> dict[Member, list[Job]]:
        """Return the jobs claimed from each queue.

        Raises:
            asyncio.CancelledError: the caller has left; call `hand_back` then.
        """
        await asyncio.wait(self._tasks.values())
        found = {}
        wrong: BaseException | None = None
        for member, task in self._tasks.items():
            error = task.exception()
            if error is None:
                found[member] = task.result()
                continue
            try:
                self._call.note(member, error)
            except Exception as refusal:
                wrong = refusal
        if wrong is not None and not any(found.values()):
            raise wrong
        return found

    async def hand_back(self) -> None:
        """Give back the jobs that were claimed for a caller that has left."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.wait(self._tasks.values())
        for member, task in self._tasks.items():
            if not task.cancelled() and task.exception() is None and (jobs := task.result()):
                charge = not member.queue.capabilities.uncharged
                try:
                    await member.queue.nack_many(jobs, charge=charge)
                except JQueueError as error:
                    logger.warning(
                        "%s claimed for a caller that has left could not be handed back before the claim times out: %s",
                        counted(len(jobs), "job"),
                        error,
                    )
