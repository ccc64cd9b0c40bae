"""The commands of `jqueue`, by the modules that have them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from jqueue._version import __version__
from jqueue.cli.help import CommandGroup, group

_URL = re.compile(r"[^\s'\"]*://[^\s'\"]*")


class Commands(CommandGroup):
    """The commands. Errors about wrong arguments show no URL, which may hold a secret."""

    package = "jqueue.cli"
    modules = {  # noqa: RUF012 - the base class says ClassVar
        "worker": {"worker": "Run the worker of a program on a queue."},
        "jobs": {
            "ls": "List jobs: ready, running, dead; by entrypoint, age, holder, key, error or payload.",
            "show": "Show one job with its whole life: attempts, errors, holder, times, events.",
        },
        "enqueue": {"enqueue": "Add a job, and print its id."},
        "changes": {
            "cancel": "Remove waiting jobs; with --running, also stop jobs in progress.",
            "redrive": "Queue dead jobs again: by ID, filters or --all; with --stale, the jobs of dead workers.",
            "purge": "Remove dead jobs for good, with their payloads: one by its ID, several by filters, or all.",
            "update": "Give waiting jobs another time or priority: one by its ID, several by filters, or --all.",
        },
        "queue": {
            "stats": "Show the figures of a queue: jobs by entrypoint, rates, times, workers, limits, cron entries.",
            "pause": "Pause an entrypoint: workers claim none of its jobs until `jqueue resume`.",
            "resume": "End the pause of an entrypoint: workers claim its jobs again.",
            "stop": "Tell a worker to stop, on whatever machine: it finishes its jobs or hands them back, and ends.",
            "limit": "Set the limits of an entrypoint; without options, show its limits.",
            "configure": "Change the settings of a queue; without options, show them.",
            "init": "Create an empty queue.",
        },
        "cron": {
            "schedule": "Set a cron entry, which enqueues a job at each of its times; or --remove it, or --run-now."
        },
        "history": {"history": "List what happened to jobs, the newest event first."},
        "metrics": {"metrics": "Print the metrics of a queue in the text format of Prometheus, or serve them."},
        "dashboard": {
            "dashboard": "Show a queue live in the browser, and change it there.",
            "serve": "Serve a queue to programs on other machines, and to programs in any language by HTTP.",
        },
        "transfer": {
            "export": "Write the jobs of a queue as JSON lines, with their payloads.",
            "import": "Add the jobs of an export to a queue.",
            "migrate": "Move the jobs of one queue to another.",
        },
        "doctor": {"doctor": "Check whether a store is safe for a queue."},
        "repair": {"repair": "Bring back the jobs of damaged segments that can be read. The others are given up."},
        "spark": {"spark": 'Work on many jobs with Spark; needs pip install "jqueue[spark]" and Java.'},
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


app = group(Commands, add_completion=True)


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

    Most commands take the URL of a queue first. With JQUEUE_URL set, it names the queue, and commands take none.
    """
