"""Every figure of a report equals the same figure computed by plain Python."""

import math
import os
import random
from datetime import timedelta, timezone

import pytest

from jqueue.spark.report.columns import (
    AGE_NAMES,
    AGES,
    ATTEMPT_NAMES,
    ATTEMPTS,
    FAILURE_SCHEMA,
    FIGURES_SCHEMA,
    HISTOGRAM_SCHEMA,
    EntrypointFigures,
    Failure,
    HistogramBucket,
)
from jqueue.spark.report.reading import report_of
from tests.spark.report.plain_report import (
    ERRORS,
    NAMES,
    NOW,
    SCHEMA,
    Line,
    failures,
    histogram,
    some_lines,
    standings,
    totals,
)

pytestmark = pytest.mark.wide

QUEUES = ("a", "b", "without jobs")


def reported(spark, lines, queues=QUEUES, now=NOW):
    return report_of(spark.createDataFrame([line.cells() for line in lines], SCHEMA), queues, now)


def same(expected, actual):
    """True if two rows are equal. Means and percentiles are sums, and may differ in the last digits."""
    return all(
        math.isclose(one, other, rel_tol=1e-9) if isinstance(one, float) and isinstance(other, float) else one == other
        for one, other in zip(expected, actual, strict=True)
    )


def check(lines, found, queues=QUEUES):
    expected = standings(lines)
    assert [each[:2] for each in expected] == [each[:2] for each in found.standings]
    for one, other in zip(expected, found.standings, strict=True):
        assert same(one, other), f"{one} is not {other}"
    for name, total in totals(lines, queues).items():
        assert same(total, found.totals[name]), f"{total} is not {found.totals[name]}"
    assert failures(lines) == found.failures
    assert histogram(lines, Line.age, AGES) == found.ages
    assert histogram(lines, Line.turnaround, AGES) == found.turnarounds
    assert histogram(lines, lambda line: line.tries, ATTEMPTS) == found.attempts


HAND_MADE = [
    Line("a", "mail", created_at=NOW - timedelta(minutes=10)),
    Line("a", "mail", created_at=NOW - timedelta(days=1), run_at=NOW - timedelta(seconds=30)),
    Line("a", "mail", run_at=NOW + timedelta(hours=2)),
    Line("a", "mail", run_at=NOW + timedelta(hours=1), expires_at=NOW - timedelta(hours=1)),
    Line("a", "mail", expires_at=NOW),
    Line("a", "mail", created_at=NOW + timedelta(seconds=5)),
    Line("a", "mail", status="in_progress", attempt=2, heartbeat_at=NOW - timedelta(seconds=301)),
    Line("a", "mail", status="in_progress", attempt=1, heartbeat_at=NOW - timedelta(seconds=300)),
    Line("b", "mail", status="in_progress", attempt=1, heartbeat_at=NOW - timedelta(seconds=20), claim_timeout=10.0),
    Line("b", "mail", status="dead", attempt=308, attempts_before=300, error="ValueError: 451"),
    Line("b", "mail", status="completed", attempt=1, created_at=NOW - timedelta(seconds=7), finished_at=NOW),
    Line(
        "b",
        "x" * 500,
        status="completed",
        attempt=3,
        error="the server said 451",
        finished_at=NOW - timedelta(seconds=1),
    ),
]


def test_the_figures_of_a_hand_made_state_match_plain_python(spark):
    found = reported(spark, HAND_MADE)

    check(HAND_MADE, found)
    mail = found.standings[0]
    assert (8, 3, 2, 2, 1) == (mail.jobs, mail.ready, mail.scheduled, mail.in_progress, mail.expired)
    assert (600.0, 30.0, NOW + timedelta(hours=1)) == (mail.oldest_age, mail.median_age, mail.next_at)
    assert 1 == mail.stale
    assert 1 == found.totals["b"].stale
    assert EntrypointFigures("without jobs", None) == found.totals["without jobs"]
    assert (7.0, 0.0) == tuple(each.longest_turnaround for each in found.standings[1:])
    assert Failure("b", "mail", "ValueError", 1, 1, 0, 0) in found.failures


@pytest.mark.parametrize("size", [500, *(pytest.param(size, marks=pytest.mark.full) for size in (1, 2, 7, 5000))])
def test_the_figures_of_random_states_match_plain_python(spark, size):
    seed = int(os.environ.get("REPORT_SEED", random.randrange(1 << 32)))
    print(f"REPORT_SEED={seed}")
    lines = some_lines(seed, size)
    check(lines, reported(spark, lines))


def test_a_queue_without_jobs_has_zeros_and_no_rows(spark):
    found = reported(spark, [], ("empty",))

    assert () == found.standings == found.failures == found.ages == found.attempts
    assert EntrypointFigures(None, None) == found.totals[None]
    assert [] == found.frame.collect() == found.failure_frame.collect() == found.histogram_frame.collect()


def test_the_frames_hold_the_figures_of_the_report(spark):
    found = reported(spark, HAND_MADE)

    first, *_ = found.frame.collect()
    assert found.standings[0]._replace(next_at=None) == EntrypointFigures(**{**first.asDict(), "next_at": None})
    assert found.frame.where("next_at = timestamp '2026-11-21 13:00:00 UTC'").count() == 1
    assert {each[:3] for each in found.failures} == {tuple(row)[:3] for row in found.failure_frame.collect()}
    kinds = found.histogram_frame.groupBy("histogram").agg({"jobs": "sum"}).collect()
    assert {("ages", 3), ("turnarounds", 2), ("attempts", len(HAND_MADE))} == set(map(tuple, kinds))


@pytest.mark.full
def test_figures_do_not_depend_on_time_zones(spark):
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        check(HAND_MADE, reported(spark, HAND_MADE, now=NOW.astimezone(timezone(timedelta(hours=-7)))))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_names_are_complete_and_errors_are_reduced_to_their_class(spark):
    lines = [
        *(Line(error=error, status="dead") for error in ERRORS),
        *(Line(entrypoint=name) for name in NAMES),
    ]
    found = reported(spark, lines, ("q",))

    assert {"e", *NAMES} == {each.entrypoint for each in found.standings}
    assert set(ERRORS.values()) == {each.error for each in found.failures}


def test_rows_and_columns_have_the_same_fields():
    assert list(EntrypointFigures._fields) == FIGURES_SCHEMA.names
    assert list(Failure._fields) == FAILURE_SCHEMA.names
    assert list(HistogramBucket._fields) == HISTOGRAM_SCHEMA.names
    assert (len(AGES), len(ATTEMPTS)) == (len(AGE_NAMES), len(ATTEMPT_NAMES))
