"""docs/stores.md: the table of requests is what the benchmark counts."""

from pathlib import Path

from benchmarks.requests_per_job import table

PAGE = Path(__file__).parents[2] / "docs/stores.md"


def test_the_table_of_requests_is_what_is_counted():
    assert table() in PAGE.read_text(encoding="utf-8")
