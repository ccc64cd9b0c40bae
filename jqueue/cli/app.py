"""The commands of `jqueue`, by the modules that have them."""

from __future__ import annotations

import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from jqueue._version import __version__
from jqueue.cli.help import ListedCommand

_URL = re.compile(r"[^\s'\"]*://[^\s'\"]*")


MODULES = {
    "worker": "worker",
    "jobs": "ls show",
    "enqueue": "enqueue",
    "changes": "cancel redrive purge update",
    "queue": "stats pause resume stop limit configure init",
    "cron": "schedule",
    "groups": "group",
    "history": "history",
    "metrics": "metrics",
    "dashboard": "dashboard serve",
    "transfer": "export import migrate",
    "doctor": "doctor",
    "repair": "repair",
}
"""Names of the commands in each module. A command is a function of the same name."""

WIDEST = 120
"""Largest number of columns of a help text. Longer lines are hard to read."""


class Commands(TyperGroup):
    """The commands, each imported when it is called. Errors about wrong arguments show no URL: it may hold a secret."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        places = {name: f"jqueue.cli.{module}" for module, names in MODULES.items() for name in names.split()}
        self.commands: MutableMapping[str, Any] = {name: ListedCommand(name, place) for name, place in places.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in typer; the command is imported."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed.imported() if isinstance(listed, ListedCommand) else listed, rest

    def make_context(self, *args: Any, **options: Any) -> Any:
        """As in typer."""
        with _hidden_urls():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """As in typer."""
        with _hidden_urls():
            return super().invoke(ctx)


@contextmanager
def _hidden_urls() -> Iterator[None]:
    """Take the URLs out of the messages of typer's errors: "no such command", "unexpected argument"."""
    try:
        yield
    except Exception as error:  # typer has no public name for its own
        if isinstance(message := getattr(error, "message", None), str):
            error.message = _URL.sub("(a URL)", message)  # type: ignore[attr-defined]
        raise


app: typer.Typer = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDEST},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import platform

        system = f"{platform.system()} {platform.machine()}"
        typer.echo(f"jqueue {__version__} on Python {platform.python_version()}, {system}")
        raise typer.Exit


@app.callback()
def jqueue(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Check stores, run workers, and look after job queues kept in files or object stores.

    Most commands take the URL of a queue first. With JQUEUE_URL set, it may be left out.
    """
