"""The pages, files, functions, lines of code, tests and make targets that the docs name exist."""

import ast
import re
from functools import cache
from pathlib import Path

from jqueue.testing import pytest_plugin

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
MADE = ROOT / "docs" / "reference" / "api" / "commands.md"
"""A page that exists only once the site has been built."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`((?:\w+/)+\w+\.py)` · `([\w.]+)`(?: · `([^`]+)`)?")
"""A reference to code in docs/reference/protocol.md: a file below jqueue/, a function, and maybe a part of a line."""

RULE = re.compile(r"^### (\d)\. .*?(?=^##)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(test_\w+)`")


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_have_targets():
    broken = []
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if "://" in link or target == MADE:
                continue
            if not (target.exists() and (not anchor or anchor in _anchors(target))):
                broken.append((_name(page), link))
    assert [] == broken


def test_the_changelog_links_the_pages_that_it_names():
    assert [] == re.findall(r"(?<!\()\bdocs/[\w/-]*", _text("CHANGELOG.md"))


@cache
def _functions(path: Path) -> dict[str, str]:
    """The source of each function and class of a module, by its qualified name."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    found: dict[str, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = "\n".join(lines[child.lineno - 1 : child.end_lineno])
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


def test_code_named_on_a_page_exists():
    for page in PAGES:
        for file, function, line in CODE.findall(page.read_text(encoding="utf-8")):
            assert line in _functions(ROOT / "jqueue" / file).get(function, ""), (_name(page), file, function, line)
            assert function in _functions(ROOT / "jqueue" / file), (_name(page), file, function)


def test_each_safety_rule_names_its_code_and_existing_tests():
    files = [*ROOT.glob("tests/safety/test_*.py"), *ROOT.glob("tests/contract/queue/*.py")]
    contract = ROOT / "jqueue/testing/queue_contract.py"
    existing = {name.rpartition(".")[2] for file in (*files, contract) for name in _functions(file)}
    rules = {match[1]: match[0] for match in RULE.finditer(_text("docs/reference/protocol.md"))}
    assert list("123456789") == list(rules)
    for number, text in rules.items():
        named = set(TEST.findall(text))
        assert CODE.search(text), f"rule {number} names no code"
        assert named <= existing
        assert {name for name in existing if re.fullmatch(rf"test_rule_{number}_\w+", name)} <= named


def test_fixtures_named_on_a_page_exist():
    for page in PAGES:
        for names in re.findall(r"fixtures ((?:`\w+`(?:,? and |, )?)+)", page.read_text(encoding="utf-8")):
            assert set(re.findall(r"`(\w+)`", names)) <= vars(pytest_plugin).keys(), page


def test_make_targets_named_on_a_page_exist():
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= targets, page
