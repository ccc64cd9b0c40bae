"""Both queues keep the queue contract while every waiting job moves to small segments, on each kind of store.

A few tests of the contract do not apply: such a queue takes any number of jobs at once, as one event of the history,
and waiting jobs leave room in its object.
"""

import pytest

from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from tests.contract.sample import sampled
from tests.contract.test_object_stores import QueueOnAServer, azurite, gcs, moto, seaweedfs
from tests.contract.test_queue_contract import InVirtualTime

WITHOUT_SEGMENTS = {
    "test_a_damaged_object_hides_nothing_else",
    "test_events_are_the_same_after_they_were_moved",
    "test_a_full_queue_takes_no_job_and_still_serves_those_it_has",
    "test_the_limit_that_a_queue_has_holds_for_every_writer",
    "test_apply_refuses_what_is_no_operation_and_more_than_the_limit",
}


class InSegments:
    """A queue that keeps waiting jobs in segments, and whose state has them all, as the contract expects."""

    def __init__(self, *storage, **options):
        super().__init__(*storage, **options)
        segments = self._engine.segments  # type: ignore[attr-defined]
        segments.writer.sizes = SegmentSizes(hot_bytes=0, fewest_rows=1, most_rows=8, chunk_rows=2, merged=2, holes=1)
        segments.loader.rows_kept, segments.loader.rows_ahead = 8, 4

    async def read_state(self, **options):
        state = await super().read_state(**options)  # type: ignore[misc]
        if not state.segments:
            return state
        now = self._engine.now()  # type: ignore[attr-defined]
        jobs = [
            job
            async for job in self.iterate_jobs()  # type: ignore[attr-defined]
            if job.expires_at is None or job.expires_at > now  # such a row leaves when it is read the next time
        ]
        return state.model_copy(update={"jobs": tuple(jobs)})


class DirectInSegments(InSegments, DirectQueue):
    pass


class BrokerInSegments(InSegments, BrokerQueue):
    pass


def applicable(contract):
    """Take the tests out of a contract that do not apply to segments."""
    assert all(hasattr(contract, name) for name in WITHOUT_SEGMENTS)
    for name in WITHOUT_SEGMENTS:
        setattr(contract, name, None)
    return contract


@applicable
@pytest.mark.wide
class TestDirectQueueInSegments(InVirtualTime):
    kind = DirectInSegments


@applicable
@pytest.mark.wide
class TestBrokerQueueInSegments(InVirtualTime):
    kind = BrokerInSegments


@applicable
@sampled
class SampleInSegments(QueueOnAServer):
    """The sample, on a server."""


@seaweedfs
@pytest.mark.wide
class TestBrokerQueueInSegmentsOnSeaweedFS(SampleInSegments):
    kind, server = BrokerInSegments, "seaweedfs"


@seaweedfs
@pytest.mark.full
class TestDirectQueueInSegmentsOnSeaweedFS(SampleInSegments):
    kind, server = DirectInSegments, "seaweedfs"


@azurite
@pytest.mark.full
class TestDirectQueueInSegmentsOnAzurite(SampleInSegments):
    kind, server = DirectInSegments, "azurite"


@gcs
@pytest.mark.full
class TestDirectQueueInSegmentsOnGCS(SampleInSegments):
    kind, server = DirectInSegments, "gcs_server"


@moto
@pytest.mark.full
class TestDirectQueueInSegmentsOnMoto(SampleInSegments):
    kind, server = DirectInSegments, "moto_s3"
