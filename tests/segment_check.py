"""A check of a whole segment, every fact of its rows against its index and its entry in the manifest."""

from jqueue.core.blob.segment_object import decode_chunk, key_of
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import RowKey, Segment, SegmentIndex

SAME_TIME = 0.001
"""Seconds by which two times of one row may differ: a line has its times as text."""


class SegmentCheck:
    """Checks a whole segment against its index and its entry in the manifest, chunk by chunk.

    Args:
        segment: its entry in the manifest.
        index: its index, whose checksum was right.
    """

    def __init__(self, segment: Segment, index: SegmentIndex) -> None:
        self._segment = segment
        self._index = index
        self._before: RowKey | None = None

    def chunk(self, number: int, data: bytes) -> str:
        """Check a chunk. Return a fact about a row that contradicts the index or the manifest; nothing if none does.

        Args:
            number: its number. Chunks come in order.
            data: its bytes.

        Raises:
            InvalidBlobError: its rows cannot be read.
        """
        size, rows = self._segment.chunk_rows, self._segment.rows
        first, last = number * size, min((number + 1) * size, rows)
        jobs = decode_chunk(data, number, self._segment, self._index)
        if len(jobs) != last - first:
            return f"chunk {number} has {len(jobs)} rows, and not {last - first}"
        keys = list(map(key_of, jobs))
        wrong = "" if self._begins_like(number, keys[0]) else "its first row is not the one that the index names"
        for row, job, key in zip(range(first, last), jobs, keys, strict=True):
            wrong = wrong or self._fault_of(row, job, key)
            self._before = key
        return wrong and f"chunk {number}: {wrong}"

    def _begins_like(self, number: int, key: RowKey) -> bool:
        first = self._index.chunks[number].first.moved(self._segment.offset)
        return key[:2] == first[:2] and abs(key.since - first.since) <= SAME_TIME

    def _fault_of(self, row: int, job: JobRecord, key: RowKey) -> str:
        segment, unique = self._segment, job.unique_key
        if job.entrypoint != segment.entrypoint:
            return f"row {row} has another entrypoint than the manifest"
        if self._before is not None and _comes_before(key, self._before, segment):
            return f"row {row} belongs before the row above it"
        if row not in self._index.rows_of(job.id):
            return f"the id of row {row} is not in the index"
        if unique is not None and row not in self._index.keys.find(unique):
            return f"the unique key of row {row} is not in the index"
        if key.sequence < segment.least:
            return f"row {row} has a smaller sequence number than the manifest says"
        return ""


def _comes_before(key: RowKey, other: RowKey, segment: Segment) -> bool:
    """Return True if a row must be served before another one. Times that hardly differ do not decide."""
    return key.since < other.since - SAME_TIME if segment.scheduled else key[:2] < other[:2]
