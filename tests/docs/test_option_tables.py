"""The guide's tables of options have every option, once."""

import re
from pathlib import Path

import pytest

from jqueue.domain.job_options import ALL_OPTIONS
from jqueue.worker.handler_options import HANDLER_OPTION_NAMES

GUIDE = Path(__file__).parents[2] / "docs/guide"


@pytest.mark.parametrize(
    ("page", "options"),
    [("enqueue.md", ALL_OPTIONS), ("handlers.md", HANDLER_OPTION_NAMES)],
    ids=["enqueue", "handlers"],
)
def test_the_table_has_every_option_once(page, options):
    table = (GUIDE / page).read_text(encoding="utf-8").partition("| option | meaning |\n")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(options) == sorted(named)
