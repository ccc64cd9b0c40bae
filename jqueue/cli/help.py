"""Commands that are imported only when they are called, with errors in one line and help that reads well at any width.

The help is plain text. To draw boxes around it, typer imports a Markdown parser, which takes longer than all the rest.
"""

from __future__ import annotations

import gc
import os
import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pkgutil import get_data
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand

PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""The environment variable by which pydantic leaves out plugins."""


OF_SERVERS = ("starlette", "uvicorn")
"""The packages that only the commands that serve need."""


class RefusedError(Exception):
    """A command cannot do its work. The message is the line that says why."""


class Command(TyperCommand):
    """A command with plain help, whose errors are lines, or JSON if it prints JSON.

    An argument whose environment variable is set may be left out of the command line.
    """

    params: list[Any]
    left_out: Any = None

    def invoke(self, ctx: Any) -> Any:
        """As in typer. Errors of jqueue, which hold no secrets of a URL, and missing extras are printed in one line."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            from jqueue.cli.printing import refusal
            from jqueue.domain.errors import JQueueError

            if not isinstance(error, RefusedError | JQueueError | ImportError):
                raise
            raise refusal(str(error), as_json=ctx.params.get("as_json", False)) from None

    def make_parser(self, ctx: Any) -> Any:
        """As in typer, without the argument that is left out."""
        params, self.params = self.params, [each for each in self.params if each is not self.left_out]
        try:
            return super().make_parser(ctx)
        finally:
            self.params = params

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """As in typer. First it is found out whether the command line has the argument of the environment."""
        params, arguments = self.params, [each for each in self.params if each.param_type_name == "argument"]
        self.params = [each for each in params if each not in arguments]
        try:
            words = super().make_parser(ctx).parse_args([*args])[1]
        finally:
            self.params = params
        self.left_out = next((each for each in arguments if _is_left_out(each, arguments, words)), None)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer has no public name for its own
            named = [each for each in arguments if each.envvar and each is not self.left_out]
            if named and getattr(error, "param", None) in arguments and not getattr(error, "message", ""):
                error.message = f"The first argument is the URL of the queue, unless {named[0].envvar} names it"  # type: ignore[attr-defined]
            raise


def _is_left_out(argument: Any, arguments: list[Any], words: list[str]) -> bool:
    """Return True if an argument, a URL, is taken from the environment: the words are those of the other arguments.

    A word that may be another argument, too, is the URL if it has a scheme or is the name of a JSON file.
    """
    if not (argument.envvar and os.environ.get(argument.envvar)):
        return False
    others = [each for each in arguments if each is not argument]
    word = "".join(words[arguments.index(argument) :][:1])
    is_url = "://" in word and not word.startswith(("http:", "https:"))  # an id may be the address of a page
    is_file = word.endswith(".json") and len(words) > sum(each.required for each in others)
    return len(words) <= len(others) and not is_url and not is_file


class ListedCommand(TyperCommand):
    """A command in a list. It is not imported: its summary is read from the source of its module.

    Args:
        name: its name.
        module: name of its module.
    """

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self.module = module

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the summary, which is not cut."""
        return _summaries(self.module).get(str(self.name), "")

    def imported(self) -> Any:
        """Return the command."""
        name = f"{self.name}_" if iskeyword(str(self.name)) else str(self.name)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(cls=Command)(getattr(_imported(self.module), name))
        return typer.main.get_command(alone)


_SUMMARY = re.compile(
    r'^def (\w+?)_?\((?:(?!^def ).)*?\) -> [^\n]+:\n    """(.+?)(?:\n\n|""")', flags=re.DOTALL | re.MULTILINE
)
"""A function of a module, and the first paragraph of its docstring. To parse the modules would take 40 ms."""


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the first paragraph of the docstring of each function of a module, by its name. None without sources."""
    package, _, name = module.rpartition(".")
    source = b""
    with suppress(OSError):
        source = get_data(package, f"{name}.py") or b""
    return {name: " ".join(text.split()) for name, text in _SUMMARY.findall(source.decode())}


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
    except ImportError as error:
        from jqueue.cli.printing import refusal

        if (error.name or "").partition(".")[0] in OF_SERVERS:
            raise refusal('this command needs more packages: pip install "jqueue[dashboard]"') from None
        if isinstance(error, ModuleNotFoundError):
            raise
        raise refusal(str(error)) from None  # it names the package that is missing
    finally:
        gc.freeze()
        gc.enable()
        os.environ.pop(PLUGINS)
        if before is not None:
            os.environ[PLUGINS] = before
