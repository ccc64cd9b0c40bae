"""Every figure of a report on the past equals the same figure computed by plain Python, and the page shows it."""

from datetime import UTC, timedelta

import pytest

from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.spark.lake import archive
from jqueue.spark.report import PastReport, report
from jqueue.spark.report.past import past_report
from jqueue.spark.report.past_columns import PAST_FAILURE_SCHEMA, PAST_SCHEMA
from tests.spark.lake.lake_world import some_jobs, work
from tests.spark.report.past_events import SCHEMA, START, failures, figures, some_events, window_of
from tests.spark.report.plain_report import NAMES
from tests.spark.report.test_report_page import HOSTILE, Page

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("spark")]


@pytest.fixture
def events():
    return some_events(3, 3000)


@pytest.fixture
def past(spark, events):
    return past_report(spark.createDataFrame(events, SCHEMA).repartition(3), "lake")


def assert_same(expected, found):
    """Compare figures; a mean and a percentile may differ in their last digits."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        assert one[:8] == other[:8]
        assert list(one[8:]) == [pytest.approx(value) for value in other[8:]]


def test_all_figures_equal_a_plain_computation(past, events):
    real = [event for event in events if event[2] is not None]
    assert (min(e[0] for e in events), max(e[0] for e in events)) == (past.since, past.until)
    assert 1800 == past.window
    windows = sorted({window_of(event[0], past.window) for event in real})

    def of(name=None, holder=None, start=None):
        chosen = [
            event
            for event in real
            if name in (None, event[2])
            and holder in (None, event[6])
            and start in (None, window_of(event[0], past.window))
        ]
        return figures(chosen, name, holder, start) if chosen else None

    assert_same([of()], [past.total])
    assert_same([of(start=start) for start in windows], past.windows)
    entrypoints = [of(name) for name in NAMES]
    assert_same(sorted(entrypoints, key=lambda each: -each.done), past.entrypoints)
    holders = [of(holder=holder) for holder in ("a", "b", "<b>")]
    assert_same(sorted(holders, key=lambda each: -each.done), past.holders)
    parts = [part for name in sorted(NAMES) for start in windows if (part := of(name, start=start))]
    assert_same(parts, past.parts)
    assert failures(real, past.window) == list(past.failures)


def test_the_figures_are_frames_too(past):
    assert (PAST_SCHEMA, PAST_FAILURE_SCHEMA) == (past.frame.schema, past.failure_frame.schema)
    assert len(past.parts) == past.frame.count()
    assert past.total.done == past.holder_frame.groupBy().sum("done").collect()[0][0] + _without_holder(past)
    assert past.total.done == past.entrypoint_frame.groupBy().sum("done").collect()[0][0]


def _without_holder(past):
    return past.total.done - sum(each.done for each in past.holders)


def test_the_page_shows_the_past_and_is_safe_with_hostile_names(spark, past, events, tmp_path):
    page = Page(past.to_html(tmp_path / "past.html").read_text())
    assert ["What was done", "How long jobs took", "What failed", "Who did it"] == page.text_of("h2")
    told = [each["aria-label"] for _, each in page.tags if each.get("role") == "img"]
    assert 7 == len(told) == len(page.named("figure"))
    assert f"{past.total.done:,}" in page.text_of("dd")
    assert [] == page.named("script")
    hostile = [(*event[:2], HOSTILE[at % len(HOSTILE)], *event[3:]) for at, event in enumerate(events[1:300])]
    found = past_report(spark.createDataFrame(hostile, SCHEMA), "</h1><script>")
    page = Page(found.to_html(tmp_path / "hostile.html").read_text())
    assert [] == page.named("script") == page.named("b")
    assert not [name for _, each in page.tags for name in each if name.startswith("on")]


def test_a_report_reads_a_lake_and_a_queue(spark, tmp_path, capsys):
    path, lake = tmp_path / "queue.json", str(tmp_path / "lake")
    work(path, some_jobs)
    archive(spark, str(path), lake)
    past = report(spark, lake=lake)
    assert isinstance(past, PastReport)
    assert (12, 9, 3) == (past.total.enqueued, past.total.done, past.total.failed)
    both = report(spark, str(path), lake=lake)
    assert both.past is not None
    assert past.total == both.past.total
    both.print()
    assert {"mail", "ValueError"} <= set(capsys.readouterr().out.split())
    page = Page(both.to_html(tmp_path / "both.html").read_text())
    assert ["Now", "Before"] == [text for text in page.text_of("h2") if text in ("Now", "Before")]
    assert past.total == report(spark, lake=lake, since=past.since, window=timedelta(hours=1)).total
    for wrong, line in (
        ({"since": START.replace(tzinfo=None)}, "since must be aware of its time zone"),
        ({"until": START.astimezone(UTC)}, "the lake has no events in this time"),
        ({"lake": str(tmp_path / "nothing")}, "there is no lake at "),
    ):
        with pytest.raises((InvalidJobError, InvalidURLError), match=line):
            report(spark, **{"lake": lake, **wrong})  # type: ignore[call-overload]
    with pytest.raises(InvalidURLError, match="a report needs a queue or a lake"):
        report(spark)  # type: ignore[call-overload]
