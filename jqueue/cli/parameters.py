"""Options and arguments of commands, declared in a line each. None shows a default: its help tells it."""

from __future__ import annotations

from typing import Any

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option that takes a value.

    Args:
        metavar: what its value is, as the help shows it.
        text: the help.
        names: its names, if they are not those of the parameter.
        more: other arguments of `typer.Option`.
    """
    return typer.Option(*names, metavar=metavar, help=text, show_default=False, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    """Return an argument. It is required if its parameter has no default."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **more)
