"""Segments that could not be read: the parts, the reasons, and the warning that names each of them.

A reader notes each failed read of a part, and forgets it when the part was read again. So a warning costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from jqueue.domain.errors import JQueueError, ObjectMissingError, StorageFatalError
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, Range, Segment

WARNING = f"segment {FOLDER}"
"""The beginning of the warnings of `stats()` about segments."""

MISSING, CUT_OFF = "it is missing", "it is cut off"

INDEX, OBJECT = "index", "object"
"""Parts of a segment that are no chunks. The second stands for an object that is missing, or that cannot be read."""


def reason_of(error: JQueueError) -> str:
    """Return why a segment cannot be read, for a sentence that names the segment and says what to do."""
    return MISSING if isinstance(error, ObjectMissingError) else str(error)


class DamageNotes:
    """The failed reads of the segments of one queue, until the same parts are read again."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[int | str, str]] = {}

    @contextmanager
    def reading(self, name: str, part: int | str) -> Iterator[None]:
        """Note if a part of a segment cannot be read, or that it is whole.

        Args:
            name: the segment.
            part: the number of a chunk, `INDEX` or `OBJECT`.
        """
        try:
            yield
        except StorageFatalError as error:
            self.note(name, reason_of(error), part)
            raise
        self._parts.get(name, {}).pop(part, None)

    def note(self, name: str, why: str, part: int | str = OBJECT) -> None:
        """Note why a part of a segment cannot be read, until it is read again."""
        self._parts.setdefault(name, {})[part] = why

    def chunks_of(self, name: str) -> list[int]:
        """Return the numbers of the chunks of a segment that could not be read."""
        return [part for part in self._parts.get(name, {}) if isinstance(part, int)]

    def forget(self) -> None:
        """Forget all failed reads."""
        self._parts.clear()

    def warnings(self, segments: Mapping[str, Segment], ranges: Iterable[Range]) -> list[str]:
        """Return a warning for each segment with jobs that could not be read, in the order of the manifest.

        Args:
            segments: the manifest. Segments that are not in it, and chunks whose jobs have all left, are no damage.
            ranges: the claims of ranges.
        """
        held = tuple(ranges)
        found = []
        for name, segment in segments.items():
            claimed = [each for each in held if each.segment == name]
            parts = self._parts.get(name, {}).items()
            reasons = [why for part, why in parts if isinstance(part, str) or _has_jobs(segment, claimed, part)]
            if reasons:
                found.append(warning(name, segment, claimed, reasons[0]))
        return found


def _has_jobs(segment: Segment, claimed: Iterable[Range], chunk: int) -> bool:
    """Return True if jobs of a chunk wait, or are in progress in ranges."""
    first, last = chunk * segment.chunk_rows, (chunk + 1) * segment.chunk_rows
    return not segment.is_chunk_taken(chunk) or any(each.first < last and each.last > first for each in claimed)


def warning(name: str, segment: Segment, held: Iterable[Range], why: str) -> str:
    """Return the sentence that names a segment, the number of its jobs, the reason and what to do.

    Args:
        name: of the segment.
        segment: its entry in the manifest.
        held: the claims of ranges of the segment.
        why: the reason why it cannot be read.
    """
    wait = counted(segment.waiting, "job in it waits", "jobs in it wait")
    claimed = sum(each.rows for each in held)
    more = f" ({claimed:,} more {'is' if claimed == 1 else 'are'} in claimed ranges)" if claimed else ""
    return (
        f"{WARNING}{name} ({segment.entrypoint}) cannot be read, and {wait}{more} until it is restored from a backup, "
        f"or repaired with `jqueue repair`: {why}"
    )
