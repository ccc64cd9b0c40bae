"""A broker keeps the queue contract with its waiting jobs in small segments, where each call waits for them."""

import asyncio
from contextlib import suppress

from jqueue import JobStatus, JQueueError
from jqueue.core.broker import BrokerQueue
from jqueue.domain.selection import Phase, phase_of
from jqueue.testing.tuning import Numbers, tune
from tests.contract.places import without
from tests.contract.test_queue_contract import InVirtualTime

SMALL = Numbers(fewest_rows=1, most_rows=8, chunk_rows=2, merged=2, holes=1, rows_kept=4, rows_ahead=2)


class BrokerInSegments(BrokerQueue):
    """A queue that moves all waiting jobs to small segments, merges them soon, and keeps few rows loaded."""

    def __init__(self, storage, **options):
        super().__init__(storage, **options)
        tune(self, **SMALL)
        if self.options.limits.hot_bytes is not None:  # a test that wants all jobs in the object gets them there
            tune(self, hot_bytes=0)

    async def read_state(self, **options):
        """Return the state without the rows that have expired: they stand until they come up."""
        state, now = await super().read_state(**options), self.options.clock.now()
        return state.model_copy(
            update={"jobs": tuple(job for job in state.jobs if phase_of(job, now) is not Phase.EXPIRED)}
        )


class EmptiedBroker(BrokerInSegments):
    """Waits, before it claims or changes waiting jobs, until all of them are in segments."""


def _emptied(verb):
    async def call(self, *arguments, **options):
        with suppress(JQueueError):  # then the call itself says so
            while any(
                job.status == JobStatus.QUEUED and not job.after
                for job in (await BrokerQueue.read_state(self, hot=True)).jobs
            ):
                await self.pause("nothing")
                await asyncio.sleep(0.05)  # of virtual time, for the writer
                await self.resume("nothing")  # names the segment
        return await getattr(super(EmptiedBroker, self), verb)(*arguments, **options)

    return call


for each in ("dequeue", "claim_lease", "cancel", "reschedule", "reprioritise", "purge"):
    setattr(EmptiedBroker, each, _emptied(each))


@without(
    "test_the_limit_that_a_queue_has_holds_for_every_writer",  # the object is never full
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",  # the object has no line of the job to edit
    "test_no_repr_shows_a_payload",
    "test_the_id_of_a_job_that_cannot_be_read_is_not_given_again",
    "test_a_dequeue_with_bad_input_is_refused",  # they see that nothing is written: here jobs are moved first
    "test_bad_changes_of_jobs_are_refused",
    "test_polling_a_queue_with_nothing_ready_never_writes",
)
class TestBrokerQueueWithAllInMemory(InVirtualTime):
    kind = EmptiedBroker
