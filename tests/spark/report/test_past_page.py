"""The page on the past, made from figures by hand: it extrapolates no rate, and shows a window that stands alone."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("jinja2")

from jqueue import StorageError
from jqueue.spark.report.page import done_per_unit, page_of, write_page
from jqueue.spark.report.past import default_window
from jqueue.spark.report.past_columns import MOST_WINDOWS, Past, PastFigures
from jqueue.spark.report.past_plots import mark_words, window_words
from jqueue.spark.report.past_sections import per
from tests.spark.report.test_report_page import Page

START = datetime(2026, 10, 1, 12, 0, 7, tzinfo=UTC)
TIMES: dict[str, Any] = {
    f"{share}_{name}": seconds
    for name in ("wait", "run")
    for share, seconds in (("median", 0.2), ("p95", 1.5), ("p99", 4.0))
}


def past_with(seconds, done, places=(0,)):
    """A report on so many seconds, with windows at some places."""
    length = default_window(timedelta(seconds=seconds))
    first = datetime.fromtimestamp(START.timestamp() // length * length, UTC)
    windows = tuple(
        PastFigures(start=first + timedelta(seconds=length * place), done=done, enqueued=done, **TIMES)
        for place in places
    )
    total = PastFigures(done=done * len(places), enqueued=done * len(places), **TIMES)
    by_name = (total._replace(entrypoint="mail"),)
    return Past("lake", START, START + timedelta(seconds=seconds), length, total, windows, by_name, (), (), ())


@pytest.mark.parametrize(
    ("seconds", "done", "expected"),
    [
        (0.001, 75, ("second", "75")),
        (40, 1000, ("second", "25")),
        (100, 50, ("second", "0.5")),
        (300, 1000, ("minute", "200")),
        (7200, 1000, ("hour", "500")),
        (120 * 86400, 1_200_000, ("day", "10,000")),
    ],
)
def test_a_rate_is_per_unit_of_time_that_the_report_covers(seconds, done, expected):
    past = past_with(seconds, done)
    assert expected == done_per_unit(past)
    assert f"done per {expected[0]}" in Page(page_of(None, past)).text_of("dt")


@pytest.mark.parametrize(("seconds", "words"), [(40, "per second"), (200, "in 5 seconds each"), (4000, "per minute")])
def test_a_short_time_has_windows_of_seconds(seconds, words):
    length = default_window(timedelta(seconds=seconds))
    assert words == per(length)
    assert seconds / length <= MOST_WINDOWS
    assert window_words(START, length) == ("2026-10-01 12:00:07" if length < 60 else "2026-10-01 12:00")
    assert "12:00:07" == mark_words(START, 1.0)


def test_a_full_disk_is_named_with_the_page(tmp_path):
    page = tmp_path / "page.html"
    page.symlink_to("/dev/full")
    with pytest.raises(StorageError, match=f"^Could not write the page: '{page}': the disk is full; free some space"):
        write_page(page, None, past_with(60, 5))
    page.unlink()
    assert page == write_page(page, None, past_with(60, 5))
    assert page.read_text() == page_of(None, past_with(60, 5))


def test_a_window_without_neighbours_is_a_dot_for_each_percentile():
    page = Page(page_of(None, past_with(60, 5, places=(0, 1, 7))))
    dots = [each for tag, each in page.tags if tag == "circle"]
    assert ["dot p99", "dot p95", "dot median"] * 2 == [
        each["class"] for each in dots if "enqueued" not in each["class"]
    ]
    assert all(float(each["r"]) >= 4 for each in dots)
    traces = [each for tag, each in page.tags if tag == "path"]
    assert all(each["d"].count("M") == 1 and each["d"].count("L") == 1 for each in traces if "p95" in each["class"])
