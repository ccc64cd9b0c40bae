"""The benchmarks themselves: their rows and their page, and that the programs of jqueue can be run."""

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.contest import PROGRAMS, Contestant, Row, against, alone, ours
from benchmarks.environments import REQUIREMENTS, Environment, EnvironmentUnavailableError
from benchmarks.figures import Ratio, Target
from benchmarks.page import BEGIN, END, markdown
from benchmarks.rows import DEFENDED, all_rows
from benchmarks.runner import Record, outcome_of, run_program, run_row
from benchmarks.servers import Access
from jqueue.core import pacing

ROOT = Path(__file__).parents[2]
ROWS = all_rows()


def record(name, *runs, **more):
    return Record(Contestant(name, "here", PROGRAMS / "depth.py"), list(runs), **more)


def test_a_target_applies_to_the_ratio_of_two_contestants():
    records = {"jqueue": record("jqueue", {"x": 10}, {"x": 30}), "other": record("other", {"x": 5}, {"x": 10})}
    outcome = outcome_of(against("x", "other", Target(">=", 3), "x"), records)
    assert (20, 7.5, Ratio(20 / 7.5, 2, 3), False) == (outcome.ours, outcome.theirs, outcome.ratio, outcome.met)


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


def test_the_measured_constants_of_the_pacing_are_there():
    assert [] == [name for name, _ in DEFENDED if not hasattr(pacing, name)]


def test_the_page_shows_the_figures_of_the_stored_run():
    page, results = ROOT / "docs/reference/performance.md", ROOT / "benchmarks/results.json"
    table = markdown(json.loads(results.read_text(encoding="utf-8")))
    text = page.read_text(encoding="utf-8")
    assert f"{BEGIN}\n{table}\n{END}" in text
    short = re.findall(r"(?<=\| )[\d,.]+(?= \|)", text.partition(BEGIN)[0])
    assert len(short) == 21
    web = re.search(r"^\| requests a second .*", (ROOT / "docs/compare.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert web is not None
    short += re.findall(r"\d,\d+", web[0])
    assert set(short) <= set(re.findall(r"(?<=\|)[\d,.]+(?=\|)", table)), "a table for users has other figures"


@pytest.mark.wide
def test_a_failing_or_missing_contestant_does_not_stop_the_others(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, sys\n"
        "given = json.loads(sys.argv[1])\n"
        "if given.get('fail'): raise SystemExit('this is why')\n"
        "print(json.dumps({'x': given['value']}))\n"
    )

    def contestant(name, environment="here", **given):
        return Contestant(name, environment, program, given)

    def find(name):
        if name == "absent":
            raise EnvironmentUnavailableError("absent could not be installed")
        return Environment("here", Path(sys.executable), {"python": "0"})

    row = Row(
        "made",
        "up",
        (contestant("jqueue", value=4), contestant("fails", fail=True), contestant("gone", "absent", value=1)),
        (against("x", "fails", None, "x"), against("x", "gone", None, "x"), alone("x", Target(">=", 4), "x")),
    )
    advanced: list[int] = []
    result = run_row(row, 2, print, lambda: advanced.append(1), find)
    assert [{"x": 4}, {"x": 4}] == result.records["jqueue"].runs
    reasons = ["fails: failed with status 1: this is why", "gone: absent could not be installed", ""]
    assert reasons == [outcome.reason for outcome in result.outcomes]
    assert [None, None, True] == [outcome.met for outcome in result.outcomes]
    assert 6 == len(advanced)


BRIEF = {"in_flight": 4, "seconds": 0.05, "warm_seconds": 0, "payload_bytes": 64}
FORMATS = {"jobs": 20, "in_flight": 4, "payload_bytes": 64}
PROGRAMS_RUN = [
    ("depth", {**BRIEF, "storage": "memory", "depth": 5}, "operations_per_second"),
    ("short", {**BRIEF, "storage": "file", "depth": 5, "turns": 2}, "operations_per_second_without_segments"),
    ("phases", {"storage": "file", "jobs": 20, "in_flight": 4, "payload_bytes": 64}, "jobs_per_second"),
    ("worker", {"storage": "file", "jobs": 20, "warm_jobs": 5, "in_flight": 4, "payload_bytes": 64}, "jobs_per_second"),
    ("commits", {**BRIEF, "depth": 3}, "bare_commits_per_second"),
    ("direct", {**BRIEF, "depth": 5}, "operations_per_second"),
    ("memory", {"jobs": 500, "payload_bytes": 64, "traced": True}, "bytes_per_job"),
    ("fair", {**BRIEF, "storage": "file", "processes": 2, "seconds": 0.3}, "operations_per_second"),
    ("contention", {"seeds": 1, "trials": [["PATIENCE", 0.0, "4 writers, 1 ms", "failed_per_commit"]]}, "PATIENCE"),
    ("stalls", {**BRIEF, "depth": 20, "repeats": 1}, "work_longest"),
    ("formats", {**FORMATS, "url": "vsqs://{folder}/queue", "headers": True}, "jobs_per_second"),
    ("deep", {"storage": "file", "depth": 20, "in_flight": 3, "seconds": 0.1, "payload_bytes": 64}, "claim_ms"),
    ("bulk", {"storage": "file", "rows": 20, "payload_bytes": 64}, "rows_per_second"),
]


@pytest.mark.wide
@pytest.mark.parametrize(("program", "given", "figure"), PROGRAMS_RUN)
def test_a_jqueue_program_runs(program, given, figure):
    found = run_program(ours(program, given, timeout=60), sys.executable, Access())
    assert figure in found
    assert found.get("errors", 0) == 0
