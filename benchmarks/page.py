"""The figures of a run as a table of Markdown, put into a page between two marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.figures import number

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
DRAWN = "growth"
"""The row that is drawn as a picture and left out of the table."""

HEADINGS = ("what", "ours", "theirs", "ratio", "target", "met")


def markdown(found: dict[str, Any]) -> str:
    """Return the table of a run, from the results written by `make bench`."""
    machine, lines = found["machine"], []
    described = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items())
    lines += [f"{_runs(found)} on {found['date'][:10]}: {described}.", ""]
    lines += [f"| {' | '.join(HEADINGS)} |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for row in found["rows"]:
        if row["name"] == DRAWN:
            continue
        lines.append(f"| **{row['title']}{_measured_apart(row)}** | | | | | |")
        notes = {contestant["name"]: contestant["note"] for contestant in row["contestants"]}
        lines += [f"| {' | '.join(_cells(line, notes))} |" for line in row["lines"]]
    return "\n".join(lines)


def put(results: Path, page: Path) -> None:
    """Replace the table in the page.

    Raises:
        ValueError: the page has no place for it.
    """
    text = page.read_text(encoding="utf-8")
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} has no place for the figures: add a line {BEGIN} and a line {END}")
    table = markdown(json.loads(results.read_text(encoding="utf-8")))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def _measured_apart(row: dict[str, Any]) -> str:
    """Return a note on the runs and date of a row taken from another run, or "" for other rows."""
    measured = row.get("measured")
    return f" ({_runs(measured)} on {measured['date'][:10]})" if measured else ""


def _runs(found: dict[str, Any]) -> str:
    return f"{found['runs']} run{'' if found['runs'] == 1 else 's'}"


def _cells(line: dict[str, Any], notes: dict[str, str]) -> list[str]:
    ours, theirs, ratio = line["ours"], line["theirs"], line["ratio"]
    what = line["what"]
    if theirs is not None and theirs["contestant"] != ours["contestant"]:
        note = notes.get(theirs["contestant"])
        what += f", against {theirs['contestant']}" + (f" ({note})" if note else "")
    if line["reason"]:
        what += f": {line['reason']}"
    met = {None: "", True: "yes", False: "**no**"}[line["met"]]
    value, lowest, highest = (number(ratio[part]) if ratio else "" for part in ("value", "lowest", "highest"))
    span = value if lowest == highest else f"{value} ({lowest} to {highest})"
    return [
        what,
        number(ours["median"]),
        "" if theirs is None else number(theirs["median"]),
        span,
        line["target"] or "",
        met,
    ]
