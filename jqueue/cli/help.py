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
    """A command with plain help. An argument whose environment variable is set is not taken from the command line."""

    def make_parser(self, ctx: Any) -> Any:
        """As in typer."""
        params, self.params = self.params, [each for each in self.params if not _is_set(each)]
        try:
            return super().make_parser(ctx)
        finally:
            self.params = params

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """As in typer. If an argument is too many, the error says which one is taken from the environment."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer has no public name for its own
            if "extra argument" in (message := str(getattr(error, "message", ""))):
                names = [str(each.envvar) for each in self.params if _is_set(each)]
                error.message = ". ".join([message, *(f"{name} is set: give no URL" for name in names)])  # type: ignore[attr-defined]
            raise


def _is_set(parameter: Any) -> bool:
    return parameter.param_type_name == "argument" and bool(parameter.envvar and os.environ.get(parameter.envvar))


class CommandGroup(_Plain, TyperGroup):
    """A group of commands with plain help. A command is imported when it is called.

    Attributes:
        package: name of the package with the commands.
        modules: the modules of the package, by name, each with its commands: the first paragraph of the help of each,
            by its name. A command is a function, or a group, of the same name.
    """

    package: ClassVar[str]
    modules: ClassVar[Mapping[str, Mapping[str, str]]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.summaries = {name: text for listed in self.modules.values() for name, text in listed.items()}
        places = {name: f"{self.package}.{module}" for module, listed in self.modules.items() for name in listed}
        self.commands = _Commands(places)  # type: ignore[assignment]

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

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> Any:
        found = getattr(_imported(self._places[name]), f"{name}_" if iskeyword(name) else name)
        return typer.main.get_command(found if isinstance(found, typer.Typer) else _alone(found))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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


def group(kind: type[CommandGroup], *, add_completion: bool = False, **options: Any) -> typer.Typer:
    """Return a group of commands.

    Args:
        kind: the class of the group.
        add_completion: True to give it typer's options that install the completion for a shell.
        options: other options of `typer.Typer`.
    """
    return typer.Typer(
        cls=kind,
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDEST},
        **options,
    )


def _alone(function: Any) -> typer.Typer:
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(cls=Command)(function)
    return made
