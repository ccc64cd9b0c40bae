"""The search of the site, as `make docs` has built it, gives the right page first."""

import shutil
import subprocess
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"

FIRST = {
    "cancel running job": "guide/results",
    "job timeout": "guide/handlers",
    "status of a job": "guide/claim-jobs",
    "sentry": "operations/traces",
    "jupyter": "guide/web",
    "docker compose": "operations/deploy",
    "structured logs": "operations/traces",
    "clear the queue": "guide/command-line",
    "rename a handler": "guide/changing-handlers",
    "retry": "guide/retries",
    "limits": "guide/limits",
}


def test_the_right_page_is_found_first():
    node = shutil.which("node")
    if node is None or not (SITE / "searchindex.js").exists():
        pytest.skip("needs Node.js, and the site: make docs")
    command = [node, str(Path(__file__).with_name("search.js")), str(SITE), *FIRST]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert FIRST == dict(zip(FIRST, found, strict=True))
