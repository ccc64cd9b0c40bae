"""The page on the pipeline names exactly the options and columns of the code."""

import re
from pathlib import Path

import pytest

from jqueue.spark.enqueue import columns, writing
from jqueue.spark.snapshot import reader
from jqueue.spark.stream import source_options

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline.md").read_text(encoding="utf-8")
PARTS = {"writing": writing.OPTIONS, "snapshot": reader.KNOWN, "source": source_options.KNOWN}


def first_column(table):
    return [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])]


@pytest.mark.parametrize(("part", "options"), PARTS.items(), ids=list(PARTS))
def test_the_options_of_each_part_match_the_code(part, options):
    table = PAGE.partition(f"<!-- options: {part} -->\n")[2].partition("\n\n")[0]
    assert sorted(options) == sorted(first_column(table))


def test_the_columns_of_a_bulk_enqueue_match_the_code():
    table = PAGE.partition("| column | type |")[2].partition("\n\n")[0]
    assert list(columns.EXPECTED) == [name for name in first_column(table) if name]
