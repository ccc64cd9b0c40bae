"""Lists of many rows in columns, written as they come. On a terminal, no row is longer than its width."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from jqueue.domain.printable import printable

AT_ONCE = 1000
"""Number of lines that are written at once."""

LEAST = 16
"""Width below which a column is not cut, unless it says otherwise."""

GAP = "  "
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Cell(NamedTuple):
    """One text in a row. It need not be printable."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        title: its title.
        right: True for numbers.
        cut: True if its texts may be cut to fit a terminal. The widest such column is cut first.
        least: width below which it is not cut.
    """

    title: str
    right: bool = False
    cut: bool = False
    least: int = LEAST


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where rows are written.

    Attributes:
        width: columns of the terminal; None for a pipe or a file, where nothing is cut.
        colours: True if it shows colours.
    """

    width: int | None = None
    colours: bool = False

    @classmethod
    def of_stdout(cls) -> Terminal:
        """Return the terminal of the standard output. `NO_COLOR` switches its colours off."""
        if not sys.stdout.isatty():
            return cls()
        dumb = os.environ.get("TERM", "") in ("", "dumb") or bool(os.environ.get("NO_COLOR"))
        return cls(shutil.get_terminal_size().columns, not dumb)

    def styled(self, text: str, style: str) -> str:
        """Return a text in a style, if there are colours. The text must be printable."""
        return f"\x1b[{CODES[style]}m{text}\x1b[0m" if style and text and self.colours else text


class Layout:
    """Columns whose widths are decided by the first rows.

    Args:
        columns: the columns.
        terminal: the place where the lines will be written.
    """

    def __init__(self, columns: Sequence[Column], terminal: Terminal) -> None:
        self._columns = columns
        self._widths: list[int] = []
        self._terminal = terminal

    def lines(self, rows: Iterable[Sequence[Cell]]) -> list[str]:
        """Return the lines of rows, the titles before the first. No cell can control the terminal.

        Args:
            rows: the next rows, each with a cell for each column.
        """
        cells = [_all_printable(row) for row in rows]
        if not self._widths:
            cells.insert(0, [Cell(column.title, "dim") for column in self._columns])
            self._widths = _widths(self._columns, cells, self._terminal.width)
        return [_line(self._columns, row, self._widths, self._terminal) for row in cells]


def write_lines(lines: Iterable[str]) -> None:
    """Write lines to the standard output as they come, some at a time."""
    coming = iter(lines)
    while some := list(islice(coming, AT_ONCE)):
        sys.stdout.write("\n".join(some) + "\n")
    sys.stdout.flush()


def width_of(text: str) -> int:
    """Return the number of terminal columns that a printable text takes."""
    if text.isascii():
        return len(text)
    return cell_len(text)


def cut(text: str, width: int) -> str:
    """Return a printable text of at most this width, with an ellipsis if it was longer."""
    if width_of(text) <= width:
        return text
    return f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def _all_printable(row: Sequence[Cell]) -> list[Cell]:
    joined = (Cell(" ".join(cell.text.split()), cell.style) if "\n" in cell.text else cell for cell in row)
    return [cell if cell.text.isprintable() else Cell(printable(cell.text), cell.style) for cell in joined]


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[int]:
    """Return the width of each column. On a terminal, the columns that may be cut share what the others leave."""
    widths = [max(width_of(row[place].text) for row in rows) for place in range(len(columns))]
    if width is None:
        return widths
    surplus = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while surplus > 0 and (longer := [n for n, each in enumerate(columns) if each.cut and widths[n] > each.least]):
        widths[max(longer, key=lambda place: widths[place])] -= 1
        surplus -= 1
    return widths


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], terminal: Terminal) -> str:
    cells = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = cut(cell.text, width) if column.cut and terminal.width is not None else cell.text
        space = " " * (width - width_of(text))
        styled = terminal.styled(text, cell.style)
        cells.append(space + styled if column.right else styled + space)
    return GAP.join(cells).rstrip()
