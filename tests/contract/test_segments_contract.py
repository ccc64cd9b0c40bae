"""A broker keeps the queue contract with its waiting jobs in small segments, in memory and on a store.

With `InSegments`, jobs move to segments between commits, whenever the writer gets to it. With `AllInSegments`, every
commit moves all of them.
"""

from typing import Any

import pytest

from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.broker import BrokerQueue
from jqueue.domain.operations import perform
from jqueue.domain.selection import Phase, phase_of
from jqueue.testing.queue_contract import QueueContract
from tests.contract.places import OnAServer, on, without
from tests.contract.test_queue_contract import InVirtualTime
from tests.tiny_segments import segments_of


class InSegments(BlobQueue):
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
        now = self._engine.now()
        jobs = [job async for job in view.jobs() if phase_of(job, now) is not Phase.EXPIRED]
        return view.header.model_copy(update={"jobs": tuple(jobs), "set_aside": view.set_aside})


class AllInSegments(InSegments):
    """A queue that moves all waiting jobs to segments within each commit: no call finds one in its object."""

    def __init__(self, storage, **options):
        super().__init__(storage, **options)
        segments_of(self).writer.sizes.hot_bytes = None  # nothing else spills
        engine: Any = self._engine  # private: no port stands between a commit and its write
        self._write_version, engine._write = engine._write, self._spill_and_write

    async def _spill_and_write(self, outcomes):
        engine, writer = self._engine, segments_of(self).writer
        draft = engine.draft
        while True:
            header, jobs = draft.header, draft.jobs
            ids = [job_id for job_id in jobs.entries if job_id not in jobs.rows.of]
            entries = [jobs.entries[job_id] for job_id in ids]
            stored = await writer._spill(ids, entries, header.queue, writer.sizes.most_rows, header.settings.aging)
            if stored is None or not perform(stored[0], draft, engine.now()):
                break
        await self._write_version(outcomes)


class BrokerInSegments(InSegments, BrokerQueue):
    pass


class BrokerAllInSegments(AllInSegments, BrokerQueue):
    pass


never_full = without("test_the_limit_that_a_queue_has_holds_for_every_writer")
"""Leaves out the test that enqueues until the object is full. It never is, as the jobs do not stay in it."""

never_edited = without(
    "test_a_job_that_cannot_be_read_is_set_aside_and_served_once_mended",
    "test_no_repr_shows_a_payload",
    "test_the_id_of_a_job_that_cannot_be_read_is_not_given_again",
)
"""Leaves out tests that edit the line of a waiting job in the object, where it has none."""


@never_full
@never_edited
class TestBrokerQueueWithAllInMemory(InVirtualTime):
    kind = BrokerAllInSegments


@on("seaweedfs")
@pytest.mark.wide
class TestBrokerQueueOnSeaweedFS(OnAServer, QueueContract):
    kind = BrokerInSegments
    moment = 0.5
