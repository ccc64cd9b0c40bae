"""Cron knows every time zone where the system knows none, as in slim containers."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NEXT = "from datetime import *; from jqueue.domain.cron import *; print(next_after('0 3 * * *', {zone!r}, {moment}))"
MOMENT = "datetime(2026, 7, 1, tzinfo=UTC)"


def without_zones_of_the_system(code):
    environment = {**os.environ, "PYTHONTZPATH": ""}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_package_of_time_zones_is_needed_on_every_system():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    markers = {need.name: need.marker for need in map(Requirement, project["dependencies"])}
    assert {"cronsim": None, "pydantic": None, "tzdata": None} == markers


@pytest.mark.parametrize(("zone", "due"), [("Europe/Berlin", "2026-07-01 01:00"), ("UTC", "2026-07-01 03:00")])
def test_cron_works_without_the_time_zones_of_the_system(zone, due):
    result = without_zones_of_the_system(NEXT.format(zone=zone, moment=MOMENT))
    assert (f"{due}:00+00:00\n", "") == (result.stdout, result.stderr)


def test_the_error_without_time_zones_says_what_to_install():
    code = "import sys; sys.modules['tzdata'] = None; " + NEXT.format(zone="UTC", moment=MOMENT)
    error = without_zones_of_the_system(code).stderr.splitlines()[-1]
    assert error.endswith("this machine has no time zone data: pip install tzdata")
