"""The blob as the engine keeps it: a draft, and the line of each job as it stands in the store.

Reading again parses only the lines not seen before; writing encodes only the jobs that changed.
"""

from __future__ import annotations

import logging

from jqueue.core.codec import FinishedTexts, ParsedBlob, encode_header, join_blob, read_state, take_whole
from jqueue.core.lines import encode_asides, encode_job, read_line, set_twins_aside
from jqueue.domain.draft import Draft
from jqueue.domain.errors import shown
from jqueue.domain.models import Job, QueueState, SetAside

logger = logging.getLogger("jqueue")

WARNINGS = 5
"""So many lines are named in the log, when many cannot be read."""


class Blob:
    """A draft and its lines, kept in step.

    Attributes:
        draft: the state, open for change.
        lines_parsed: how many lines have been parsed, ever; for tests that count.
        lines_encoded: how many lines have been encoded, ever.
    """

    def __init__(self) -> None:
        self.draft = Draft()
        self.lines_parsed = 0
        self.lines_encoded = 0
        self._lines: dict[str, bytes] = {}
        self._finished = FinishedTexts()
        self._header_bytes = 0

    def adopt(self, parsed: ParsedBlob, size: int) -> None:
        """Make the draft what a blob of so many bytes says. It must have been rolled back or settled."""
        draft = self.draft
        known = {line: job_id for job_id, line in self._lines.items() if job_id not in draft.dirty}
        unreadable = {aside.line: aside for aside in draft.set_aside}
        lines: dict[str, bytes] = {}
        set_aside = list(parsed.set_aside)
        twins: list[tuple[str, bytes]] = []
        changed = list(parsed.jobs)
        for line in parsed.lines:
            job_id = known.get(line)
            if job_id is None:
                found = unreadable.get(line) or self._parse(line)
                if isinstance(found, SetAside):
                    if take_whole(parsed, found):
                        return self.adopt(parsed, size)
                    set_aside.append(found)
                    continue
                job_id = found.id
                if job_id not in lines:
                    changed.append(found)
            if job_id in lines:
                twins.append((job_id, line))
            else:
                lines[job_id] = line
        present = lines.keys() | {job.id for job in parsed.jobs}
        draft.take_header(parsed.header)
        draft.load([job for job in changed if job.sequence], [job_id for job_id in draft.jobs if job_id not in present])
        placed = [job.evolve(sequence=draft.next_sequence()) for job in changed if not job.sequence]
        draft.load(placed)
        renumbered = draft.renumber()
        draft.set_aside = (*set_aside, *set_twins_aside(twins, lines, set_aside))
        draft.measure(size - parsed.header_bytes)
        self._lines = lines
        draft.dirty = {job.id: None for job in (*placed, *renumbered, *parsed.jobs)}
        self._warn(unreadable)

    def encode(self, header: QueueState) -> bytes:
        """The bytes of the draft under a new header."""
        draft, lines = self.draft, self._lines
        for job_id in draft.dirty:
            job = draft.jobs.get(job_id)
            if job is None:
                lines.pop(job_id, None)
            else:
                lines[job_id] = encode_job(job)
                self.lines_encoded += 1
        draft.dirty.clear()
        asides = encode_asides(draft.set_aside)
        first = encode_header(header, self._finished)
        self._header_bytes = len(first)
        return join_blob(first, [*lines.values(), *asides] if asides else lines.values())

    def look(self, parsed: ParsedBlob) -> QueueState:
        """A blob as a value, beside the draft. Lines that the draft's jobs were read from need no reading."""
        draft = self.draft
        known = {line: draft.jobs[job_id] for job_id, line in self._lines.items() if job_id not in draft.dirty}
        return read_state(parsed, known)

    def settle(self, header: QueueState, size: int) -> None:
        """The draft under this header was committed, as so many bytes."""
        self.draft.take_header(header)
        self.draft.settle()
        self.draft.measure(size - self._header_bytes)

    def _parse(self, line: bytes) -> Job | SetAside:
        self.lines_parsed += 1
        return read_line(line)

    def _warn(self, before: dict[bytes, SetAside]) -> None:
        found = [aside for aside in self.draft.set_aside if aside.line not in before]
        for aside in found[:WARNINGS]:
            logger.warning("job %s cannot be read and was set aside: %s", shown(aside.key), aside.reason)
        if len(found) > WARNINGS:
            logger.warning("and %d more lines cannot be read and were set aside", len(found) - WARNINGS)
