"""The first job of README.md, run as its readers run it: the program in `app.py`, then a worker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
LONGEST = 30
FOLDER = "/srv/app"
"""The folder of the program, as the page shows it."""

CHANGING = re.compile(r"^\d{4}-\S+ \S+ |\b[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}\b", re.MULTILINE)

BLOCK = re.compile(r"^```(?:python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)

PROGRAM, SESSION, *_ = BLOCK.findall(PAGE.partition("## A first job")[2])
"""The first two blocks of the chapter: the file, and what a terminal shows."""


def _comparable(text: str) -> list[str]:
    """The lines of a text, without the times and ids, which differ from run to run."""
    return CHANGING.sub("", text).splitlines()


def _run(folder: Path, *command: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    return _comparable(ran.stdout.replace(str(folder), FOLDER))


def test_the_first_job_is_short():
    assert len(PROGRAM.splitlines()) <= LONGEST


@pytest.mark.wide
def test_the_first_job_prints_the_session_of_the_page(tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    enqueued = _run(tmp_path, "app.py")
    worked = _run(tmp_path, "-u", "-m", "jqueue", "worker", "app:worker", "queue.json", "--drain")
    shown = ["$ python app.py", *enqueued, "$ jqueue worker app:worker queue.json", *worked]
    assert _comparable(SESSION) == [*shown[:-1], "^C", shown[-1]]
