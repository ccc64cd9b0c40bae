"""The commands of `jqueue`, by the modules that have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import typer

from jqueue._version import __version__
from jqueue.cli.help import CommandGroup, group

_URL = re.compile(r"[^\s'\"]*://[^\s'\"]*")


class Commands(CommandGroup):
    """The commands. Errors about wrong arguments show no URL, which may hold a secret."""

    package = "jqueue.cli"
    modules: ClassVar[dict[str, str]] = {
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
        "spark": "spark",
    }

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


app: typer.Typer = group(Commands, add_completion=True)


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
