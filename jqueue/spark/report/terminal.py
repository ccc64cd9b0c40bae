"""A report in the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.spark.report.sections import Part, Table
from jqueue.spark.report.words import name

try:
    from rich import box
    from rich import table as rich_table
    from rich.console import Console
    from rich.text import Text
except ImportError as _error:
    raise ImportError('the tables of a report need rich: pip install "jqueue[report]"') from _error

STYLES = {"stale": "yellow", "failed": "yellow", "dead": "red"}
"""Styles of counts that are not zero, by heading."""


def show(parts: Sequence[Part], console: Console | None = None) -> None:
    """Print the tables of a report."""
    out = console or Console(highlight=False)
    for place, part in enumerate(parts):
        out.print(Text.assemble("\n" if place else "", (name(part.of, 60), "bold"), f"\n{part.about}"))
        for tables, _ in part.sections.values():
            for table in tables:
                _print_table(out, table)


def _print_table(out: Console, table: Table) -> None:
    if not table.rows:
        return
    shown = rich_table.Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.names:
        shown.add_column(column.heading, overflow="fold")
    for column in table.numbers:
        shown.add_column(column.heading, justify="right", no_wrap=True)
    rows = table.rows[: table.longest]
    for row in rows:
        shown.add_row(*(Text(name(column.of(row))) for column in table.names), *_numbers(table, row))
    if table.total and len(table.rows) > 1:
        shown.add_section()
        shown.add_row(Text("all", "bold"), *[""] * (len(table.names) - 1), *_numbers(table, table.total))
    out.print("", Text(table.title, "bold"), shown, sep="\n")
    if len(table.rows) > len(rows):
        out.print(Text(f"and {len(table.rows) - len(rows):,} more", "dim"))


def _numbers(table: Table, row: object) -> list[Text]:
    cells = [(column.of(row), STYLES.get(column.heading, "")) for column in table.numbers]
    return [Text(cell, "dim" if cell == "0" else style) for cell, style in cells]
