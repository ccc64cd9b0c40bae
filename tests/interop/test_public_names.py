"""Every public name of jqueue 1.0.0 exists, with the same parameters, kinds and defaults, and maybe further ones."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "compatibility.md"
FROZEN = HERE / "public_names_1_0_0.txt"
ROW = re.compile(r"^\| `(jqueue\.[^`]+)` \|[^|]*\|[^|]*\| (.*) \|$", re.MULTILINE)
LINE = re.compile(r"(?P<kept>async )?(?P<name>[\w.]+)(?P<parameters>\(.*\))?(?P<rest>.*)")

DIFFERENCES = {
    "jqueue.core.direct.DirectQueue(max_retries)": "the deadline ends a call, not a count of lost races",
    "jqueue.core.heartbeat.HeartbeatManager(interval)": "a third of the claim's timeout, which 1.0.0 did not know, and "
    "at most the 60 s that it was",
    "jqueue.core.direct.MutationFn": "operations are values; it was the type of a private method's argument",
    "jqueue.core.group_commit.MutationFn": "operations are values; it was the type of a private method's argument",
}
"""Intended changes and their reasons. docs/reference/compatibility.md has the same table."""


def parsed(text: str) -> dict[str, ast.arguments | str]:
    """Each name with its parameters, or with the rest of its line."""
    names: dict[str, ast.arguments | str] = {}
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match, line
        kept, name, parameters, rest = match.group("kept", "name", "parameters", "rest")
        if parameters:
            function = ast.parse(f"def f{parameters}: pass").body[0]
            assert isinstance(function, ast.FunctionDef)
            names[(kept or "") + name] = function.args
        else:
            names[name + rest] = rest
    return names


def changed(name: str, theirs: ast.arguments, ours: ast.arguments) -> set[str]:
    """The parameters of 1.0.0 that have changed, and the name itself if there is a new required parameter."""
    found = set()
    our_defaults = _defaults(ours)
    positions = [parameter.arg for parameter in ours.args]
    for position, parameter in enumerate(theirs.args):
        if positions[position : position + 1] != [parameter.arg]:
            found.add(f"{name}({parameter.arg})")
    for parameter in theirs.kwonlyargs:
        if parameter.arg not in our_defaults:
            found.add(f"{name}({parameter.arg})")
    their_defaults = _defaults(theirs)
    for parameter_name, default in their_defaults.items():
        if default is not None and our_defaults.get(parameter_name) != default:
            found.add(f"{name}({parameter_name})")
    demanded = {parameter_name for parameter_name, default in our_defaults.items() if default is None}
    if not demanded <= their_defaults.keys() or (theirs.vararg and not ours.vararg):
        found.add(name)
    return found


def _defaults(arguments: ast.arguments) -> dict[str, str | None]:
    """Each parameter with its default as text, or None if it has none."""
    none = [None] * (len(arguments.args) - len(arguments.defaults))
    pairs = [
        *zip(arguments.args, [*none, *arguments.defaults], strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {parameter.arg: ast.unparse(default) if default else None for parameter, default in pairs}


def test_the_frozen_names_match_the_real_1_0_0(real, tmp_path):
    assert FROZEN.read_text(encoding="utf-8") == real.run(HERE / "public_names.py", folder=tmp_path)


def test_every_public_name_of_1_0_0_exists_except_for_listed_differences(ours, tmp_path):
    theirs = parsed(FROZEN.read_text(encoding="utf-8"))
    here = parsed(ours.run(HERE / "public_names.py", folder=tmp_path))
    found = set()
    for name, what in theirs.items():
        mine = here.get(name)
        if mine is None:
            found.add(name)
        elif isinstance(what, ast.arguments) and isinstance(mine, ast.arguments):
            found |= changed(name, what, mine)
    assert DIFFERENCES.keys() == found


def test_the_page_lists_the_same_changes_of_names_and_parameters_with_the_same_reasons():
    assert DIFFERENCES == dict(ROW.findall(PAGE.read_text(encoding="utf-8")))
