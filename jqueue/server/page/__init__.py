"""The files of the page: one HTML file, one style sheet, and scripts without dependencies."""

from __future__ import annotations

from functools import cache
from importlib.resources import files as files_of

STYLE = "style.css"

SCRIPTS = (
    "dom.js",
    "format.js",
    "charts.js",
    "statistics.js",
    "source.js",
    "actions.js",
    "views.js",
    "jobs.js",
    "app.js",
    "start.js",
)
"""The scripts. A script stands after the ones that it imports."""


def files() -> tuple[str, ...]:
    """Return the names of the files that the page loads."""
    return (STYLE, *SCRIPTS)


@cache
def read(name: str) -> str:
    """Return the text of a file of the page."""
    return files_of(__name__).joinpath(name).read_text(encoding="utf-8")


def media_type(name: str) -> str:
    """Return the type of a file for its answer."""
    return "text/css" if name.endswith(".css") else "text/javascript"
