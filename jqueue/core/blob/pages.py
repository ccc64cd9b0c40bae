"""The lines of a blob in runs that are kept joined, so that unchanged lines are copied and compared in one piece.

A *page* is a run of up to some hundred lines. A commit joins all pages, but joins the lines again only in pages with a
changed line. A reader that finds the text of a page in another writer's blob knows all its lines. Every writer leaves a
changed line in its place and adds new ones at the end, so that all writers have the same pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator

from jqueue.domain.slices import Slices, exhaust

LINES_IN_PAGE = 256
"""Maximum number of lines in a page. One change makes a commit join the lines of one page, and then all pages."""

PAGES_PER_SLICE = 8
"""Number of pages handled in one slice."""

OPEN_PAGES = 64
"""Number of pages that keep their lines separately. The others keep only the joined text, which is split when
needed."""

WINDOW = 1 << 17
"""Number of bytes before and after its expected place in which a page is searched for."""

SEPARATOR = b",\n"


class Page:
    """A run of lines, in order.

    Args:
        lines: by job id.

    Attributes:
        text: the lines, joined.
    """

    __slots__ = ("_ids", "_lines", "_text")

    def __init__(self, lines: dict[str, bytes]) -> None:
        self._lines: dict[str, bytes] | None = lines
        self._ids: tuple[str, ...] = ()
        self._text: bytes | None = None

    def __len__(self) -> int:
        return len(self._ids) if self._lines is None else len(self._lines)

    @property
    def ids(self) -> Iterable[str]:
        """The ids of the jobs, in order."""
        return self._ids if self._lines is None else self._lines.keys()

    @property
    def text(self) -> bytes:
        """The lines, joined."""
        if self._text is None:
            assert self._lines is not None
            self._text = SEPARATOR.join(self._lines.values())
        return self._text

    @property
    def lines(self) -> dict[str, bytes]:
        """The lines by job id, for reading."""
        if self._lines is not None:
            return self._lines
        assert self._text is not None
        return dict(zip(self._ids, self._text.split(SEPARATOR), strict=True))

    def open(self) -> dict[str, bytes]:
        """Return the lines by job id, for changing."""
        self._lines, self._text = self.lines, None
        return self._lines

    def close(self) -> None:
        """Keep only the joined text and the job ids."""
        self._ids, self._text, self._lines = tuple(self.ids), self.text, None


class Pages:
    """The lines of all jobs, in the order of the blob.

    Attributes:
        lines_joined: total number of lines that were joined, for tests.
    """

    def __init__(self) -> None:
        self.lines_joined = 0
        self._pages: list[Page] = []
        self._of: dict[str, Page] = {}
        self._open: dict[Page, None] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._of

    def __iter__(self) -> Iterator[Page]:
        return iter(self._pages)

    def without(self, kept: Container[Page]) -> Iterator[Page]:
        """Iterate over all pages but these."""
        return (page for page in self._pages if page not in kept)

    def put(self, job_id: str, line: bytes) -> None:
        """Set the line of a job, in its place or at the end."""
        self.put_all([(job_id, line)])

    def put_all(self, lines: Iterable[tuple[str, bytes]]) -> None:
        """Set the lines of jobs, each in its place or at the end."""
        of, pages = self._of, self._pages
        last: Page | None = None
        changed: dict[str, bytes] = {}
        for job_id, line in lines:
            page = of.get(job_id)
            if page is None:
                page = last
                if page is None or len(changed) >= LINES_IN_PAGE or page is not pages[-1]:
                    page = self._with_room()
                of[job_id] = page
            if page is not last:
                self._open.pop(page, None)
                self._open[page] = None  # the last one opened
                last, changed = page, page.open()
            changed[job_id] = line

    def _with_room(self) -> Page:
        """Return the last page, or a new one behind it if that is full."""
        if not self._pages or len(self._pages[-1]) >= LINES_IN_PAGE:
            self._pages.append(Page({}))
        return self._pages[-1]

    def drop(self, job_id: str) -> None:
        """Remove the line of a job, if it has one."""
        self.drop_all((job_id,))

    def drop_all(self, job_ids: Iterable[str]) -> None:
        """Remove the lines of these jobs. Some of them may have none."""
        last: Page | None = None
        changed: dict[str, bytes] = {}
        for job_id in job_ids:
            page = self._of.pop(job_id, None)
            if page is None:
                continue
            if page is not last:
                self._open[page] = None
                last, changed = page, page.open()
            del changed[job_id]

    def texts(self) -> list[bytes]:
        """Return the text of every page."""
        if not all(self._pages):
            for page in self._pages:
                if not page:
                    self._open.pop(page, None)
            self._pages = [page for page in self._pages if page]
        if self._are_small():
            exhaust(self._repaging())
        self.lines_joined += sum(len(page) for page in self._open if page._text is None)
        texts = [page.text for page in self._pages]
        self._close_some()
        return texts

    def match(self, data: bytes, start: int, end: int, doubted: Iterable[str]) -> list[Page | bytes]:
        """Find our pages in a blob, and return them with the bytes between them.

        Args:
            data: the blob.
            start: offset of its first line.
            end: offset of the end of its last line.
            doubted: ids of jobs whose line here may differ from the store's.
        """
        doubtful = {self._of[job_id] for job_id in doubted if job_id in self._of}
        found: list[Page | bytes] = []
        missed = 0
        for page in self._pages:
            if not page or page in doubtful:
                missed += len(page.text)
                continue
            text = page.text
            expected = start + missed  # if the pages before it have the same size there
            place = data.find(text, max(start, expected - WINDOW), min(end, expected + WINDOW + len(text)))
            if place < 0 or not _is_whole(data, place, place + len(text), end):
                missed += len(text)
                continue
            if place > start:
                found.append(data[start:place])
            found.append(page)
            start, missed = place + len(text), 0
            if data.startswith(SEPARATOR, start):
                start += len(SEPARATOR)
        if start < end:
            found.append(data[start:end])
        return found

    def replace(self, runs: Iterable[Page | dict[str, bytes]]) -> None:
        """Replace all lines.

        Args:
            runs: in order: unchanged pages of ours, and lines by job id.
        """
        exhaust(self.replacing(runs))

    def replacing(self, runs: Iterable[Page | dict[str, bytes]]) -> Slices[None]:
        """Run `replace` in slices of some pages each. Meanwhile, the pages must not be used."""
        pages: list[Page] = []
        for run in runs:
            if isinstance(run, Page):
                pages.append(run)
                continue
            for page in _cut(run):
                pages.append(page)
                if len(pages) % PAGES_PER_SLICE == 0:
                    yield
        before, after = dict.fromkeys(self._pages), dict.fromkeys(pages)
        for number, page in enumerate(before.keys() - after.keys(), 1):
            self._open.pop(page, None)
            for job_id in page.ids:
                del self._of[job_id]
            if number % PAGES_PER_SLICE == 0:
                yield
        for number, page in enumerate(pages, 1):
            if page not in before:
                self._open[page] = None
                self._of.update(dict.fromkeys(page.ids, page))
                self._close_some()
            if number % PAGES_PER_SLICE == 0:
                yield
        self._pages = pages
        if self._are_small():
            yield from self._repaging()
        self._close_some()

    def _are_small(self) -> bool:
        """True if there are too many small pages."""
        return len(self._pages) > 8 + 4 * len(self._of) // LINES_IN_PAGE

    def _repaging(self) -> Slices[None]:
        """Cut all lines into full pages again, in slices."""
        lines: dict[str, bytes] = {}
        for number, page in enumerate(self._pages, 1):
            lines.update(page.lines)
            if number % PAGES_PER_SLICE == 0:
                yield
        yield from self.replacing([lines])

    def _close_some(self) -> None:
        while len(self._open) > OPEN_PAGES:
            page = next(iter(self._open))
            del self._open[page]
            page.close()


def _is_whole(data: bytes, place: int, stop: int, end: int) -> bool:
    """True if this part of a blob consists of whole lines, and does not only look like them."""
    before = data[place - 1 : place] == b"\n" and data[place - 2 : place - 1] in (b",", b"{")
    return before and (stop == end or data[stop : stop + 2] == SEPARATOR)


def _cut(lines: dict[str, bytes]) -> Iterator[Page]:
    """Cut lines into pages."""
    entries = iter(lines.items())
    while some := dict(itertools.islice(entries, LINES_IN_PAGE)):
        yield Page(some)
