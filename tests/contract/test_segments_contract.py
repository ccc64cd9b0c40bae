"""A broker keeps the queue contract with its waiting jobs in small segments.

Jobs move to segments between commits, whenever the writer gets to it.
"""

from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.broker import BrokerQueue
from jqueue.domain.selection import Phase, phase_of
from tests.contract.places import without
from tests.contract.test_queue_contract import InVirtualTime
from tests.tiny_segments import segments_of


class InSegments(BrokerQueue):
    """A queue that moves all waiting jobs to small segments, merges them soon, and keeps few rows loaded.

    Its `read_state` has the jobs in segments, too, as the contract looks at jobs by it.
    """

    def __init__(self, storage, **options):
        super().__init__(storage, **options)
        segments = segments_of(self)
        if segments.writer.sizes.hot_bytes is not None:  # a test that wants all jobs in the object gets them there
            segments.writer.sizes = SegmentSizes(
                hot_bytes=0, fewest_rows=1, most_rows=8, chunk_rows=2, merged=2, holes=1
            )
        segments.loader.rows_kept, segments.loader.rows_ahead = 4, 2

    async def read_state(self, **options):
        """Return the state with all jobs, those in segments last. A row that has expired stands until it comes up."""
        view = await self.view(**options)
        now = self.options.clock.now()
        jobs = [job async for job in view.jobs() if phase_of(job, now) is not Phase.EXPIRED]
        return view.header.model_copy(update={"jobs": tuple(jobs), "set_aside": view.set_aside})


@without(
    "test_the_limit_that_a_queue_has_holds_for_every_writer",  # the object is never full
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",  # the object has no line of the job to edit
    "test_no_repr_shows_a_payload",
    "test_the_id_of_a_job_that_cannot_be_read_is_not_given_again",
)
class TestBrokerQueueInMemory(InVirtualTime):
    kind = InSegments
