"""Help that reads well at any width, and comes at once: a command is imported only when it is called.

It is plain text. To draw boxes around it, typer imports a Markdown parser, which takes longer than all the rest.
"""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from keyword import iskeyword
from types import ModuleType
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from jqueue.cli.default_url import with_default_url

WIDEST = 120
"""Largest number of columns of a help text. Longer lines are hard to read."""

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""The environment variable by which pydantic leaves out plugins."""


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
    """A command with plain help. If its arguments name no queue, it takes the one of `JQUEUE_URL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in typer."""
        return super().parse_args(ctx, args if ctx.resilient_parsing else with_default_url(self.get_params(ctx), args))


class CommandGroup(_Plain, TyperGroup):
    """A group of commands with plain help. A command is imported when it is called.

    Attributes:
        package: name of the package with the commands. Each is a function, or a group, in a module of the same name,
            where a - is a _.
        summaries: the first paragraph of the help of each command, by its name.
    """

    package: ClassVar[str]
    summaries: ClassVar[Mapping[str, str]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands = _Commands(self.package, self.summaries)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """As in typer; nothing is imported."""
        return list(self.summaries)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """As in typer; nothing is imported."""
        commands = self.commands
        self.commands = {name: TyperCommand(name, help=text) for name, text in self.summaries.items()}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = commands

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """As in typer; nothing is imported, and no summary is cut."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))


class _Commands(Mapping[str, Any]):
    """The commands of a group by name. Each is imported when it is looked up."""

    def __init__(self, package: str, names: Mapping[str, str]) -> None:
        self._package = package
        self._names = names

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        found = getattr(_imported(f"{self._package}.{identifier(name)}"), identifier(name))
        return typer.main.get_command(found if isinstance(found, typer.Typer) else _alone(found))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def identifier(name: str) -> str:
    """Return the name of the module, and of the function, of a command."""
    return f"{name}_" if iskeyword(name) else name.replace("-", "_")


def _imported(name: str) -> ModuleType:
    """Import a module with all that it needs. Its objects live until the end: the garbage collector skips them.

    Plugins of pydantic are left out: to look for them among all installed packages takes long, and the models of jqueue
    need none. The modules of a user, which a worker imports later, get theirs.
    """
    before = os.environ.get(PLUGINS)
    os.environ[PLUGINS] = "__all__"
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()
        os.environ.pop(PLUGINS)
        if before is not None:
            os.environ[PLUGINS] = before


def group(kind: type[CommandGroup], **options: Any) -> typer.Typer:
    """Return a group of commands, without those yet.

    Args:
        kind: the class of the group.
        options: options of `typer.Typer`.
    """
    return typer.Typer(
        cls=kind,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDEST},
        **options,
    )


def _alone(function: Any) -> typer.Typer:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(cls=Command)(function)
    return made
