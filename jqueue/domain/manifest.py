"""The manifest in a draft: the entries of the header, and the rows that the draft has taken since the last commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jqueue.domain.segments import Segment, SegmentIndex, Span, object_of, without


class Manifest:
    """The entries of all segments of one draft.

    Attributes:
        segments: the entries by name, in the header of the draft. Rows in `taken` are not marked in them.
        committed: the entries as of the last commit.
        taken: the rows that the draft has taken since the last commit, by the name of their entry.
        indexes: the indexes that are loaded, by segment.
    """

    def __init__(self) -> None:
        self.segments: Mapping[str, Segment] = {}
        self.committed: Mapping[str, Segment] = {}
        self.taken: dict[str, set[int]] = {}
        self.indexes: dict[str, SegmentIndex] = {}
        self._advanced: dict[str, Segment] = {}  # entries that `after` has made for the commit under way

    def adopt(self, segments: Mapping[str, Segment]) -> tuple[set[str], set[str]]:
        """Take over another manifest.

        Returns:
            The names of the entries that have changed or left, and those of them that did so by another commit than
            that of this draft, which took rows.
        """
        before, draft, advanced = self.committed, self.segments, self._advanced
        self.segments, self.committed, self._advanced = segments, dict(segments), {}
        self.taken.clear()
        changed = ((name, each) for name, each in before.items() if segments.get(name) is not each)
        moved = {name for name, each in changed if segments.get(name) != each}
        ours = moved & advanced.keys()
        return moved, moved - {
            name for name in ours if segments.get(name) is advanced[name] and draft.get(name) is before[name]
        }

    @property
    def objects(self) -> set[str]:
        """Names of the segments."""
        return set(map(object_of, self.segments))

    def entries_of(self, name: str) -> dict[str, Segment]:
        """Return the entries for a segment, by their names."""
        return {its: each for its, each in self.segments.items() if object_of(its) == name}

    def leases(self) -> dict[str, Segment]:
        """Return the entries that are leased, by their names, which are the ids of the leases."""
        return {name: each for name, each in self.segments.items() if each.is_leased}

    def is_there(self, name: str, row: int) -> bool:
        """Return True if a row is one of an entry: its job waits, or is leased."""
        return row not in self.taken.get(name, ()) and not self.segments[name].is_taken(row)

    def spans_there(self, name: str) -> list[Span]:
        """Return the rows of a segment whose jobs wait, or are leased, as `is_there` does one by one."""
        row_spans = list[Span]()
        for its, entry in self.entries_of(name).items():
            row_spans += without(entry.spans, ((row, row + 1) for row in self.taken.get(its, ())))
        return sorted(row_spans)

    def current(self, name: str) -> Segment | None:
        """Return the entry of a segment, with the rows that the draft has taken; None if there is no such segment."""
        segment, taken = self.segments.get(name), self.taken.get(name)
        if segment is None or not taken:
            return segment
        return self.advanced(name, segment, ((row, row + 1) for row in taken))

    def advanced(self, name: str, segment: Segment, spans: Iterable[Span]) -> Segment:
        """Return an entry with more rows taken, and with the head that follows from them."""
        after, index = segment.evolve(taken=segment.taking(spans)), self.indexes.get(object_of(name))
        chunk = min(after.chunk_of(after.next), segment.chunks - 1)
        if index is None or chunk == segment.chunk_of(segment.next):
            return after
        return after.evolve(head=index.chunks[chunk].first.moved(segment.offset), oldest=index.oldest[chunk])

    def after(self) -> Mapping[str, Segment]:
        """Return the entries with the rows that the draft has taken. It is another object only if it differs."""
        if not self.taken and all(each.is_leased or each.next < each.rows for each in self.segments.values()):
            return self.segments
        current = ((name, self.current(name)) for name in self.taken)
        self._advanced = {name: entry for name, entry in current if entry is not None}
        entries = {**self.segments, **self._advanced}
        return {name: each for name, each in entries.items() if each.is_leased or each.next < each.rows}
