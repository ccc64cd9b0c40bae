"""Completion of commands and options in bash, zsh and fish, as typer has it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

VARIABLE = "_JQUEUE_COMPLETE"
"""The environment variable by which a shell asks for completions."""


class Shell(StrEnum):
    """The shells that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def answer_shells() -> None:
    """Let typer answer the questions of a shell."""
    from typer.completion import completion_init  # type: ignore[attr-defined] # all versions have it

    completion_init()


def install(context: Any, option: Any, shell: Shell | None) -> None:
    """Install the completion for a shell, and exit."""
    from typer.completion import install_callback

    if shell is not None:
        install_callback(context, option, shell.value)


def show(context: Any, option: Any, shell: Shell | None) -> None:
    """Print the script for a shell, and exit."""
    from typer.completion import show_callback

    if shell is not None:
        show_callback(context, option, shell.value)
