"""Every Python snippet of README.md and docs/ runs, page by page.

The snippets of a page run in its order, share their names, and may `await` at the top level; each page has an event
loop and an empty folder of its own. A snippet that begins with `# not run: <why>` is compiled and no more.
"""

import ast
import asyncio
import inspect
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_SPARK = ROOT / "docs" / "pipeline.md"
FENCE = re.compile(r"^[ \t]*(?:```+|~~~+)[ \t]*(?:python|py)", re.MULTILINE | re.IGNORECASE)
NOT_RUN = "# not run: "
MOST_NOT_RUN = 3
SECONDS = 60


def _code(example: Example) -> Any:
    """The snippet compiled, with the line numbers of its page."""
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    return compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


async def _in_time(snippet: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(SECONDS):
        await snippet


def _run(page: Path) -> list[str]:
    """Run the snippets of a page, and return their texts."""
    with asyncio.Runner() as runner:

        def evaluate(example: Example) -> None:
            code = _code(example)
            if example.parsed.startswith(NOT_RUN):
                return
            example.namespace.setdefault("__name__", "__main__")
            result = eval(code, example.namespace)
            if inspect.iscoroutine(result):
                runner.run(_in_time(result))

        examples = list(Sybil([CodeBlockParser("python", evaluate)]).parse(page).examples())
        for example in examples:
            example.evaluate()
        return [str(example.parsed) for example in examples]


def test_the_snippets_of_the_page_about_spark_run(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(_run(ON_SPARK)) > 5


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != ON_SPARK], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_the_snippets_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = _run(page)
    assert len(FENCE.findall(page.read_text(encoding="utf-8"))) == len(snippets), "a snippet was not recognised"


def test_snippets_that_are_not_run_are_rare():
    assert sum(page.read_text(encoding="utf-8").count(NOT_RUN) for page in PAGES) <= MOST_NOT_RUN


def _page(folder: Path, *snippets: str) -> Path:
    page = folder / "page.md"
    page.write_text("# A page\n" + "".join(f"\nText.\n\n```python\n{snippet}\n```\n" for snippet in snippets))
    return page


def test_snippets_share_their_names_and_may_await(tmp_path):
    _run(_page(tmp_path, "import asyncio\nseen = []", "await asyncio.sleep(0)\nseen.append(1)", "assert [1] == seen"))


def test_a_snippet_may_run_an_event_loop_of_its_own(tmp_path):
    _run(_page(tmp_path, "import asyncio\nawait asyncio.sleep(0)", "asyncio.run(asyncio.sleep(0))"))


@pytest.mark.parametrize("snippet", ["assert False", "import asyncio\nawait asyncio.sleep(0)\nassert False"])
def test_a_snippet_can_fail_and_its_line_is_told(tmp_path, snippet):
    page = _page(tmp_path, "x = 1", snippet)
    with pytest.raises(AssertionError) as caught:
        _run(page)
    last = caught.traceback[-1]
    assert (str(page), "assert False") == (str(last.path), page.read_text().splitlines()[last.lineno])


def test_a_snippet_that_is_not_run_must_be_python(tmp_path):
    assert [f"{NOT_RUN}it needs a bucket\n1 / 0\n"] == _run(_page(tmp_path, f"{NOT_RUN}it needs a bucket\n1 / 0"))
    with pytest.raises(SyntaxError):
        _run(_page(tmp_path, f"{NOT_RUN}it needs a bucket\n1 /"))
