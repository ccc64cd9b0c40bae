"""A process of jqueue killed at any system call leaves a file that textqueue 1.1 can read."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.formats.test_textqueue import read_by
from tests.property.text_lines import read

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[3]
SECONDS = 300
UNAVAILABLE = 2


@pytest.mark.parametrize("deeds", [("enqueue", "claim"), pytest.param((), marks=pytest.mark.full)])
def test_a_file_left_by_a_killed_process_is_read_by_1_1(original, tmp_path, deeds):
    tool = [sys.executable, "-m", "tests.kill.textqueue", str(tmp_path), *deeds]
    result = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    if result.returncode == UNAVAILABLE:
        pytest.skip(result.stderr.strip())
    assert result.returncode == 0, result.stderr
    paths = sorted(tmp_path.glob("*.tq"))
    assert len(paths) > 2
    for path, (found, errors) in zip(paths, read_by(original("textqueue-1.1"), *paths), strict=True):
        queued = [message.text for message in read(path.read_bytes()) if message.control == b"-"]
        assert (queued, 0) == ([text.encode() for text in found], errors)
