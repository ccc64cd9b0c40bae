"""A small run of the proof by killing (`python -m tests.kill`), which also finds adapters broken on purpose."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300
UNAVAILABLE = 2


def _run(*arguments, before=""):
    """Run the tool in a process of its own, since it forks."""
    code = f"import sys; {before or 'pass'}; from tests.kill.__main__ import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--seed", "7", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)


def _run_traced(*arguments):
    result = _run("--cycles", "0", *arguments)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    return result


def test_processes_killed_at_random_moments_lose_no_acknowledged_call():
    result = _run("--cycles", "20", "--system-calls", "none")
    assert 0 == result.returncode, result.stderr
    assert "seed 7" in result.stdout
    assert re.search(r"^No promise was broken by \d+ kills\.$", result.stdout, re.MULTILINE)
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.wide
def test_processes_killed_while_jobs_move_to_segments_and_back_lose_none():
    result = _run("--segments", "--cycles", "150", "--system-calls", "none")
    assert 0 == result.returncode, result.stderr
    for seen in ("segments seen", "ranges seen", "cancel", "end range"):
        assert re.search(rf"{seen} +[1-9]", result.stdout), result.stdout


def test_a_commit_killed_at_any_system_call_is_done_or_not_done_and_leaves_no_files():
    result = _run_traced("--system-calls", "entry", "--commit", "second-enqueue")
    assert 0 == result.returncode, result.stderr
    for name in ("openat", "flock", "write", "fsync", "pwrite64", "rename"):
        assert name in result.stdout
    assert "…" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.wide
@pytest.mark.parametrize(
    ("adapter", "found"), [("truncating", "the file is empty"), ("untidy", "temporary files lie beside the file")]
)
def test_damage_by_a_kill_at_a_system_call_is_found(adapter, found):
    result = _run_traced("--system-calls", "entry", "--commit", "first-enqueue", "--adapter", adapter)
    assert 1 == result.returncode, result.stdout
    _assert_one_clear_error(result.stderr, f"first-enqueue, killed at the entry of .*: .*{found}[^.]*")


def test_an_answer_before_the_write_is_found_by_killing_at_random():
    result = _run("--cycles", "300", "--system-calls", "none", "--adapter", "hasty")
    assert 1 == result.returncode, result.stdout
    _assert_one_clear_error(result.stderr, ".*")


def test_the_tool_reports_that_system_calls_cannot_be_traced():
    result = _run("--cycles", "0", before="sys.modules['ptrace'] = None")
    assert UNAVAILABLE == result.returncode
    assert "System calls cannot be traced: python-ptrace cannot be used here" in result.stderr


def _assert_one_clear_error(text, pattern):
    """Check that the error names the violation, the seed and the kept folder, and remove the folder."""
    errors = [line for line in text.splitlines() if line.startswith("VIOLATION")]
    assert 1 == len(errors), text
    found = re.fullmatch(rf"VIOLATION: {pattern}\. (Jobs lost: \d+\. )?Seed 7; kept for you: (\S+)", errors[0])
    assert found, errors[0]
    kept = Path(found.group(2))
    assert (kept / "journal").exists()
    shutil.rmtree(kept)
