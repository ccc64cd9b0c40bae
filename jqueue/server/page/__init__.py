"""The files of the page: one HTML file, one style sheet, and scripts without dependencies."""

from __future__ import annotations

from functools import cache
from importlib.resources import files as files_of

INDEX, STYLE = "index.html", "style.css"

SCRIPTS = (
    "format.js", "dom.js", "charts.js", "statistics.js", "actions.js", "views.js", "jobs.js", "app.js", "source.js",
)  # fmt: skip


def files() -> tuple[str, ...]:
    """Return the names of the files that the page loads from its server."""
    return (STYLE, *SCRIPTS)


@cache
def read(name: str) -> str:
    """Return the text of a file of the page."""
    return files_of(__name__).joinpath(name).read_text(encoding="utf-8")


def media_type(name: str) -> str:
    """Return the type of a file for its answer."""
    return {"css": "text/css", "html": "text/html; charset=utf-8"}.get(name.rpartition(".")[2], "text/javascript")
