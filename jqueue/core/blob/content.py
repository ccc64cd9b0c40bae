"""The blob as the engine keeps it: a draft, and the line of each job as it is in the store.

A read parses only new lines. A write encodes only the jobs that changed.
"""

from __future__ import annotations

from collections.abc import Container

from jqueue.core.blob.codec import (
    Contents,
    ParsedBlob,
    encode_header,
    join_blob,
    reading_lines,
)
from jqueue.core.blob.lines import encode_asides, encode_job
from jqueue.domain.draft import Draft
from jqueue.domain.errors import shown
from jqueue.domain.header import Header, SetAside
from jqueue.domain.job import JobRecord
from jqueue.domain.printable import counted
from jqueue.domain.sequence_numbers import number_unnumbered
from jqueue.domain.slices import LINES_PER_SLICE, Slices, exhaust
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

WARNINGS = 5
"""Maximum number of unreadable lines that are named in the log; the others are counted."""


class Blob:
    """A draft and its lines, kept in step.

    Long work is a generator that yields between slices, so that the event loop gets a turn.

    Attributes:
        draft: the state, open for change.
        lines: the line of each job as it is in the store, or was in a write that did not land, in order.
        lines_parsed: total number of lines that were parsed, for tests.
        lines_encoded: total number of lines that were encoded, for tests.
    """

    def __init__(self) -> None:
        self.draft = Draft()
        self.lines: dict[str, bytes] = {}
        self.lines_parsed = 0
        self.lines_encoded = 0
        self._header_bytes = 0

    def adopt(self, parsed: ParsedBlob, size: int) -> None:
        """Set the draft to the content of a blob of this size in bytes. It must have been rolled back or settled."""
        exhaust(self.adopting(parsed, size))

    def adopting(self, parsed: ParsedBlob, size: int) -> Slices[None]:
        """Run `adopt` in slices. If it does not run to its end, the draft is unusable."""
        draft = self.draft
        unreadable = {aside.line for aside in draft.set_aside}
        read = yield from self._reading(parsed)
        present = read.lines.keys() | {job.id for job in parsed.jobs}
        hot = draft.jobs.keys() - draft.jobs.rows.of.keys()
        self.lines = read.lines
        draft.take_header(parsed.header)
        draft.load(parsed.jobs, [job_id for job_id in list(draft.jobs) if job_id in hot and job_id not in present])
        unplaced: list[JobRecord] = []
        for number, job in enumerate(read.jobs.values(), 1):
            if job.sequence:
                draft.jobs.put(job)
            else:
                unplaced.append(job)
            if number % LINES_PER_SLICE == 0:
                yield
        for job_id in draft.jobs.rows.of.keys() & read.jobs.keys() if draft.jobs.rows.of else ():
            draft.jobs.rows.release(job_id)  # an operator has copied the row into the blob
        placed = [job.evolve(sequence=draft.next_sequence()) for job in unplaced]
        draft.load(placed)
        renumbered = draft.renumber()
        draft.set_aside = tuple(read.set_aside)
        draft.measure(size, parsed.header_bytes)
        draft.jobs.dirty = {job.id: None for job in (*placed, *renumbered, *parsed.jobs)} | dict.fromkeys(read.undated)
        self._warn(unreadable)

    def encode(self, header: Header) -> bytes:
        """Return the bytes of the draft under a new header."""
        return exhaust(self.encoding(header))

    def encoding(self, header: Header) -> Slices[bytes]:
        """Run `encode` in slices."""
        draft, lines, jobs, rows = self.draft, self.lines, self.draft.jobs, self.draft.jobs.rows.of
        for number, job_id in enumerate(jobs.dirty, 1):
            job = jobs.get(job_id)
            if job is None or job_id in rows:
                lines.pop(job_id, None)
            else:
                lines[job_id] = encode_job(job)
                self.lines_encoded += 1
            if number % LINES_PER_SLICE == 0:
                yield
        jobs.dirty.clear()
        first = encode_header(header)
        self._header_bytes = len(first)
        return join_blob(first, [*lines.values(), *encode_asides(draft.set_aside)])

    def looking(self, parsed: ParsedBlob) -> Slices[tuple[dict[str, JobRecord], tuple[SetAside, ...]]]:
        """Return the jobs of a blob and its lines that are set aside, in slices.

        The draft stays as it is, and may change meanwhile.
        """
        known = dict(self.draft.jobs)
        read = yield from self._reading(parsed)
        found = {job.id: job for job in parsed.jobs}
        found |= {job_id: read.jobs.get(job_id) or known[job_id] for job_id in read.lines}
        if (placed := number_unnumbered(jobs := list(found.values()))) is not jobs:
            found = {job.id: job for job in placed}
        return found, tuple(read.set_aside)

    def settle(self, header: Header, size: int) -> None:
        """Note that the draft was committed under this header, as a blob of this size in bytes."""
        self.draft.take_header(header)
        self.draft.settle()
        self.draft.measure(size, self._header_bytes)

    def _reading(self, parsed: ParsedBlob) -> Slices[Contents]:
        """Read a blob. Lines that the draft's jobs were read from, or written to, are not parsed again."""
        dirty = self.draft.jobs.dirty
        known = {line: job_id for job_id, line in self.lines.items() if job_id not in dirty}
        read = yield from reading_lines(parsed, known, {aside.line: aside for aside in self.draft.set_aside})
        self.lines_parsed += len(read.jobs)
        return read

    def _warn(self, before: Container[bytes]) -> None:
        found = [aside for aside in self.draft.set_aside if aside.line not in before]
        for aside in found[:WARNINGS]:
            logger.warning(
                "job %s cannot be read and is set aside: %s. Mend or remove its line in the queue's object",
                shown(aside.key),
                aside.reason,
            )
        if len(found) > WARNINGS:
            more = counted(
                len(found) - WARNINGS,
                "more line cannot be read as a job and is set aside",
                "more lines cannot be read as jobs and are set aside",
            )
            logger.warning("%s", more)
