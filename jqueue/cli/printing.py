"""The output of the commands: lines that cannot control a terminal, times and sizes in words."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import typer

from jqueue.cli import UNUSABLE as UNUSABLE
from jqueue.cli.columns import write_lines
from jqueue.core.json_views import instant as instant
from jqueue.domain.durations import in_words
from jqueue.domain.printable import counted, printable


def refusal(message: str, *, as_json: bool = False) -> typer.Exit:
    """Print in one line why a command cannot do its work. The caller must raise the result."""
    if as_json:
        write_lines([json.dumps({"error": printable(message)})])
    else:
        note(message)
    return typer.Exit(UNUSABLE)


def show_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json.dumps(values, indent=2))


def tell(values: Mapping[str, Any], *lines: str, as_json: bool) -> None:
    """Print an answer: as JSON, or for people."""
    if as_json:
        show_json(values)
    else:
        show(*lines)


def note(message: str) -> None:
    """Print a line for people beside the output, on the standard error, if that can be written."""
    with suppress(OSError):
        typer.echo(f"jqueue: {printable(message)}", err=True)


def show(*lines: str) -> None:
    """Print lines for people. They are folded to the width of the terminal, but for longer words, such as paths."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        write_lines(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""])


def jobs(number: int) -> str:
    """Return a number of jobs, in words."""
    return counted(number, "job")


def length(duration: timedelta | float) -> str:
    """Return a rounded duration: see `in_words`."""
    return in_words(duration.total_seconds() if isinstance(duration, timedelta) else duration)


def age(duration: timedelta | float) -> str:
    """Return a duration in whole seconds at least; one below 0 counts as 0, because clocks may disagree."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return length(int(max(0.0, seconds)))


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
