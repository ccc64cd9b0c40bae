"""docs/reference/formats.md agrees with the code on the capabilities and the URL of each format."""

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
    """The rows, with the header, of the table whose first column has this heading."""
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


def test_every_format_has_a_column_and_an_example_url():
    assert {url.partition(":")[0] for url in COLUMNS.values()} == set(FORMATS)
    for scheme in FORMATS:
        assert EXAMPLES[scheme] in PAGE


@pytest.mark.parametrize("column", COLUMNS)
def test_the_capabilities_of_each_format_match_the_page(column):
    header, *rows = table("capability")
    said = {row[0].strip("`"): row[header.index(column)] for row in rows}
    capabilities = jqueue.connect(COLUMNS[column]).capabilities
    assert {name: "yes" if getattr(capabilities, name) else "no" for name in said} == said
    unmentioned = set(capabilities.missing) - set(said)
    listed = re.search(r"None of them has ([^.]*)\.", PAGE)
    assert listed is not None
    assert unmentioned == set(re.findall(r"`(\w+)`", listed[1]))
