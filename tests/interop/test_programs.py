"""Programs written for jqueue 1.0.0 run unchanged on this version and print the same."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.wide

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))
REFUSED = {
    "stale_job_acked_by_its_id": "with a lost claim and a newer one of the same job, a bare id is refused for good",
}


def param(program):
    reason = REFUSED.get(program.stem)
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(program, id=program.stem, marks=marks)


@pytest.mark.parametrize("program", [param(program) for program in PROGRAMS])
def test_a_program_written_for_1_0_0_prints_the_same_on_jqueue_2(program, real, ours, tmp_path):
    assert real.run(program, folder=tmp_path / "real") == ours.run(program, folder=tmp_path / "ours")


def test_the_page_names_the_programs_that_do_not_run():
    assert REFUSED.keys() == set(re.findall(r"programs/(\w+)\.py", PAGE.read_text(encoding="utf-8")))
