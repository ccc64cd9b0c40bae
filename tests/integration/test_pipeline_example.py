"""The example of `make pipeline`, run as users do, and its messages about wrong arguments."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue.spark.session import java_problem
from tests.servers.fixtures import skip_or_fail

pytestmark = pytest.mark.wide

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline.py"
FILES = 12
LONGEST_SECONDS = 600


@pytest.fixture
def folder(tmp_path):
    """Return nested folders with files, and with entries that must not be counted."""
    for number in range(FILES):
        path = tmp_path / "files" / f"{number % 3}" / f"file {{{number}}} [x] é"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d\n" % number * number)
    (tmp_path / "files" / "link").symlink_to(path)
    for left_out in ("__pycache__", ".hidden"):
        (tmp_path / "files" / left_out).mkdir()
        (tmp_path / "files" / left_out / "file").write_bytes(b"left out")
    return tmp_path / "files"


def run(*arguments, **environment):
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )


@pytest.mark.full
@pytest.mark.xdist_group("spark")
def test_the_example_prints_every_step_with_correct_figures(folder, tmp_path):
    if problem := java_problem():
        skip_or_fail(problem)
    result = run(folder, "--out", tmp_path / "out", "--master", "local[2]")
    print(result.stdout, result.stderr)
    assert 0 == result.returncode
    assert f"{FILES} files in " in result.stdout
    assert f"still {FILES + 2} jobs" in result.stdout
    assert re.search(r"^run_batch 11 jobs in \S+ s: 9 succeeded, 2 dead \(1 ended its process\)$", result.stdout, re.M)
    assert "3 more jobs by a streaming query, in batches of [1, 1, 1]" in result.stdout
    assert "3 index queued" in result.stdout
    assert re.search(r"^archive +\d\d events of the history, ", result.stdout, re.M)
    assert f"a plain loop over the {FILES} files agrees: True" in result.stdout
    assert result.stdout.endswith(f"The queue and the tables are in {str(tmp_path / 'out')!r}\n")
    assert (tmp_path / "out" / "done.png").read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in result.stderr
    assert "WARN" not in result.stderr.replace("WARNING: Using incubator modules", "")  # of some versions of Java


def test_a_missing_java_gives_a_one_line_error(folder, tmp_path):
    result = run(folder, "--out", tmp_path / "out", JAVA_HOME="/nowhere")
    assert (2, "", 1) == (result.returncode, result.stdout, result.stderr.count("\n"))
    assert result.stderr.startswith("Spark needs Java 17 or newer")
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_errors_and_make_no_files(folder, tmp_path):
    for arguments, line in (
        ([tmp_path / "nothing"], "is not a folder"),
        ([folder, "--out", folder], "already exists: give a new path"),
    ):
        result = run(*arguments)
        assert (2, "") == (result.returncode, result.stdout)
        assert result.stderr.splitlines()[-1].endswith(line)
