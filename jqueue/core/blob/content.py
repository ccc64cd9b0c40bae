"""The blob as the engine keeps it: a draft, and the line of each job as it is in the store.

A read parses only new lines. A write encodes only the jobs that changed.
"""

from __future__ import annotations

from collections.abc import Container

from jqueue.core.blob.codec import (
    Contents,
    HeaderTexts,
    ParsedBlob,
    encode_header,
    join_blob,
    reading_lines,
)
from jqueue.core.blob.lines import encode_asides, encode_jobs
from jqueue.core.blob.pages import Page, Pages
from jqueue.core.engine.lazy_state import LazyState
from jqueue.domain.draft import Draft
from jqueue.domain.errors import shown
from jqueue.domain.job_table import Packed, unpacked
from jqueue.domain.models import Job, QueueState, SetAside
from jqueue.domain.printable import counted
from jqueue.domain.slices import JOBS_PER_SLICE, LINES_PER_SLICE, Slices, exhaust
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

WARNINGS = 5
"""Maximum number of unreadable lines that are named in the log; the others are counted."""


class Blob:
    """A draft and its lines, kept in step.

    Long work is a generator that yields between slices, so that the event loop gets a turn.

    Attributes:
        draft: the state, open for change.
        pages: the lines of its jobs, as they are in the store, or were in a write that did not land.
        lines_parsed: total number of lines that were parsed, for tests.
        lines_encoded: total number of lines that were encoded, for tests.
    """

    def __init__(self) -> None:
        self.draft = Draft()
        self.pages = Pages()
        self.lines_parsed = 0
        self.lines_encoded = 0
        self._texts = HeaderTexts()
        self._header_bytes = 0
        self._in_step = True  # True if the pages hold the lines of all jobs of the draft, except dirty ones

    def adopt(self, parsed: ParsedBlob, size: int) -> None:
        """Set the draft to the content of a blob of this size in bytes. It must have been rolled back or settled."""
        exhaust(self.adopting(parsed, size))

    def adopting(self, parsed: ParsedBlob, size: int) -> Slices[None]:
        """Run `adopt` in slices. If it does not run to its end, the draft is unusable."""
        read = yield from self._reading(parsed)
        yield from self._take_over(parsed, read, size)

    def encode(self, header: QueueState) -> bytes:
        """Return the bytes of the draft under a new header."""
        return exhaust(self.encoding(header))

    def encoding(self, header: QueueState) -> Slices[bytes]:
        """Run `encode` in slices."""
        draft, pages, entries, rows = self.draft, self.pages, self.draft.jobs.entries, self.draft.jobs.rows.of
        dirty = list(draft.jobs.dirty)
        for start in range(0, len(dirty), LINES_PER_SLICE):
            if start:
                yield
            some = dirty[start : start + LINES_PER_SLICE]
            there = [job_id for job_id in some if job_id in entries and job_id not in rows]
            if len(there) < len(some):
                pages.drop_all([job_id for job_id in some if job_id not in entries or job_id in rows])
            changed = [entry if type(entry := entries[job_id]) is Job else unpacked(job_id, entry) for job_id in there]
            pages.put_all(zip(there, encode_jobs(changed), strict=True))
            self.lines_encoded += len(there)
        draft.jobs.dirty.clear()
        if draft.finished_rewritten:
            self._texts.finished.doubt()
            draft.finished_rewritten = False
        first = encode_header(header, self._texts)
        self._header_bytes = sum(map(len, first))
        return join_blob(first, [*pages.texts(), *encode_asides(draft.set_aside)])

    def looking(self, parsed: ParsedBlob) -> Slices[LazyState]:
        """Return the content of a blob, in slices, and leave the draft as it is. The draft may change meanwhile."""
        entries = dict(self.draft.jobs.entries)
        ids = {page: tuple(page.ids) for page in self.pages}  # no copy if the page is closed
        read = yield from self._reading(parsed)
        found: dict[str, Job | Packed] = {job.id: job for job in parsed.jobs}
        for run in read.runs:
            for job_id in ids[run] if isinstance(run, Page) else run:
                found[job_id] = read.jobs.get(job_id) or entries[job_id]
                if len(found) % JOBS_PER_SLICE == 0:
                    yield
        return LazyState(parsed.header, tuple(read.set_aside), found)

    def settle(self, header: QueueState, size: int) -> None:
        """Note that the draft was committed under this header, as a blob of this size in bytes."""
        self.draft.take_header(header)
        self.draft.settle()
        self.draft.measure(size, self._header_bytes)

    def _reading(self, parsed: ParsedBlob) -> Slices[Contents]:
        """Read a blob. Lines that the draft's jobs were read from, or written to, are not parsed again."""
        runs, known, unreadable = self._known_of(parsed)
        read = yield from reading_lines(parsed, runs, known, unreadable)
        if read.repeats_a_page:
            self.lines_parsed += read.parsed
            read = yield from reading_lines(parsed, [parsed.text], {}, {})
        self.lines_parsed += read.parsed
        return read

    def _take_over(self, parsed: ParsedBlob, read: Contents, size: int) -> Slices[None]:
        """Set the draft and the lines to the content that was read."""
        draft, pages = self.draft, self.pages
        unreadable = {aside.line for aside in draft.set_aside}
        kept = {run for run in read.runs if isinstance(run, Page)}
        present = {*read.ids, *(job.id for job in parsed.jobs)} if parsed.jobs else read.ids
        gone = [job_id for page in pages.without(kept) for job_id in page.ids]
        self._in_step = False
        yield from pages.replacing(read.runs)
        draft.take_header(parsed.header)
        hot = draft.jobs.entries.keys() - draft.jobs.rows.of.keys() if draft.jobs.rows.of else draft.jobs.entries
        removed = [job_id for job_id in (*gone, *draft.jobs.dirty) if job_id not in present and job_id in hot]
        draft.load([], dict.fromkeys(removed))
        draft.load(parsed.jobs)
        unplaced: list[Job] = []
        for number, (job_id, entry) in enumerate(read.jobs.items(), 1):
            if not draft.jobs.put_waiting(job_id, entry):
                job = unpacked(job_id, entry)
                if job.sequence:
                    draft.load([job])
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
        self._in_step = True
        self._warn(unreadable)

    def _known_of(self, parsed: ParsedBlob) -> tuple[list[Page | bytes], dict[bytes, str], dict[bytes, SetAside]]:
        """Return the known parts of a blob: its lines in runs, job ids by known lines, and known unreadable lines."""
        if not self._in_step:
            return [parsed.text], {}, {}
        dirty = self.draft.jobs.dirty
        runs: list[Page | bytes] = [parsed.text]
        if parsed.data:
            runs = self.pages.match(parsed.data, parsed.first, parsed.end, dirty)
        others = [page.lines for page in self.pages.without({run for run in runs if isinstance(run, Page)})]
        known = {line: job_id for lines in others for job_id, line in lines.items() if job_id not in dirty}
        return runs, known, {aside.line: aside for aside in self.draft.set_aside}

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
