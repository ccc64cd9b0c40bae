"""The queue contract finds what a queue does wrong: each fault here makes the test fail that is there for it."""

import asyncio
import logging

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.operations import Fence
from jqueue.ports.queue import Capabilities
from jqueue.testing.queue_contract import QueueContract
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


class LastInFirstOut(DirectQueue):
    before = 0

    async def enqueue(self, entrypoint, payload, priority=0, **options):
        LastInFirstOut.before += 1
        return await super().enqueue(entrypoint, payload, priority - LastInFirstOut.before, **options)


class TakesNoNotice(DirectQueue):
    """Of the options that it is given."""

    async def enqueue(self, entrypoint, payload, priority=0, **options):
        return await super().enqueue(entrypoint, payload)


class TakesNoNoticeAndSaysSo(TakesNoNotice):
    capabilities = Capabilities(headers=False)


class TakesText(DirectQueue):
    async def enqueue(self, entrypoint, payload, priority=0, **options):
        payload = payload.encode() if isinstance(payload, str) else payload
        return await super().enqueue(entrypoint, payload, priority, **options)


class TellsPayloads(DirectQueue):
    async def enqueue(self, entrypoint, payload, priority=0, **options):
        try:
            return await super().enqueue(entrypoint, payload, priority, **options)
        except InvalidJobError as error:
            raise InvalidJobError(f"{error}: {payload!r}") from None


class LogsPayloads(DirectQueue):
    async def enqueue(self, entrypoint, payload, priority=0, **options):
        logging.getLogger("somewhere").debug("enqueueing %r", payload)
        return await super().enqueue(entrypoint, payload, priority, **options)


class Unfenced(DirectQueue):
    """Whoever asks has the claim."""

    async def _current(self, job):
        job_id = job if isinstance(job, str) else job.claim.job_id if hasattr(job, "claim") else job.job_id
        return (await self.read_state()).find(job_id) or job

    async def ack(self, job_id, **options):
        await super().ack(await self._current(job_id), **options)

    async def nack(self, job_id, **options):
        await super().nack(await self._current(job_id), **options)


class ForgetsClaims(DirectQueue):
    """A claim made for a caller that has left is kept."""

    async def dequeue(self, *arguments, **options):
        return await asyncio.shield(asyncio.ensure_future(super().dequeue(*arguments, **options)))


class NeverWaits(DirectQueue):
    async def dequeue(self, *arguments, wait=None, **options):
        return await super().dequeue(*arguments, **options)


class WritesForNothing(DirectQueue):
    async def dequeue(self, *arguments, **options):
        await self.apply(Fence())
        return await super().dequeue(*arguments, **options)


class OneByOne(DirectQueue):
    """What is asked for together is done one by one."""

    async def enqueue_many(self, jobs, **options):
        return [result for job in jobs for result in await DirectQueue.apply(self, job)]

    async def apply(self, *operations, **options):
        return [result for operation in operations for result in await DirectQueue.apply(self, operation)]


class FailsTogether(DirectQueue):
    """One lost claim of many fails the others."""

    async def ack_many(self, jobs, **options):
        try:
            for job in jobs:
                await self.ack(job)
        except JQueueError as error:
            return [error]
        return []


class ChargesAlways(DirectQueue):
    async def nack(self, job_id, *, charge=True, **options):
        await super().nack(job_id, **options)


@pytest.mark.parametrize(
    ("kind", "finder", "arguments"),
    [
        (LastInFirstOut, "test_jobs_of_one_priority_are_served_in_commit_order", {}),
        (LastInFirstOut, "test_a_batch_is_as_many_as_asked_for_or_as_there_are", {}),
        (TakesNoNotice, "test_a_lower_priority_is_served_first", {}),
        (TakesNoNotice, "test_a_delayed_job_is_scheduled_and_not_claimed", {}),
        (TakesNoNotice, "test_a_job_not_claimed_by_its_expiry_is_removed", {}),
        (TakesNoNotice, "test_headers_and_names_may_hold_any_text", {}),
        (TakesNoNotice, "test_a_job_id_makes_an_enqueue_idempotent", {}),
        (TakesNoNotice, "test_a_live_job_holds_its_key", {"state": "queued"}),
        (TakesNoNoticeAndSaysSo, "test_a_capability_that_is_missing_is_refused_by_name", {}),
        (TakesText, "test_an_enqueue_with_bad_input_is_refused", {"argument": "payload"}),
        (TellsPayloads, "test_no_error_and_no_log_shows_a_payload", {}),
        (LogsPayloads, "test_no_error_and_no_log_shows_a_payload", {}),
        (Unfenced, "test_a_revoked_claim_is_refused_and_changes_nothing", {"verb": "ack", "refer": lambda job: job}),
        (Unfenced, "test_a_bare_id_is_no_claim_for_a_queue_object_that_did_not_hand_it_out", {"verb": "nack"}),
        (ForgetsClaims, "test_a_dequeue_cancelled_at_any_moment_leaves_no_job_claimed_by_nobody", {}),
        (ForgetsClaims, "test_a_waiting_dequeue_cancelled_when_its_job_comes_leaves_it_to_others", {}),
        (NeverWaits, "test_a_waiting_dequeue_is_answered_by_an_enqueue_from_elsewhere", {}),
        (NeverWaits, "test_a_wait_ends_with_nothing_when_it_is_over", {}),
        (WritesForNothing, "test_polling_an_empty_queue_never_writes", {}),
        (OneByOne, "test_enqueue_many_is_one_commit", {}),
        (OneByOne, "test_enqueue_many_adds_all_or_none", {}),
        (OneByOne, "test_one_refusal_undoes_all_of_an_apply", {"place": 2}),
        (OneByOne, "test_what_is_applied_together_is_seen_together", {}),
        (FailsTogether, "test_of_many_claims_each_stands_for_itself", {"verb": "ack_many"}),
        (ChargesAlways, "test_a_job_handed_back_unharmed_keeps_its_place_and_its_failures", {}),
    ],
)
@in_virtual_time
async def test_the_contract_finds_a_fault(kind, finder, arguments, caplog):
    storage = InMemoryStorage(clock=VirtualClock())
    if "log" in finder:
        arguments = {**arguments, "caplog": caplog}
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError)):
        await getattr(QueueContract(), finder)(
            lambda **options: kind(storage, **{"clock": VirtualClock(), **options}), **arguments
        )
