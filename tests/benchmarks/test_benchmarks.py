"""The benchmarks themselves: their statistics, their reports, and that their rows can be run."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import machine, report
from benchmarks.__main__ import application
from benchmarks.contest import PROGRAMS, Contestant, Line, Measure, Row, against, alone
from benchmarks.environments import REQUIREMENTS, direct_requirements
from benchmarks.figures import Ratio, Target, medians, number, ratio_of
from benchmarks.format_rows import ORIGINALS, format_rows
from benchmarks.page import BEGIN, END, markdown, put
from benchmarks.peers import PEERS, WORKERS
from benchmarks.plot import Point, points_of
from benchmarks.rows import all_rows
from benchmarks.runner import (
    ProgramFailedError,
    Record,
    RowResult,
    in_short,
    outcome_of,
    parse_result,
    runs_of,
)

ROOT = Path(__file__).parents[2]
ROWS = all_rows()


def record(name, *runs, **more):
    return Record(Contestant(name, "here", PROGRAMS / "depth.py"), list(runs), **more)


# Statistics


def test_the_median_of_a_figure_uses_the_runs_that_have_it():
    assert {"a": 2, "b": 7.5} == medians([{"a": 1, "b": 5}, {"a": 2}, {"a": 300, "b": 10}])


def test_a_ratio_compares_medians_and_its_range_compares_pairs_of_runs():
    assert Ratio(2.0, 1.0, 6.0) == ratio_of([10, 20, 60], [10, 10, 10])


def test_a_failed_run_leaves_its_pair_out_of_the_range():
    assert Ratio(3.0, 4.0, 4.0) == ratio_of([20, None, 40], [None, 10, 10])


@pytest.mark.parametrize(("ours", "theirs"), [([None], [1]), ([1], [None]), ([1], [0]), ([], [])])
def test_a_ratio_requires_two_figures(ours, theirs):
    assert ratio_of(ours, theirs) is None


@pytest.mark.parametrize(
    ("target", "met", "missed"), [(Target(">=", 5), 5, 4.99), (Target("<=", 5), 5, 5.01), (Target(">", 1), 1.01, 1)]
)
def test_a_target_is_met_or_not(target, met, missed):
    assert target.is_met_by(met)
    assert not target.is_met_by(missed)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.01234, "0.0123"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_a_figure_is_shown_with_its_significant_digits(value, text):
    assert text == number(value)


def test_a_target_applies_to_the_ratio_of_two_contestants():
    records = {"jqueue": record("jqueue", {"x": 10}, {"x": 30}), "other": record("other", {"x": 5}, {"x": 10})}
    outcome = outcome_of(against("x", "other", Target(">=", 3), "x"), records)
    assert (20, 7.5, Ratio(20 / 7.5, 2, 3), False) == (outcome.ours, outcome.theirs, outcome.ratio, outcome.met)


def test_a_target_applies_to_jqueue_alone_or_beside_a_control():
    records = {"jqueue": record("jqueue", {"x": 10, "y": 2})}
    measures = Measure("jqueue", "x"), Measure("jqueue", "y")
    assert outcome_of(alone("x", Target("<=", 10), "x"), records).met is True
    assert outcome_of(Line("x", *measures, Target("<=", 9), is_control=True), records).met is False


def test_a_missing_figure_has_a_reason_and_meets_no_target():
    records = {"jqueue": record("jqueue", {"x": 10}), "other": record("other", absent="redis is not installed")}
    outcome = outcome_of(against("x", "other", Target(">=", 1), "x"), records)
    assert (None, "other: redis is not installed") == (outcome.met, outcome.reason)


def test_failed_runs_are_reported_beside_successful_ones():
    records = {"jqueue": record("jqueue", {"x": 1}, None, errors=["failed with status 1: a\nb\nValueError: c"])}
    outcome = outcome_of(alone("x", None, "x"), records)
    assert "jqueue: 1 of 2 runs failed: failed with status 1: ValueError: c" == outcome.reason


def test_an_error_is_shortened_to_its_first_and_last_line():
    assert "took longer than 3 s" == in_short("took longer than 3 s")
    assert "failed with status 1: KeyError: 'x'" == in_short("failed with status 1: Traceback\n  File\nKeyError: 'x'\n")


@pytest.mark.parametrize(
    "output", ["", "nonsense", "[1]", "{}", '{"x": "1"}', '{"x": true}', '{"x": NaN}', '{"x": {}}']
)
def test_a_program_without_valid_figures_has_failed(output):
    with pytest.raises(ProgramFailedError):
        parse_result(output)


def test_the_last_line_of_the_output_is_the_result():
    assert {"x": 1} == parse_result('starting\n{"x": 2}\n{"x": 1}\n')


# The report


def made_up():
    row = Row("made", "made [up]", (), (against("x", "other", Target(">=", 3), "x/s"), alone("y", None, "y")))
    other = record("other", {"x": 5}, {"x": 10}, versions={"python": "3"})
    other.contestant = replace(other.contestant, note="no fsync")
    records = {"jqueue": record("jqueue", {"x": 10}, {"x": 60}), "other": other}
    return RowResult(row, records, [outcome_of(line, records) for line in row.lines])


def test_the_table_shows_each_line_with_its_note_its_range_and_missing_figures():
    written = io.StringIO()
    Console(file=written, width=150).print(report.table_of([made_up()]))
    text = written.getvalue()
    assert re.search(r"x/s, against other \(no fsync\) +35 +7\.5 +4\.67 \(2 to 6\) +>= 3 +yes", text)
    assert "made [up]" in text
    assert "jqueue reports no y" in text


def test_the_document_holds_everything_and_is_json(tmp_path):
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    path = tmp_path / "results" / "results.json"
    report.write(path, report.document([made_up()], {"cores": 2}, "abc", 2, when))
    found = json.loads(path.read_text())
    assert ("2026-01-02T03:04:05+00:00", "abc", 2, {"cores": 2}) == tuple(
        found[name] for name in ("date", "commit", "runs", "machine")
    )
    assert {"here": {"python": "3"}} == found["versions"]
    [row] = found["rows"]
    assert [[{"x": 10}, {"x": 60}], [{"x": 5}, {"x": 10}]] == [each["runs"] for each in row["contestants"]]
    assert {"value": 35 / 7.5, "lowest": 2, "highest": 6} == row["lines"][0]["ratio"]
    assert [True, None] == [line["met"] for line in row["lines"]]
    assert [path] == list(path.parent.iterdir())


def test_the_machine_is_described():
    described = machine.describe()
    assert int(described["cores"]) >= 1
    assert {"kernel", "file_system", "processor"} <= described.keys()


def growth(storage, payload, depth, figures):
    given = {"storage": storage, "payload_bytes": payload, "depth": depth}
    return {"name": "growth", "contestants": [{"arguments": given, "medians": figures}]}


DRAWN = {
    "date": "2026-01-02T03:04:05+00:00",
    "machine": {"cores": 2, "file_system": "ext4"},
    "rows": [
        growth("file", 64, 10, {"operations_per_second": 5, "limit_operations_per_second": 9}),
        growth("file", 64, 0, {"operations_per_second": 7, "limit_operations_per_second": 11}),
        growth("memory", 64, 0, {"operations_per_second": 8}),
        growth("memory", 64, 10, {}),
        {"name": "depth", "contestants": []},
    ],
}


def test_the_points_of_the_plot_are_sorted_and_leave_out_failed_runs():
    assert {"file": {64: [Point(0, 7, 11), Point(10, 5, 9)]}, "memory": {64: [Point(0, 8, None)]}} == points_of(DRAWN)


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra `bench`")
    results, picture = tmp_path / "results.json", tmp_path / "docs" / "reference" / "performance.svg"
    results.write_text(json.dumps(DRAWN))
    answer = CliRunner().invoke(application, ["plot", str(results), str(picture)], catch_exceptions=False)
    assert answer.exit_code == 0
    text = picture.read_text()
    for label in ("operations per second", "jobs in the queue", "payloads of 64 B", "limit of the disk, 64 B"):
        assert label in text


# The rows


def test_every_row_has_a_unique_title():
    titles = [row.title for row in ROWS]
    assert sorted(set(titles)) == sorted(titles)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}-{row.title}".replace(" ", "_"))
def test_a_row_compares_its_own_contestants_and_each_can_be_run(row):
    names = [contestant.name for contestant in row.contestants]
    assert sorted(set(names)) == sorted(names)
    for line in row.lines:
        assert {measure.contestant for measure in (line.ours, line.theirs) if measure is not None} <= set(names)
    for contestant in row.contestants:
        assert contestant.program.is_file(), contestant.program
        assert (REQUIREMENTS / f"{contestant.environment}.txt").is_file(), contestant.environment
        json.dumps(dict(contestant.arguments))


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_requirements_are_pinned(path):
    lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    assert [] == [line for line in lines if line and not line.startswith("-e .") and "==" not in line]
    assert direct_requirements(path)


def test_every_peer_takes_part_in_a_row_and_all_peers_can_be_left_out():
    def taking_part(rows):
        return {contestant.name for row in rows for contestant in row.contestants if contestant.is_peer}

    of_formats = {contestant.name for row in format_rows() for contestant in row.contestants if contestant.is_peer}
    assert {original.name for original in ORIGINALS} <= of_formats  # each is compared on its own format only
    assert {*PEERS, *of_formats} == taking_part(ROWS)
    assert set() == taking_part(all_rows([]))


def test_every_peer_worker_is_compared_with_jqueue_on_the_same_jobs():
    [row] = [row for row in ROWS if row.name == "worker"]
    peers = {contestant.name: contestant for contestant in row.contestants if contestant.is_peer}
    assert set(WORKERS) == set(peers)
    names = ("jobs", "warm_jobs", "in_flight", "payload_bytes")
    assert 1 == len({tuple(each.arguments[name] for name in names) for each in row.contestants})
    wanted = {line.theirs.contestant for line in row.lines if line.target is not None and line.theirs is not None}
    assert set(WORKERS) == wanted
    for name, contestant in peers.items():
        assert PEERS[name].requirements.stem == contestant.environment
        assert "warm_jobs" in contestant.program.read_text(encoding="utf-8")


def test_a_row_is_run_at_most_its_own_number_of_times():
    row = Row("made", "up", (), (), most_runs=3)
    assert [1, 3, 3] == [runs_of(row, runs) for runs in (1, 3, 5)]


@pytest.mark.parametrize(("option", "known"), [("--rows", "depth"), ("--peers", "dirq")])
def test_an_unknown_name_is_refused_with_a_list_of_known_names(option, known):
    answer = CliRunner().invoke(application, [option, "nobody"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert answer.exit_code == 2
    assert known in answer.output


def test_the_page_shows_the_figures_of_the_stored_run():
    page, results = ROOT / "docs/reference/performance.md", ROOT / "benchmarks/results.json"
    table = markdown(json.loads(results.read_text(encoding="utf-8")))
    assert f"{BEGIN}\n{table}\n{END}" in page.read_text(encoding="utf-8")


def test_a_page_without_a_place_for_the_figures_stays_unchanged(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no place", encoding="utf-8")
    with pytest.raises(ValueError, match="has no place for the figures"):
        put(ROOT / "benchmarks/results.json", page)
    assert "no place" == page.read_text(encoding="utf-8")
