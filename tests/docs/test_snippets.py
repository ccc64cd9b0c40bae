"""Every Python snippet of README.md and docs/ runs, page by page.

The snippets of a page, pasted one after the other into one file, form a program. They run in the order of the page,
share their names, and do not `await` at the top level, which Python refuses in a file. Users run a pasted program
again, so it runs twice in one folder, which is empty at first. A snippet that begins with `# not run: <reason>` is
only compiled.
"""

import re
from pathlib import Path
from types import CodeType

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_SPARK = ROOT / "docs" / "guide" / "spark.md"
ON_DJANGO = ROOT / "docs" / "guide" / "frameworks" / "django.md"
"""A page whose snippets `tests/django/test_guide.py` runs, as they need settings."""
ELSEWHERE = (ON_SPARK, ON_DJANGO)
FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*(?:python|py)", re.MULTILINE | re.IGNORECASE)
NOT_RUN = "# not run: "
MOST_NOT_RUN = 7


def _code(example: Example) -> CodeType:
    """The compiled snippet, with the line numbers of its page."""
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    return compile(source, example.path, "exec", dont_inherit=True)


def _evaluate(example: Example) -> None:
    code = _code(example)
    if not example.parsed.startswith(NOT_RUN):
        example.namespace.setdefault("__name__", "__main__")
        exec(code, example.namespace)


def examples_of(page: Path) -> list[Example]:
    """Return the snippets of a page."""
    return list(Sybil([CodeBlockParser("python", _evaluate)]).parse(page).examples())


def _run(page: Path) -> list[str]:
    """Run the snippets of a page and return their texts."""
    examples = examples_of(page)
    for example in examples:
        example.evaluate()
    return [str(example.parsed) for example in examples]


@pytest.mark.wide
def test_the_snippets_of_the_page_about_spark_run(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(_run(ON_SPARK)) > 5


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in ELSEWHERE],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = _run(page)
    assert snippets == _run(page)
    assert len(FENCE.findall(page.read_text(encoding="utf-8"))) == len(snippets), "a snippet was not recognised"


def test_snippets_that_are_not_run_are_rare():
    assert sum(page.read_text(encoding="utf-8").count(NOT_RUN) for page in PAGES) <= MOST_NOT_RUN
