"""The differences from jqueue 1.0.0: each one is a program that shows it, and a row in the docs.

The docstring of a program states the difference, its reason, and the output of each version.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
ROW = re.compile(r"^\| \[(.+)\]\(\.\./\.\./tests/interop/differences/(\w+)\.py\) \| (.+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Difference:
    """A program whose output differs between 1.0.0 and 2.0.0."""

    path: Path
    title: str
    reason: str
    printed: dict[str, list[str]]


def read(path: Path) -> Difference:
    """Read a difference from the docstring of its program: the title, the reason and the output of each version."""
    title, reason, expected = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")
    printed: dict[str, list[str]] = {"1.0.0": [], "2.0.0": []}
    for line in expected.splitlines():
        version, _, text = line.partition(":")
        printed[version].append(text.removeprefix(" "))
    return Difference(path, title, reason.removeprefix("Why: "), printed)


DIFFERENCES = [read(path) for path in sorted((Path(__file__).parent / "differences").glob("*.py"))]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.path.stem)
def test_a_difference_prints_what_its_docstring_states(difference, real, ours, tmp_path):
    printed = {
        "1.0.0": real.run(difference.path, folder=tmp_path / "real").splitlines(),
        "2.0.0": ours.run(difference.path, folder=tmp_path / "ours").splitlines(),
    }
    assert difference.printed == printed


def test_the_page_lists_every_difference_with_its_reason_and_no_other():
    rows = {(name, title, reason) for title, name, reason in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert {(known.path.stem, known.title, known.reason) for known in DIFFERENCES} == rows
