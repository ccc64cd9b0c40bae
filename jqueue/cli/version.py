"""`jqueue version`: the versions of jqueue and Python, and the extras that are installed, for a report of a problem."""

from __future__ import annotations

import platform
from importlib.util import find_spec

import typer

from jqueue._version import __version__
from jqueue.cli.on_queue import AsJSON
from jqueue.cli.printing import show_json

EXTRAS = {
    "s3": "aiobotocore",
    "gcs": "google.cloud.storage",
    "azure": "azure.storage.blob",
    "formats": "watchfiles",
    "metrics": "prometheus_client",
    "otel": "opentelemetry.trace",
    "dashboard": "starlette",
    "processes": "pebble",
    "spark": "pyspark",
}
"""The extras, each with a module that it brings."""


def version(as_json: AsJSON = False) -> None:
    """Show the versions of jqueue and Python, and the extras that are installed."""
    extras = [name for name, module in EXTRAS.items() if _is_installed(module)]
    system = f"{platform.system()} {platform.machine()}"
    if as_json:
        show_json({"jqueue": __version__, "python": platform.python_version(), "system": system, "extras": extras})
        return
    typer.echo(f"jqueue {__version__} on Python {platform.python_version()}, {system}")
    typer.echo(f"extras: {', '.join(extras) or 'none'}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False
