"""Queues that keep waiting jobs in segments of a few rows, and remove litter after seconds instead of an hour."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TypeVar

from jqueue import BrokerQueue, DirectQueue
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.domain.segments import Retention

KEPT_SECONDS = 5.0
"""Age in seconds at which litter is removed, and for which a segment is kept that has left the manifest."""

YOUNG_SECONDS = 2.0
"""Seconds within which a segment must be named."""

Queue = TypeVar("Queue", DirectQueue, BrokerQueue)

TINY = SegmentSizes(hot_bytes=0, fewest_rows=1, most_rows=12, chunk_rows=2, merged=3, holes=2)
IDLE = SegmentSizes(hot_bytes=None, merged=1000, holes=1000)
"""Sizes with which segments are read, and not written."""


def with_segments(queue: Queue, sizes: SegmentSizes = TINY, kept: float = KEPT_SECONDS) -> Queue:
    """Let a queue write small segments, or none. It collects after `kept` seconds."""
    engine, collector = queue._engine, queue._collector
    assert engine.segments is not None
    assert collector is not None
    engine.segments.writer.sizes = sizes
    engine.segments.writer.named_within = timedelta(seconds=YOUNG_SECONDS)
    engine.segments.loader.rows_kept, engine.segments.loader.rows_ahead = 8, 0
    engine.retention = Retention(KEPT_SECONDS, YOUNG_SECONDS)
    collector.kept_for, collector.interval = timedelta(seconds=kept), 1.0
    return queue


def drawn(dice: Random) -> SegmentSizes:
    """Return sizes for one of several processes: some spill everything, some a part, some nothing."""
    return SegmentSizes(
        hot_bytes=dice.choice((0, 0, 500, 3000, None)),
        fewest_rows=dice.choice((1, 2)),
        most_rows=dice.choice((8, 24)),
        chunk_rows=dice.choice((1, 2, 3)),
        merged=dice.choice((2, 3)),
        holes=dice.choice((1, 3)),
    )
