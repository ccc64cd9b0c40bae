"""The pages, files, functions, lines of code, tests and make targets that the docs name exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

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


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_have_targets(page):
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in _anchors(target))):
            broken.append(link)
    assert [] == broken


def _functions(path: Path) -> dict[str, str]:
    """The source of each function and class of a module, by its qualified name."""
    source = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = ast.get_source_segment(source, child) or ""
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


def _references() -> list[tuple[str, str, str, str]]:
    return [(_name(page), *found) for page in PAGES for found in CODE.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("reference", _references(), ids=" ".join)
def test_code_named_on_a_page_exists(reference):
    _, file, function, line = reference
    assert line in _functions(ROOT / "jqueue" / file).get(function, "there is no such function")


def test_each_safety_rule_names_its_code_and_existing_tests():
    files = (ROOT / "tests/safety").glob("test_*.py")
    existing = {name for file in files for name in _functions(file)}
    rules = {match[1]: match[0] for match in RULE.finditer(_text("docs/reference/protocol.md"))}
    assert list("123456789") == list(rules)
    for number, text in rules.items():
        named = set(TEST.findall(text))
        assert CODE.search(text), f"rule {number} names no code"
        assert named <= existing
        assert {name for name in existing if re.fullmatch(rf"test_rule_{number}_\w+", name)} <= named


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_make_targets_named_on_a_page_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text(encoding="utf-8"))) <= targets
