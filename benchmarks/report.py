"""Results of a run of the benchmarks: a table in the terminal, and one JSON file with everything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from benchmarks.contest import Line
from benchmarks.figures import number
from benchmarks.runner import Outcome, Record, RowResult

NOTHING = "-"


def table_of(results: Iterable[RowResult]) -> Table:
    """One table of all lines: ours, theirs, the ratio with its range, the target, and whether it is met."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("row", "what", "ours", "theirs", "ratio (range)", "target", "met"):
        table.add_column(heading, justify="left" if heading in ("row", "what", "target") else "right", overflow="fold")
    for result in results:
        table.add_section()
        table.add_row(f"[bold]{escape(result.row.name)}[/]", f"[bold]{escape(result.row.title)}[/]")
        for outcome in result.outcomes:
            table.add_row("", *(escape(cell) for cell in cells_of(outcome, result.records)), _met(outcome))
            if outcome.reason:
                table.add_row("", f"[yellow]{escape(outcome.reason)}[/]")
    return table


def cells_of(outcome: Outcome, records: dict[str, Record]) -> list[str]:
    """Return the cells of a line except the last: what, ours, theirs, ratio and target."""
    line = outcome.line
    return [
        _what(line, records),
        number(outcome.ours),
        NOTHING if line.theirs is None else number(outcome.theirs),
        ratio_text(outcome),
        NOTHING if line.target is None else f"{line.target}" + (" (ours)" if line.is_control else ""),
    ]


def ratio_text(outcome: Outcome) -> str:
    """A ratio, with the lowest and highest of the paired runs if they differ."""
    if outcome.ratio is None:
        return NOTHING
    value, lowest, highest = (
        number(part) for part in (outcome.ratio.value, outcome.ratio.lowest, outcome.ratio.highest)
    )
    return value if lowest == highest else f"{value} ({lowest} to {highest})"


def document(
    results: Sequence[RowResult], machine: dict[str, Any], commit: str, runs: int, when: datetime | None = None
) -> dict[str, Any]:
    """Return all results of a run of the benchmarks, as JSON."""
    versions = {
        record.contestant.environment: record.versions
        for result in results
        for record in result.records.values()
        if record.versions
    }
    return {
        "date": (when or datetime.now(UTC)).isoformat(timespec="seconds"),
        "commit": commit,
        "machine": machine,
        "runs": runs,
        "versions": versions,
        "rows": [_row(result) for result in results],
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Write the JSON file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _row(result: RowResult) -> dict[str, Any]:
    return {
        "name": result.row.name,
        "title": result.row.title,
        "contestants": [_contestant(record) for record in result.records.values()],
        "lines": [_line(outcome) for outcome in result.outcomes],
    }


def _contestant(record: Record) -> dict[str, Any]:
    contestant = record.contestant
    return {
        "name": contestant.name,
        "environment": contestant.environment,
        "note": contestant.note,
        "arguments": dict(contestant.arguments),
        "needs": contestant.needs,
        "absent": record.absent,
        "runs": record.runs,
        "errors": record.errors,
        "medians": record.medians,
    }


def _line(outcome: Outcome) -> dict[str, Any]:
    line, ratio = outcome.line, outcome.ratio
    return {
        "what": line.what,
        "ours": {"contestant": line.ours.contestant, "figure": line.ours.figure, "median": outcome.ours},
        "theirs": None
        if line.theirs is None
        else {"contestant": line.theirs.contestant, "figure": line.theirs.figure, "median": outcome.theirs},
        "ratio": None if ratio is None else {"value": ratio.value, "lowest": ratio.lowest, "highest": ratio.highest},
        "target": None if line.target is None else str(line.target),
        "target_is_for": "ratio" if line.is_ratio else "ours",
        "met": outcome.met,
        "reason": outcome.reason,
    }


def _what(line: Line, records: dict[str, Record]) -> str:
    if line.theirs is None or line.theirs.contestant == line.ours.contestant:
        return line.what
    note = records[line.theirs.contestant].contestant.note
    return f"{line.what}, against {line.theirs.contestant}" + (f" ({note})" if note else "")


def _met(outcome: Outcome) -> str:
    if outcome.met is None:
        return NOTHING
    return "[green]yes[/]" if outcome.met else "[red]no[/]"
