"""The output of the commands: lines that cannot control a terminal, tables that fit 80 columns.

Commands that print JSON do not import rich, which takes as long as reading a thousand jobs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from jqueue.cli.columns import write_lines
from jqueue.core.shown import instant as instant
from jqueue.domain.printable import counted, printable

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

UNUSABLE = 2
"""Exit code of a command that could not do its work."""

UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def refusal(message: str, *, as_json: bool = False) -> typer.Exit:
    """Print in one line why a command cannot do its work. The caller must raise the result."""
    if as_json:
        write_lines([json.dumps({"error": printable(message)})])
    else:
        typer.echo(f"jqueue: {printable(message)}", err=True)
    return typer.Exit(UNUSABLE)


def show_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(values, indent=2))


def tell(values: Mapping[str, Any], *parts: Table | Text | str, as_json: bool) -> None:
    """Print an answer: as JSON, or for people."""
    if as_json:
        show_json(values)
    else:
        show(*parts)


def note(message: str) -> None:
    """Print a line for people beside the output, on the standard error."""
    typer.echo(f"jqueue: {printable(message)}", err=True)


def show(*parts: Table | Text | str) -> None:
    """Print for people. No text is taken for markup."""
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(*(Text(part) if isinstance(part, str) else part for part in parts), sep="\n")


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Return a table that folds texts that are too long, and never folds numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        number = column in numbers
        made.add_column(column, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return made


def count(number: int) -> Text:
    """Return a number, dimmed if it is zero."""
    from rich.text import Text

    return Text(f"{number:,}", "" if number else "dim")


def jobs(number: int) -> str:
    """Return a number of jobs, in words."""
    return counted(number, "job")


def length(duration: timedelta | float) -> str:
    """Return a rounded duration, in the largest unit of which it has at least two."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    for name, unit in UNITS:
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    return f"{seconds:.3g} s" if 0 < seconds < 1 else f"{int(seconds)} s"


def age(duration: timedelta | float) -> str:
    """Return a duration in whole seconds at least; one below 0 counts as 0, because clocks may disagree."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return length(int(max(0.0, seconds)))


def brief(seconds: float) -> str:
    """Return a rounded duration, in milliseconds if it is below one second."""
    return length(seconds) if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def ago(time: datetime, now: datetime) -> str:
    """Return a time in UTC, and its distance from now."""
    seconds = (now - time).total_seconds()
    return f"{moment(time)} UTC, {f'in {age(-seconds)}' if seconds < 0 else f'{age(seconds)} ago'}"


def size(number: int) -> str:
    """Return a number of bytes, in words."""
    if number < 1 << 10:
        return counted(number, "byte")
    return f"{number / (1 << 10):.1f} KiB" if number < 1 << 20 else f"{number / (1 << 20):.1f} MiB"


def moment(time: datetime | None) -> str:
    """Return a time in UTC, without its zone."""
    return "" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
