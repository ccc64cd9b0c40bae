"""The guide to enqueueing lists every option of a job."""

import re
from pathlib import Path

from jqueue.domain.job_options import ALL_OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/guide/enqueue.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_once():
    table = PAGE.partition("| option | meaning |\n")[2].partition("\n\n")[0]
    assert sorted(ALL_OPTIONS) == sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
