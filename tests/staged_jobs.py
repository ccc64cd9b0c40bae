"""A task of a bulk enqueue without Spark: jobs become segments that a commit names later."""

from jqueue.core.blob.segment_object import SegmentBuilder
from jqueue.core.blob.segment_staging import JobGroups
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Preparation, claim_of
from jqueue.domain.slices import exhaust


class TaskOfJobs:
    """Jobs of one task.

    Args:
        created_at: the time of the enqueue.
        base: begins the ids that jobs do not have.
        rows, chunk_rows: number of rows of a segment and of a chunk.
    """

    def __init__(self, created_at, base, *, rows, chunk_rows):
        self.jobs, self.created_at = 0, created_at
        self._chunk_rows = chunk_rows
        self._preparation = Preparation(Limits(), 1.0, lambda: f"{base} {self.jobs}", claim_of)
        self._groups = JobGroups(SegmentBuilder, rows, 1 << 20, 1 << 20)

    @property
    def features(self):
        return self._groups.features

    def add(self, new):
        self.jobs += 1
        job = new.prepared(self._preparation).job(self.jobs, self.created_at)
        self._groups.add([job], [new.job_id is not None], self.created_at)

    def full(self):
        return map(self._encoded, self._groups.full())

    def rest(self):
        return map(self._encoded, self._groups.rest())

    def _encoded(self, full):
        group, rows = full
        return exhaust(
            rows.encoding(scheduled=group.scheduled, own_ids=not group.caller_ids, chunk_rows=self._chunk_rows)
        )
