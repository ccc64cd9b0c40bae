"""docs/reference/formats.md says of each format what the code says."""

import re
from pathlib import Path

import pytest

import jqueue
from jqueue.connect.formats import FORMATS
from jqueue.connect.parsed_url import EXAMPLES

PAGE = (Path(__file__).parents[2] / "docs/reference/formats.md").read_text(encoding="utf-8")

COLUMNS = {
    "vsqs": "vsqs:///tmp/folder",
    "dirq simple": "dirq:///tmp/folder?kind=simple",
    "dirq queue": "dirq:///tmp/folder?kind=queue",
    "TextQueue": "textq:///tmp/file.tq",
}


def table(heading):
    """The rows of the table whose first column has this heading."""
    lines = iter(PAGE.splitlines())
    header = next(line for line in lines if line.startswith(f"| {heading} |"))
    next(lines)
    rows = [cells(header)]
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(cells(line))
    return rows


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_format_has_its_part_and_a_url_that_is_shown():
    assert {url.partition(":")[0] for url in COLUMNS.values()} == set(FORMATS)
    for scheme in FORMATS:
        assert EXAMPLES[scheme] in PAGE


@pytest.mark.parametrize("column", COLUMNS)
def test_what_each_can_do_is_what_the_page_says(column):
    header, *rows = table("capability")
    said = {row[0].strip("`"): row[header.index(column)] for row in rows}
    capabilities = jqueue.connect(COLUMNS[column]).capabilities
    assert {name: "yes" if getattr(capabilities, name) else "no" for name in said} == said
    unmentioned = set(capabilities.missing) - set(said)
    listed = re.search(r"None of them has ([^.]*)\.", PAGE)
    assert listed is not None
    assert unmentioned == set(re.findall(r"`(\w+)`", listed[1]))
