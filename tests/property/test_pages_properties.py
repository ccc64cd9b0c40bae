"""Pages are lines in order after any change, and a blob read again means the same as to a new reader."""

from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue.core.blob import pages as pages_module
from jqueue.core.blob.codec import JOBS_CLOSE
from jqueue.core.blob.lines import splitting_lines
from jqueue.core.blob.pages import SEPARATOR, Page, Pages
from tests.property.blob_machine import BlobMachine

pytestmark = pytest.mark.wide

HEAD = b'{"jobs": {\n'
IDS = [f"j{number}" for number in range(30)]
ids = st.sampled_from(IDS)
many = st.lists(ids, min_size=1, max_size=12)
steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "drop", "texts", "look", "adopt", "adopt"]), many, st.integers(0, 99)),
    min_size=1,
    max_size=20,
)
sizes = st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 50))


def cut_lines(part):
    return list(splitting_lines(part))


def line_of(job_id, number):
    return f'"{job_id}": {{"n": {number}}}'.encode()


def id_of(line):
    return line.split(b'"')[1].decode()


def edited(lines, chosen, number):
    """Return the lines after the edits of a writer that keeps their order: some gone, changed, new or moved."""
    lines = dict(lines)
    for at, job_id in enumerate(chosen):
        if (number + at) % 4 == 0:
            lines.pop(job_id, None)
        else:
            lines[job_id] = line_of(job_id, number + at)
    if number % 11 == 0:
        lines = dict(reversed(lines.items()))
    return lines


def written(lines, number):
    """Return a blob of these lines, in our layout or a slightly different one, and the bounds of its lines."""
    between = [SEPARATOR, SEPARATOR, SEPARATOR, b",\r\n", b",\n\n", b" ,\n"][number % 6]
    data = HEAD + between.join(lines.values())
    return data + b"\n" + JOBS_CLOSE, len(HEAD), len(data)


def check(pages, lines):
    assert lines == {job_id: line for page in pages for job_id, line in page.lines.items()}
    assert list(lines) == [job_id for page in pages for job_id in page.ids]
    assert len(lines) == len(pages)
    assert all(job_id in pages for job_id in lines)
    assert "another" not in pages
    assert all(len(page) <= pages_module.LINES_IN_PAGE for page in pages)


def check_kept(pages):
    """Check the bounds of the lines kept apart and of the number of pages."""
    apart = [page for page in pages if page._lines is not None]
    assert len(apart) <= pages_module.OPEN_PAGES
    assert set(apart) <= set(pages._open)


def look(pages, lines, blob, doubted):
    """Check that the pieces found by `match` make up the blob, and contain nothing doubted."""
    data, start, end = blob
    found = pages.match(data, start, end, doubted)
    cut = [line for run in found for line in cut_lines(run.text if isinstance(run, Page) else run)]
    assert cut_lines(data[start:end]) == cut
    for page in (run for run in found if isinstance(run, Page)):
        assert not set(doubted) & set(page.ids)
        assert [lines[job_id] for job_id in page.ids] == cut_lines(page.text)
    return found


@given(sizes, steps)
@settings(max_examples=100, deadline=None)
def test_pages_behave_like_one_dict_of_lines(small, todo):
    lines_in_page, open_pages, window = small
    with (
        patch.object(pages_module, "LINES_IN_PAGE", lines_in_page),
        patch.object(pages_module, "OPEN_PAGES", open_pages),
        patch.object(pages_module, "WINDOW", window),
    ):
        pages, lines = Pages(), {}
        for step, chosen, number in todo:
            if step == "put":
                for job_id in chosen:
                    lines[job_id] = line_of(job_id, number)
                    pages.put(job_id, lines[job_id])
            elif step == "drop":
                for job_id in chosen:
                    lines.pop(job_id, None)
                    pages.drop(job_id)
            elif step == "texts":
                texts = pages.texts()
                assert SEPARATOR.join(lines.values()) == SEPARATOR.join(texts)
                assert len(texts) <= 8 + 4 * len(lines) // lines_in_page
                check_kept(pages)
            else:
                theirs = edited(lines, chosen, number)
                found = look(pages, lines, written(theirs, number), chosen[:2])
                if step == "adopt":
                    runs = [
                        run if isinstance(run, Page) else {id_of(line): line for line in cut_lines(run)}
                        for run in found
                    ]
                    pages.replace(runs)
                    lines = theirs
                    check_kept(pages)
            check(pages, lines)
        assert SEPARATOR.join(lines.values()) == SEPARATOR.join(pages.texts())


@given(st.lists(ids, min_size=1, max_size=30, unique=True), st.integers(1, 4), many)
@settings(max_examples=100, deadline=None)
def test_unchanged_pages_are_all_found(present, lines_in_page, changed):
    """Unchanged pages are also found if the blob is laid out as we write it."""
    with patch.object(pages_module, "LINES_IN_PAGE", lines_in_page):
        pages, lines = Pages(), {}
        for job_id in present:
            lines[job_id] = line_of(job_id, 0)
            pages.put(job_id, lines[job_id])
        data, start, end = written(lines, 0)
        found = pages.match(data, start, end, ())
        assert list(pages) == [run for run in found if isinstance(run, Page)]
        assert [] == [line for run in found if not isinstance(run, Page) for line in cut_lines(run)]
        theirs = lines | {job_id: line_of(job_id, 1) for job_id in changed if job_id in lines}
        data, start, end = written(theirs, 0)
        found = [run for run in pages.match(data, start, end, ()) if isinstance(run, Page)]
        assert [page for page in pages if not set(changed) & set(page.ids)] == found


@pytest.mark.parametrize("before", [b"", b" ", b'"x": ', b"7, ", b"\n", b"7\n", b"7,\r\n"])
@pytest.mark.parametrize("behind", [b"", b" ", b" 7", b", 7", b"7", b"\n7", b"\r\n,7"])
def test_a_page_is_never_found_between_partial_lines(before, behind):
    pages, lines = Pages(), {"a": line_of("a", 1), "b": line_of("b", 2)}
    for job_id, line in lines.items():
        pages.put(job_id, line)
    part = before + SEPARATOR.join(lines.values()) + behind
    found = look(pages, lines, (HEAD + part + b"\n}}", len(HEAD), len(HEAD + part)), ())
    assert (before, behind) != (b"", b"") or list(pages) == found


TestBlobReadAgainAndAgain = BlobMachine.TestCase
TestBlobReadAgainAndAgain.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
