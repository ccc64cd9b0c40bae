"""docs/reference/testing.md lists every planted bug, with the number of seeds within which it is found."""

import re
from pathlib import Path

from tests.simulation.planted_bugs import PLANTED

ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (\d+) \|$", re.MULTILINE)


def test_the_table_matches_the_list_of_planted_bugs():
    page = (Path(__file__).parents[2] / "docs/reference/testing.md").read_text(encoding="utf-8")
    listed = [
        (planted.plant.__name__, (planted.plant.__doc__ or "").rstrip("."), str(planted.seeds)) for planted in PLANTED
    ]
    assert listed == ROW.findall(page)
