"""`QueueSet`: takes jobs from several queues, of any formats, as from one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from heapq import merge
from types import TracebackType
from typing import Any, Self, Unpack

from jqueue.core.engine.workers import Describe
from jqueue.core.queue_options import lists_queue_options, takes_queue_options
from jqueue.core.sets.large_values import SetLargeValueVerbs
from jqueue.core.sets.members import Member, in_order
from jqueue.core.sets.same_place import is_same_place
from jqueue.core.sets.set_claims import Claiming, DequeueCall, Peeks, shares
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueClosedError, QueueMissingError
from jqueue.domain.job_options import takes_options
from jqueue.domain.models import Job
from jqueue.domain.operations import Dequeue, DequeueOptions, Preparation
from jqueue.domain.selection import turn_of
from jqueue.ports.queue import JobQueue, SupportsWorkers


@lists_queue_options
class QueueSet(SetLargeValueVerbs):
    """Takes jobs from several queues as from one: by priority, then by age, over all of them.

        async with QueueSet(connect_queue("queue.json"), connect_queue("vsqs:///var/spool/mail")) as queues:
            [job] = await queues.dequeue(wait=30)
            await queues.ack(job)

    A worker runs on it as on any queue. A call about a job goes to the queue that the job came from, and a call about
    many jobs is one call to each of their queues. An id or a claim that stands for jobs of several queues is refused
    with InvalidJobError. `purge`, `requeue_stale`, `stats` and `read_state` are for all queues together. Calls that
    concern one queue as a whole, such as enqueue, must be made on that queue.

    Entering the block opens the queues that are not open; leaving it closes the ones that it opened.

    Args:
        queues: any queues, each once.
        options: by name, as below. The set uses `deadline`, `poll_interval` and `clock`; its queues use their own
            options for the rest.
    """

    @takes_queue_options
    def __init__(self, *queues: JobQueue, **options: Any) -> None:
        super().__init__(**options)
        self._stack: AsyncExitStack | None = None
        self._changed = asyncio.Event()
        self._turn = 0
        self._handing_back: set[asyncio.Task[object]] = set()
        for queue in queues:
            self._members.append(self._new_member(queue))

    def __repr__(self) -> str:
        return f"QueueSet({', '.join(map(repr, self.queues))})"

    @property
    def queues(self) -> tuple[JobQueue, ...]:
        """The queues, in the order in which they were added."""
        return tuple(member.queue for member in self._members)

    # Adding and removing queues

    async def add(self, queue: JobQueue) -> None:
        """Add a queue. Calls that already wait for jobs wait for its jobs, too.

        Raises:
            InvalidJobError: it is not a queue, or is in the set already.
        """
        member = self._new_member(queue)
        self._members.append(member)
        try:
            await self._open(member)
        except BaseException:
            self._members.remove(member)
            raise
        self._wake_waiting()

    def remove(self, queue: JobQueue) -> None:
        """Remove a queue. Claims on its jobs can be acked and nacked here as before.

        A dequeue that is claiming at this moment may still return a job of it. If the set has opened the queue, it
        stays open until the set is left.

        Raises:
            InvalidJobError: it is not in the set.
        """
        for member in self._members:
            if member.queue is queue:
                self._members.remove(member)
                self._wake_waiting()
                return
        raise InvalidJobError("this queue is not in the set")

    def _new_member(self, queue: JobQueue) -> Member:
        if not hasattr(queue, "dequeue"):
            raise InvalidJobError(
                f"a set is made of queues, got {type(queue).__name__}: for a URL, `connect_queue(url)` makes a queue"
            )
        if any(is_same_place(queue, other) for other in self.queues):
            raise InvalidJobError("this queue is in the set already")
        return Member(queue)

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def attend(self, run: str, describe: Describe) -> None:
        """Add a worker to each queue: see `SupportsWorkers`."""
        for queue in self.queues:
            if isinstance(queue, SupportsWorkers):
                queue.attend(run, describe)

    def leave(self, run: str) -> None:
        """Remove a worker from each queue."""
        for queue in self.queues:
            if isinstance(queue, SupportsWorkers):
                queue.leave(run)

    async def remove_left(self, deadline: Duration) -> None:
        """Remove the records of workers that have left from each queue."""
        await asyncio.gather(*(each.remove_left(deadline) for each in self.queues if isinstance(each, SupportsWorkers)))

    # Taking jobs

    @takes_options(DequeueOptions)
    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration | None = None,
        deadline: Duration | None = None,
        **options: Unpack[DequeueOptions],
    ) -> list[Job]:
        """Claim ready jobs, by priority and then by age, over all queues.

        The age of a job that was given back counts from its last turn. Among equals, the queue that has waited longest
        is served first. A queue whose store does not answer is skipped after two seconds if other queues have jobs. If
        they have none, it is waited for until the deadline.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: maximum time to wait for the first job if none is ready.
            deadline: maximum time for the call, in addition to `wait`.

        Returns:
            The claimed jobs; an empty list if none was ready.

        Raises:
            StorageError: the store of a queue failed, and no other queue had jobs.
        """
        if options.keys() - {"batch_size", "claim_timeout", "holder"}:  # no option that selects jobs is ignored
            raise InvalidJobError(
                "on a set of queues, dequeue takes only entrypoint, batch_size, claim_timeout, holder, wait and "
                "deadline: for other options, call one of its queues"
            )
        batch_size, claim_timeout = options.get("batch_size", 1), options.get("claim_timeout")
        holder = options.get("holder")
        self._check(entrypoint, batch_size, claim_timeout, holder)
        seconds = self._seconds(deadline)
        if not batch_size:
            await asyncio.gather(
                *(member.queue.dequeue(entrypoint, batch_size=0, deadline=deadline) for member in self._members)
            )
            return []
        loop = asyncio.get_running_loop()
        pause = to_seconds("poll_interval", self.options.poll_interval)
        call = DequeueCall(entrypoint, batch_size, claim_timeout, holder, self.options.clock, pause)
        waited_until = loop.time() + (0.0 if wait is None else to_seconds("wait", wait))
        jobs: list[Job] = []
        try:
            await self._gather(jobs, call, seconds, waited_until)
        except asyncio.CancelledError:
            if jobs:
                self._hand_back(self.nack_many(jobs, charge=not self.capabilities.uncharged))
            raise
        except JQueueError:
            if not jobs:
                raise
        return jobs

    async def _gather(self, jobs: list[Job], call: DequeueCall, seconds: float, waited_until: float) -> None:
        """Claim jobs until there are as many as wanted, or no more are ready.

        Args:
            jobs: the claimed jobs are appended here.
            call: the arguments of the dequeue.
            seconds: maximum seconds for one call.
            waited_until: end of the wait for the first job, on the clock of the event loop.
        """
        loop, most = asyncio.get_running_loop(), call.batch_size
        ends = waited_until + seconds
        while len(jobs) < most and (left := ends - loop.time()) > 0:
            changed = self._changed
            call.begin(most - len(jobs))
            async with Peeks(tuple(self._members), call, min(seconds, left)) as peeks:
                found = await peeks.found()
                wait_seconds = 0.0 if jobs else waited_until - loop.time()
                if not found and wait_seconds > 0 and await peeks.until_ready(wait_seconds, changed):
                    if not (found := peeks.answered()):
                        continue
                elif not found and not jobs:
                    found = await peeks.late()
            planned = shares(found, self._claim_owners, call.batch_size)
            claimed = await self._claim(Claiming(planned, call, seconds)) if planned else []
            jobs += claimed
            if call.trouble is not None and not jobs:
                raise call.trouble
            if call.trouble is not None or len(claimed) == sum(planned.values()):
                return
            await asyncio.sleep(0)  # other consumers took some: look again for the rest

    def _hand_back(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._handing_back.add(task)
        task.add_done_callback(self._handing_back.discard)

    async def _claim(self, claiming: Claiming) -> list[Job]:
        try:
            found = await claiming.claimed()
        except asyncio.CancelledError:
            self._hand_back(claiming.hand_back())
            raise
        chosen = in_order(found, self._claim_owners, sum(map(len, found.values())))
        now = self.options.clock.now()
        for member, jobs in found.items():
            self._claim_owners.remember(member, jobs, now)
        for member, _ in chosen:
            self._turn += 1
            member.served = self._turn
        return [job for _, job in chosen]

    def _check(
        self,
        entrypoint: str | Sequence[str] | None,
        batch_size: int,
        claim_timeout: Duration | None,
        holder: str | None,
    ) -> None:
        """Check the arguments of a dequeue before any queue is asked."""
        timeout = to_seconds("stale_timeout", self.options.stale_timeout)
        preparation = Preparation(self.options.limits, timeout, self.options.entropy.new_id, self._no_claim)
        Dequeue(entrypoint, batch_size=batch_size, claim_timeout=claim_timeout, holder=holder).prepared(preparation)
        if claim_timeout is not None:
            self.capabilities.require("claim_timeout")

    # Looking

    async def __aiter__(self) -> AsyncIterator[tuple[JobQueue, Job]]:
        """Yield all jobs of all queues, each with its queue, in the order in which they would be served.

        Jobs in progress and dead jobs are included. Each queue is read once, when the iteration begins. The order needs
        all jobs in memory; `iterate_jobs` does not.
        """
        members = tuple(self._members)

        async def of(member: Member) -> list[tuple[Member, Job]]:
            jobs: list[Job] = []
            with suppress(QueueMissingError):
                jobs = [job async for job in member.queue.iterate_jobs()]
            return [(member, job) for job in sorted(jobs, key=turn_of)]

        lists = await asyncio.gather(*map(of, members))
        for member, job in merge(*lists, key=lambda pair: (pair[1].priority, self._claim_owners.since(*pair))):
            yield member.queue, job

    # Opening and closing

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        try:
            for member in self._members:
                await self._open(member)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the queues that the set has opened, each by its own deadline."""
        if self._handing_back:
            await asyncio.wait(self._handing_back)
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def _open(self, member: Member) -> None:
        """Open a queue that must be opened and is not open."""
        manager: Any = member.queue
        if self._stack is None or not hasattr(manager, "__aenter__"):
            return
        try:
            await member.queue.dequeue(batch_size=0)
        except QueueClosedError:
            await self._stack.enter_async_context(manager)
