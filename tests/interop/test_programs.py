"""Programs for the real jqueue 1.0.0 and this version: what is the same, what differs, and what the page says of it."""

import inspect
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "compatibility.md"
ROW = re.compile(r"^\| (?!what)(.+) \| (?!why|---)(.+) \|$", re.MULTILINE)
NAME_ROW = re.compile(r"^\| `(jqueue\.[^`]+)` \|[^|]*\|[^|]*\| (.*) \|$", re.MULTILINE)

CHANGED_NAMES = {
    "jqueue.core.direct.DirectQueue(max_retries)": "the deadline ends a call, not a count of lost races",
    "jqueue.core.heartbeat.HeartbeatManager(interval)": "a third of the claim's timeout, at most the 60 s that it was",
    "jqueue.core.direct.MutationFn": "operations are values",
    "jqueue.core.group_commit.MutationFn": "operations are values",
}
"""Intended changes of names, parameters and defaults, and their reasons."""


def section(begin, end):
    return PAGE.read_text(encoding="utf-8").partition(f"\n## {begin}\n")[2].partition(f"\n## {end}\n")[0]


def test_programs_written_for_1_0_0_print_the_same_on_jqueue_2(real, ours, tmp_path):
    printed = real.run(HERE / "programs.py", folder=tmp_path / "real")
    assert "of a worker that died" in printed
    assert printed == ours.run(HERE / "programs.py", folder=tmp_path / "ours")


def test_each_difference_shows_what_it_states_and_is_a_row_of_the_page_with_its_reason(real, ours, tmp_path):
    stated = []
    for version, interpreter in (("1.0.0", real), ("2.0.0", ours)):
        printed = interpreter.run(HERE / "differences.py", folder=tmp_path / version).splitlines()
        differences = [(inspect.cleandoc(text).split("\n\n"), shown) for text, shown in map(json.loads, printed)]
        for (title, _, expected), shown in differences:
            wanted = [line.partition(":") for line in expected.splitlines()]
            assert [text.removeprefix(" ") for name, _, text in wanted if name == version] == shown, title
        stated.append([(title, reason.removeprefix("Why: ")) for (title, reason, _), _ in differences])
    assert stated[0] == stated[1]
    assert sorted(stated[0]) == sorted(ROW.findall(section("What differs", "Its own tests")))


def fits(before, now):
    """Whether a call that gives a parameter, or leaves it out, means the same as before."""
    return now is not None and before[0] in ("keyword", now[0]) and before[1] in (None, now[1])


def test_every_public_name_of_1_0_0_exists_with_its_parameters_except_for_the_changes_on_the_page(real, ours, tmp_path):
    theirs, mine = (json.loads(each.run(HERE / "public_names.py", folder=tmp_path)) for each in (real, ours))
    assert len(theirs) > 70
    changed = {name for name in theirs if name not in mine}
    for name in theirs.keys() & mine.keys():
        before, now = theirs[name], mine[name]
        changed |= {f"{name}({parameter})" for parameter in before if not fits(before[parameter], now.get(parameter))}
        added = [now[parameter] for parameter in now if parameter not in before]
        assert all(default is not None for _, default in added), f"{name} has a new required parameter"
    assert CHANGED_NAMES.keys() == changed
    assert dict(NAME_ROW.findall(PAGE.read_text(encoding="utf-8"))) == CHANGED_NAMES
