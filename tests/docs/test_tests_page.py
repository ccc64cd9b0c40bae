"""The guide to tests, pasted into a file of tests, passes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/guide/tests.md").read_text(encoding="utf-8")


def _blocks(language):
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.wide
def test_the_tests_of_the_page_pass(tmp_path):
    (tmp_path / "test_app.py").write_text(_blocks("python"), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(_blocks("toml"), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines()[-1].startswith("2 passed"), ran.stdout
