"""The tests that the testing page offers for your own storage pass for a correct one and fail for a faulty one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECTION = "## Your own storage"


def run_as_tests(folder, text, *more, processes=0):
    """Run the text as a file of tests, and return what pytest printed."""
    (folder / "test_my_storage.py").write_text(text, encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-n", str(processes), "-W", "ignore", "-o", "asyncio_mode=strict"]
    command = [sys.executable, "-m", "pytest", *options, *more, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    return ran.stdout


@pytest.fixture
def snippets():
    text = (ROOT / "docs/reference/testing.md").read_text(encoding="utf-8")
    found: list[str] = SNIPPET.findall(text[text.index(SECTION) :])
    assert 2 == len(found)
    return found


def test_a_correct_storage_passes(tmp_path, snippets):
    output = run_as_tests(tmp_path, "\n".join(snippets), "-vv", processes=2)
    assert re.search(r" [6-9]\d passed", output.splitlines()[-1]), output
    assert "failed" not in output
    for name in ("TestMyStorage", "TestMyQueue"):
        assert re.search(rf"PASSED .*{name}", output), output


def test_a_storage_that_ignores_the_etag_fails(tmp_path, snippets):
    storage, tests = snippets
    careless = storage.replace("if if_match != (await self.read())[1]:", "if False:")
    assert careless != storage
    output = run_as_tests(tmp_path, careless + tests, "-k", "TestMyStorage")
    assert re.search(r"^FAILED .*TestMyStorage", output, re.MULTILINE), output
