"""The figures of a run as a table of Markdown, put into a page between two marks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import number

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
DRAWN = "growth"
"""The row that is drawn as a picture and left out of the table."""

HEADINGS = ("what", "ours", "theirs", "ratio", "target")


def markdown(found: dict[str, Any]) -> str:
    """Return the table of a run, from the results written by `make bench`.

    A missed target is bold. A row tells its runs and date, and a contestant its note, where they are new to the reader.
    """
    rows = [row for row in found["rows"] if row["name"] != DRAWN]
    [(usual, _)] = Counter(_runs(row.get("measured") or found) for row in rows).most_common(1)
    described = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["machine"].items())
    lines = [f"{usual}, where a row says nothing else: {described}.", ""]
    lines += [_line(HEADINGS), "|---|---:|---:|---:|---|"]
    noted = set[tuple[str, str]]()
    for row in rows:
        runs = _runs(row.get("measured") or found)
        lines.append(_line([f"**{row['title']}**" + (f" ({runs})" if runs != usual else "")]))
        notes = {contestant["name"]: contestant["note"] for contestant in row["contestants"]}
        lines += [_line(_cells(line, notes, noted)) for line in row["lines"]]
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


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(cells).rstrip('|')}|"


def _runs(found: dict[str, Any]) -> str:
    return f"{found['runs']} run{'' if found['runs'] == 1 else 's'} on {found['date'][:10]}"


def _cells(line: dict[str, Any], notes: dict[str, str], noted: set[tuple[str, str]]) -> list[str]:
    ours, theirs, ratio = line["ours"], line["theirs"], line["ratio"]
    what = line["what"]
    if theirs is not None and theirs["contestant"] != ours["contestant"]:
        note = (theirs["contestant"], notes.get(theirs["contestant"]) or "")
        what += f", against {note[0]}" + (f" ({note[1]})" if note[1] and note not in noted else "")
        noted.add(note)
    if line["reason"]:
        what += f": {line['reason']}"
    target = (line["target"] or "").replace(" ", "")
    value, lowest, highest = (number(ratio[part]) if ratio else "" for part in ("value", "lowest", "highest"))
    return [
        what,
        number(ours["median"]),
        "" if theirs is None else number(theirs["median"]),
        value if lowest == highest else f"{value} ({lowest}-{highest})",
        f"**{target}**" if line["met"] is False else target,
    ]
