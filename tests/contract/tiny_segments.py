"""Queues without a waiting job in their objects: all are in tiny segments. The contract must hold for them, too."""

from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.operations import perform
from jqueue.domain.selection import Phase, phase_of

TINY = {"hot_bytes": None, "fewest_rows": 1, "most_rows": 8, "chunk_rows": 2, "merged": 3, "holes": 2}


class InTinySegments:
    """Makes a queue write all waiting jobs to segments within each commit, merge soon, and keep few rows loaded.

    So the next call finds no waiting job in the blob. `read_state` returns the jobs in segments, too, as the contract
    looks at jobs by it.
    """

    def __init__(self, storage, **options):
        super().__init__(storage, **options)  # type: ignore[call-arg]
        segments = self._engine.segments  # type: ignore[attr-defined]
        if segments is not None:  # a storage of two methods keeps none
            segments.writer.sizes = SegmentSizes(**TINY)  # type: ignore[arg-type]
            segments.loader.rows_kept, segments.loader.rows_ahead = 4, 2
            self._write, self._engine._write = self._engine._write, self._spill_and_write  # type: ignore[attr-defined]

    async def _spill_and_write(self, outcomes):
        engine = self._engine  # type: ignore[attr-defined]
        draft, writer = engine.draft, engine.segments.writer
        while True:
            entries = [
                (job_id, entry) for job_id, entry in draft.jobs.entries.items() if job_id not in draft.jobs.rows.of
            ]
            stored = await writer._spill(entries, draft.header.queue, TINY["most_rows"], draft.header.settings.aging)
            if stored is None or not perform(stored[0], draft, engine.now()):
                break
        await self._write(outcomes)

    async def read_state(self, **options):
        """Return the state with all jobs, those in segments last. A row that has expired stands until it comes up."""
        view = await self.view(**options)  # type: ignore[attr-defined]
        now = self._engine.now()  # type: ignore[attr-defined]
        jobs = [job async for job in view.jobs() if phase_of(job, now) is not Phase.EXPIRED]
        return view.header.model_copy(update={"jobs": tuple(jobs), "set_aside": view.set_aside})


class TinyDirectQueue(InTinySegments, DirectQueue):
    """A direct queue with tiny segments."""


class TinyBrokerQueue(InTinySegments, BrokerQueue):
    """A broker with tiny segments."""
