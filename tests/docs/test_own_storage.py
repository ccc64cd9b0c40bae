"""The tests that docs/testing.md gives to the author of a storage pass for an honest one, and fail for another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = "## Your own storage"


def run_as_tests(folder, text, *more):
    """Run the text as a file of tests, and return what pytest printed."""
    (folder / "test_my_storage.py").write_text(text, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-n", "4", "-W", "ignore", "-o", "asyncio_mode=strict"]
    command = [sys.executable, "-m", "pytest", *options, *more, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    return ran.stdout


@pytest.fixture
def snippets():
    text = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    found: list[str] = SNIPPET.findall(text[text.index(SECTION) :])
    assert 2 == len(found)
    return found


def test_an_honest_storage_passes(tmp_path, snippets):
    last = run_as_tests(tmp_path, "\n".join(snippets)).splitlines()[-1]
    assert re.match(r"\d{3} passed", last), last


def test_one_that_ignores_the_etag_fails(tmp_path, snippets):
    storage, tests = snippets
    careless = storage.replace("if if_match != (await self.read())[1]:", "if False:")
    assert careless != storage
    output = run_as_tests(tmp_path, careless + tests, "-k", "TestMyStorage or simulation")
    for name in ("TestMyStorage", "test_my_storage_in_a_simulation"):
        assert re.search(rf"^FAILED .*{name}", output, re.MULTILINE), name
