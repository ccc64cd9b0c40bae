"""pyright knows the payload and the result of a handler: it reports the lines of a program that mypy reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.wide
def test_pyright_reports_exactly_the_wrong_payloads_options_and_results(tmp_path):
    """It is the checker of many editors."""
    program = Path(__file__).with_name("typed_program.py").read_text(encoding="utf-8")
    (tmp_path / "program.py").write_text(program.replace("# type: ignore", "# wrong"), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "program.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    errors = [each for each in json.loads(ended.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    wrong = {number for number, line in enumerate(program.splitlines(), 1) if "# type: ignore" in line}
    assert wrong == {each["range"]["start"]["line"] + 1 for each in errors}, ended.stdout
