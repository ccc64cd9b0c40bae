"""The commands of `jqueue`, each in a file of its own."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from jqueue._version import __version__
from jqueue.cli.cancel import cancel
from jqueue.cli.dead import dead
from jqueue.cli.doctor import doctor
from jqueue.cli.help import Command, CommandGroup
from jqueue.cli.migrate import migrate
from jqueue.cli.pause import pause
from jqueue.cli.purge import purge
from jqueue.cli.redrive import redrive
from jqueue.cli.resume import resume
from jqueue.cli.spark import spark
from jqueue.cli.stats import stats
from jqueue.cli.worker import worker

_URL = re.compile(r"[^\s'\"]*://[^\s'\"]*")


class Commands(CommandGroup):
    """The commands. Errors about wrong arguments show no URL, which may hold a secret."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """As in typer."""
        with _HidingURLs():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """As in typer."""
        with _HidingURLs():
            return super().invoke(ctx)


class _HidingURLs:
    """Takes the URLs out of the messages of typer's errors: "no such command", "unexpected argument"."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        message = getattr(error, "message", None)
        if isinstance(message, str):
            error.message = _URL.sub("(a URL)", message)  # type: ignore[union-attr]


app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (doctor, worker, stats, dead, redrive, purge, cancel, pause, resume, migrate):
    app.command(cls=Command)(command)
app.add_typer(spark)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jqueue {__version__}")
        raise typer.Exit


@app.callback()
def jqueue(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Check stores, run workers, and look after job queues kept in files or object stores."""
