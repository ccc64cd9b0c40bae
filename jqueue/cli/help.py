"""Help that reads well at any width: paragraphs without the line breaks of the source, and flags without a type."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup


def _in_paragraphs(text: str) -> str:
    """Return a text whose paragraphs are one line each, for the terminal to fold."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


class _Plain:
    """Shared behaviour of commands and groups of commands."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "help": _in_paragraphs(options.get("help") or "")})

    def get_params(self, ctx: Any) -> list[Any]:
        """As in typer; a flag takes no value, so no type is shown."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return parameters


class Command(_Plain, TyperCommand):
    """A command with plain help."""


class CommandGroup(_Plain, TyperGroup):
    """A group of commands with plain help."""
