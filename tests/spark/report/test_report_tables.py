"""A report in the terminal, made without Spark and printed in 80 columns."""

import io
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from jqueue.spark.report.tables import MOST_ROWS
from tests.spark.report.plain_report import NAMES, Line, plain_report, some_lines


def printed(report, width=80):
    out = io.StringIO()
    report.print(Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_every_figure_of_a_queue_fits_80_columns():
    lines = [*some_lines(1, 300, queues=("q",)), *(Line(entrypoint=name) for name in NAMES)]
    text = printed(plain_report(lines))

    assert all(cell_len(line) <= 80 for line in text.splitlines())
    for title in ("entrypoint", "waiting", "finished", "attempts", "error"):
        assert any(line.startswith(title) for line in text.splitlines()), title
    assert text.splitlines()[0].startswith("q  ")
    for name in ("resize", "日本語の名前", "<script>alert(1)</script>", "ValueError", "stale claim", "other"):
        assert name in text
    assert "hunter2" not in text
    assert "451" not in text


def test_a_fleet_is_printed_queue_by_queue():
    queues = ("s3://bucket/queues/mail.json", "s3://bucket/queues/empty.json", "s3://other/mail.json")
    text = printed(plain_report(some_lines(2, 200, queues=queues[::2]), queues))

    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert text.startswith("3 queues")
    for name in ("s3://bucket/queues/empty.json", "\nqueues/mail.json", "\nother/mail.json"):
        assert name in text


def test_an_empty_queue_is_printed_in_two_lines():
    assert ["q  0 jobs, 2026-11-21 12:00:00 UTC", "no jobs"] == printed(plain_report([])).splitlines()


def test_the_entrypoints_with_most_jobs_are_shown():
    lines = [Line(entrypoint=f"e{number:03}") for number in range(MOST_ROWS + 7)]
    text = printed(plain_report([*lines, *(Line(entrypoint="e046") for _ in range(3))]))

    assert "and 7 more" in text
    assert "e046" in text
    assert "e045" not in text


def test_names_are_escaped_for_the_terminal():
    text = printed(plain_report([Line(entrypoint="[red]\x1b[31m\u202e"), Line(entrypoint="[/]")]))

    assert "[red]\\x1b[31m\\u202e" in text
    assert "[/]" in text
    assert "\x1b" not in text


def test_a_missing_rich_gives_a_one_line_error(monkeypatch):
    monkeypatch.delitem(sys.modules, "jqueue.spark.report.tables")
    monkeypatch.setitem(sys.modules, "rich", None)

    with pytest.raises(ImportError) as raised:
        plain_report([]).print()
    assert 'the tables of a report need rich: pip install "jqueue[report]"' == str(raised.value)
