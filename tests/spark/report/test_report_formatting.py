"""Durations, counts and names in the text of a report."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.domain.counting import counted
from jqueue.spark.report.formatting import ahead, duration, mean, name, short_names


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (0, "0 s"),
        (0.0004, "1 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (2.34, "2.3 s"),
        (119, "119 s"),
        (120, "2 min"),
        (330, "5.5 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172799, "48 h"),
        (172800, "2 d"),
        (1e9, "11,574 d"),
    ],
)
def test_a_duration_has_two_or_three_digits(seconds, words):
    assert words == duration(seconds)


def test_times_counts_and_means_have_their_words():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert "in 90 s" == ahead(now + timedelta(seconds=90), now)
    assert "" == ahead(None, now)
    assert ("1 job", "2 jobs", "1,000 claims look") == (
        counted(1, "job"),
        counted(2, "job"),
        counted(1000, "claim looks", "claims look"),
    )
    assert ("2", "1.33", "") == (mean(2.0), mean(4 / 3), mean(None))


def test_a_long_name_is_cut_in_the_middle():
    assert "short" == name("short")
    cut = name("begin" + "x" * 500 + "end")
    assert 40 == len(cut)
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert "…" in cut


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], []),
        (["/a/b.json"], ["b.json"]),
        (["/a/b.json", "/a/c.json"], ["b.json", "c.json"]),
        (["/a/b.json", "/c/b.json", "/c/d.json"], ["a/b.json", "c/b.json", "d.json"]),
        (["b.json", "a/b.json"], ["b.json", "a/b.json"]),
        (["s3://x/q/", "s3://y/q/"], ["x/q/", "y/q/"]),
    ],
)
def test_queues_are_labelled_by_the_distinct_ends_of_their_names(names, short):
    assert dict(zip(names, short, strict=True)) == short_names(names)
