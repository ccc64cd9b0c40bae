"""The queue contract finds faulty queues: each faulty queue here fails the test that is meant to find it."""

import asyncio
import contextlib
import logging

import pytest
from msgspec.structs import replace

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.cron import next_after
from jqueue.domain.errors import JobCancelledError, JQueueError
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.operator import Fence
from jqueue.testing.virtual_time import VirtualClock
from tests.contract.whole_contract import WholeQueueContract
from tests.two_methods import TwoMethods
from tests.virtual_world import in_virtual_time


class LastInFirstOut(DirectQueue):
    before = 0

    async def enqueue(self, entrypoint, payload=b"", priority=0, **options):
        LastInFirstOut.before += 1
        return await super().enqueue(entrypoint, payload, priority - LastInFirstOut.before, **options)


class LogsPayloads(DirectQueue):
    async def enqueue(self, entrypoint, payload=b"", priority=0, **options):
        logging.getLogger("somewhere").debug("enqueueing %r", payload)
        return await super().enqueue(entrypoint, payload, priority, **options)


class Unfenced(DirectQueue):
    """Every caller counts as the holder of the claim."""

    async def _current(self, job):
        job_id = job if isinstance(job, str) else job.claim.job_id if hasattr(job, "claim") else job.job_id
        return (await self.read_state()).find(job_id) or job

    async def ack(self, job_id, **options):
        await super().ack(await self._current(job_id), **options)

    async def nack(self, job_id, **options):
        await super().nack(await self._current(job_id), **options)


class ForgetsClaims(DirectQueue):
    """A claim made for a cancelled caller is not handed back."""

    async def dequeue(self, *arguments, **options):
        return await asyncio.shield(asyncio.ensure_future(super().dequeue(*arguments, **options)))


class WritesForNothing(DirectQueue):
    async def dequeue(self, *arguments, **options):
        await self.apply(Fence())
        return await super().dequeue(*arguments, **options)


class FailsTogether(DirectQueue):
    """One lost claim of many fails the others."""

    async def ack_many(self, jobs, **options):
        try:
            for job in jobs:
                await self.ack(job)
        except JQueueError as error:
            return [error]
        return []


class FiresEveryMissedTime(DirectQueue):
    """Each missed time becomes a job."""

    async def dequeue(self, *arguments, **options):
        for entry in await self.schedules():
            due = entry.next_at
            while (due := next_after(entry.cron, entry.timezone, due)) <= self.options.clock.now():
                headers = {"jqueue-scheduled-for": due.isoformat()}
                await self.enqueue(entry.entrypoint, entry.payload, headers=headers)
        return await super().dequeue(*arguments, **options)


class HidesCancellations(DirectQueue):
    """The holder of a cancelled job is not told at its heartbeat."""

    async def heartbeat(self, job_id, **options):
        with contextlib.suppress(JobCancelledError):
            await super().heartbeat(job_id, **options)


class Changing(DirectQueue):
    """A queue that changes each operation before it is applied."""

    def change(self, operation):
        return operation

    async def apply(self, *operations, **options):
        return await super().apply(*map(self.change, operations), **options)


class DropsHoldersAndBounds(Changing):
    def change(self, operation):
        return replace(operation, holder=None, through=None) if isinstance(operation, Dequeue) else operation


CLOCKED = ("test_after_a_gap_the_last_time_missed_becomes_one_job",)
"""Tests that need a store without a time, so that the queue uses its own clock."""


@pytest.mark.parametrize(
    ("kind", "finder", "arguments"),
    [
        (LastInFirstOut, "test_commit_order_holds_across_enqueuers_whatever_their_clocks_say", {}),
        (LogsPayloads, "test_no_error_and_no_log_shows_a_payload", {}),
        (Unfenced, "test_a_revoked_claim_is_refused_and_changes_nothing", {"verb": "ack", "refer": lambda job: job}),
        (ForgetsClaims, "test_a_dequeue_cancelled_at_any_moment_leaves_no_job_claimed_by_nobody", {}),
        (WritesForNothing, "test_polling_a_queue_with_nothing_ready_never_writes", {}),
        (FailsTogether, "test_of_many_claims_each_stands_for_itself", {"verb": "ack_many"}),
        (FiresEveryMissedTime, "test_after_a_gap_the_last_time_missed_becomes_one_job", {}),
        (HidesCancellations, "test_the_holder_of_a_cancelled_job_is_told_at_its_heartbeat", {}),
        (DropsHoldersAndBounds, "test_who_lost_its_memory_finds_what_it_held", {}),
    ],
)
@in_virtual_time
async def test_the_contract_finds_a_fault(kind, finder, arguments, caplog):
    storage = TwoMethods() if finder in CLOCKED else InMemoryStorage(clock=VirtualClock())
    if "log" in finder:
        arguments = {**arguments, "caplog": caplog}
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        await getattr(WholeQueueContract(), finder)(
            lambda **options: kind(storage, **{"clock": VirtualClock(), **options}), **arguments
        )
