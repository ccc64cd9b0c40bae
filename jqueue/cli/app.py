"""The commands of `jqueue`, each in a file of its own."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from jqueue._version import __version__
from jqueue.cli import completion
from jqueue.cli.help import CommandGroup, group

_URL = re.compile(r"[^\s'\"]*://[^\s'\"]*")


class Commands(CommandGroup):
    """The commands. Errors about wrong arguments show no URL, which may hold a secret."""

    package = "jqueue.cli"
    summaries = {  # noqa: RUF012 - the base class says ClassVar
        "init": "Create an empty queue.",
        "enqueue": "Add a job, and print its id.",
        "doctor": "Check whether a store is safe for a queue.",
        "worker": "Run the worker of a program on a queue.",
        "ls": "List jobs: ready, running, dead; by entrypoint, age, holder, key or error.",
        "show": "Show one job with its whole life: attempts, errors, holder, times, events.",
        "stats": "Show the figures of a queue: jobs by entrypoint, rates, times, limits, size.",
        "watch": "Show the figures of a queue live on the whole screen, until Ctrl-C.",
        "history": "List what happened to jobs, the newest event first.",
        "workers": "List the workers of a queue, and other holders of its jobs.",
        "schedules": "List the cron entries of a queue, the next one first.",
        "metrics": "Print the metrics of a queue in the text format of Prometheus, or serve them.",
        "dead": "List dead jobs and their last errors, the latest last.",
        "redrive": "Queue dead jobs again: one by its ID, several by filters, or --all.",
        "purge": "Remove dead jobs for good, with their payloads: one by its ID, several by filters, or all.",
        "cancel": "Remove waiting jobs; with --running, also stop jobs in progress.",
        "pause": "Pause an entrypoint: workers claim none of its jobs until `jqueue resume`.",
        "resume": "End the pause of an entrypoint: workers claim its jobs again.",
        "reschedule": "Give waiting jobs another time: one by its ID, several by filters, or --all.",
        "reprioritise": "Give waiting jobs another priority: one by its ID, several by filters, or --all.",
        "run-now": "Make a scheduled job ready; of a cron entry, enqueue a job now.",
        "requeue-stale": "Take jobs back from workers that have not confirmed their claims for a time.",
        "repair": "Bring back the jobs of damaged segments that can be read. The others are given up.",
        "limit": "Set the limits of an entrypoint; without options, show its limits.",
        "configure": "Change the settings of a queue; without options, show them.",
        "schedule": "Set a cron entry: at each of its times, one job is enqueued, whatever the number of workers.",
        "unschedule": "Remove a cron entry. The jobs that it has enqueued stay.",
        "serve": "Serve a queue to programs on other machines, and to programs in any language by HTTP.",
        "dashboard": "Show a queue live in the browser, and change it there.",
        "export": "Write the jobs of a queue as JSON lines, with their payloads.",
        "import": "Add the jobs of an export to a queue.",
        "migrate": "Move the jobs of one queue to another.",
        "version": "Show the versions of jqueue and Python, and the extras that are installed.",
        "spark": 'Work on many jobs with Spark; needs pip install "jqueue[spark]" and Java.',
    }

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


app = group(Commands)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jqueue {__version__}")
        raise typer.Exit


@app.callback()
def jqueue(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    install_completion: Annotated[
        completion.Shell | None,
        typer.Option(callback=completion.install, is_eager=True, help="Install completion for a shell, and exit."),
    ] = None,
    show_completion: Annotated[
        completion.Shell | None,
        typer.Option(callback=completion.show, is_eager=True, help="Print the completion for a shell, and exit."),
    ] = None,
) -> None:
    """Check stores, run workers, and look after job queues kept in files or object stores."""
