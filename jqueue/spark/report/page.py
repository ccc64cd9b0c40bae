"""The page of a report. Its looks are in `templates/`.

It needs nothing else: no script, no font, no file from anywhere, and its own policy forbids them. The names and the
classes of errors come from programs that enqueue jobs, so the template escapes everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jqueue._version import __version__
from jqueue.domain.printable import printable
from jqueue.runtime.posix_files import storage_errors
from jqueue.spark.report.sections import Part

try:
    import matplotlib  # noqa: F401
    from jinja2 import Environment, PackageLoader, StrictUndefined
except ImportError as error:
    raise ImportError('the page of a report needs Jinja and Matplotlib: pip install "jqueue[report]"') from error

MOST_ROWS = 1000
"""Largest number of rows in a table of the page; the DataFrame has all."""


def write_page(path: str | Path, parts: Sequence[Part]) -> Path:
    """Write the page to a file, and return its path.

    Raises:
        StorageError: the file cannot be written. The message says why.
    """
    loader = PackageLoader("jqueue.spark.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["printable"] = printable
    template = environment.get_template("page.html.jinja")
    place, text = Path(path), template.render(version=__version__, parts=parts, most=MOST_ROWS)
    with storage_errors("write the page", str(place)):
        place.write_text(text, encoding="utf-8")
    return place
