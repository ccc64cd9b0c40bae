"""Segments that could not be read: the parts, the reasons, and the warning that names each of them.

A reader notes each failed read of a part, and forgets it when the part was read again. So a warning costs no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.printable import counted
from jqueue.domain.ranges import Range
from jqueue.domain.segments import FOLDER, Segment, Span, common, joined, size_of, without

WARNING = f"segment {FOLDER}"
"""The beginning of the warnings of `stats()` about segments."""

MISSING, CUT_OFF = "it is missing", "it is cut off"

Damage = dict[str, str]
"""The reason why a segment cannot be read, by the end of its name. Readers of rows add to it."""


class DamageNotes:
    """The failed reads of the segments of one queue, until the same parts are read again."""

    def __init__(self) -> None:
        self._whole: dict[str, str] = {}
        self._parts: dict[str, dict[int | None, str]] = {}

    @contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Note if a segment is missing or the store refuses to read it, or that it is there."""
        try:
            yield
        except StorageFatalError as error:
            self.note(name, MISSING if isinstance(error, ObjectMissingError) else str(error))
            raise
        self._whole.pop(name, None)

    def note(self, name: str, why: str) -> None:
        """Note why a segment cannot be read, until a part of it is read again."""
        self._whole[name] = why

    @contextmanager
    def decoding(self, name: str, part: int | None) -> Iterator[None]:
        """Note if a part of a segment that was read is damaged, or that it is whole.

        Args:
            name: the segment.
            part: the number of the chunk; None is the index.
        """
        try:
            yield
        except InvalidBlobError as error:
            self._parts.setdefault(name, {})[part] = str(error)
            raise
        parts = self._parts.get(name)
        if parts is not None:
            parts.pop(part, None)
            if not parts:
                del self._parts[name]

    def forget(self) -> None:
        """Forget all failed reads."""
        self._whole.clear()
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
            parts = self._parts.get(name, {})
            if name in self._whole:
                found.append(warning(name, segment, claimed, self._whole[name]))
            elif None in parts:
                found.append(warning(name, segment, claimed, parts[None]))
            elif parts and (text := _in_part(name, segment, claimed, parts)):
                found.append(text)
        return found


def warning(name: str, segment: Segment, held: Iterable[Range], why: str, within: Iterable[Span] | None = None) -> str:
    """Return the sentence that names a segment, the number of its jobs, the reason and what to do.

    Args:
        name: of the segment.
        segment: its entry in the manifest.
        held: the claims of ranges of the segment.
        why: the reason why it cannot be read.
        within: the rows that cannot be read; None for all.
    """
    rows = [(0, segment.rows)] if within is None else joined(within)
    waiting, claimed = jobs_in(segment, held, rows)
    wait = counted(waiting, "job in it waits", "jobs in it wait")
    more = f" ({claimed:,} more {'is' if claimed == 1 else 'are'} in claimed ranges)" if claimed else ""
    in_part = "" if within is None else " in part"
    return (
        f"{WARNING}{name} ({segment.entrypoint}) cannot be read{in_part}, and {wait}{more} until it is restored from a "
        f"backup, or given up with `jqueue drop-segment`: {why}"
    )


def jobs_in(segment: Segment, held: Iterable[Range], rows: Iterable[Span]) -> tuple[int, int]:
    """Return the number of waiting jobs in rows of a segment, and the number of jobs there in claimed ranges.

    Args:
        segment: its entry in the manifest.
        held: the claims of ranges of the segment.
        rows: the rows, as spans.
    """
    spans = joined(rows)
    waiting = without(spans, [(0, segment.next), *segment.taken])
    return size_of(waiting), sum(size_of(common(each.spans, spans)) for each in held)


def _in_part(name: str, segment: Segment, held: Iterable[Range], parts: Mapping[int | None, str]) -> str | None:
    """Return the warning for damaged chunks; None if no job is in them."""
    claimed, size = tuple(held), segment.chunk_rows
    spans = {chunk: [(chunk * size, min((chunk + 1) * size, segment.rows))] for chunk in parts if chunk is not None}
    of_jobs = [chunk for chunk in sorted(spans) if any(jobs_in(segment, claimed, spans[chunk]))]
    if not of_jobs:
        return None
    within = [span for chunk in of_jobs for span in spans[chunk]]
    return warning(name, segment, claimed, parts[of_jobs[0]], within)
