"""The tables of the pages have every option, metric, column, package and capability of the code, once."""

import re
import tomllib
from pathlib import Path

import pytest

import jqueue
from jqueue.connect.parsed_url import EXAMPLES
from jqueue.connect.stores import FORMATS
from jqueue.domain.job_options import ALL_OPTIONS
from jqueue.server.access import ACCESS, HIDDEN, REPLACING, Role
from jqueue.spark import snapshot
from jqueue.spark.enqueue import columns, writing
from jqueue.spark.stream import source
from jqueue.telemetry.catalog import COMMIT_METRICS, QUEUE_METRICS, WORKER_METRICS
from jqueue.worker.handler_options import HandlerArguments

DOCS = Path(__file__).parents[2] / "docs"

NAMES = {
    ("guide/enqueue.md", "| option | meaning |\n"): ALL_OPTIONS,
    ("guide/handlers.md", "| option | meaning |\n"): tuple(HandlerArguments.__annotations__),
    ("reference/pipeline.md", "<!-- options: writing -->\n"): writing.OPTIONS,
    ("reference/pipeline.md", "<!-- options: snapshot -->\n"): snapshot.KNOWN,
    ("reference/pipeline.md", "<!-- options: source -->\n"): source.OPTIONS,
    ("reference/pipeline.md", "| column | type |"): columns.EXPECTED,
}
"""The names in the first column of the table after a text of a page."""

OLDER = {
    "vsqs": "vsqs:///tmp/folder",
    "dirq simple": "dirq:///tmp/folder?kind=simple",
    "dirq queue": "dirq:///tmp/folder?kind=queue",
    "TextQueue": "textq:///tmp/file.tq",
}
"""A URL for each column of the table of older formats."""


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "start"), NAMES)
def test_a_table_has_every_name_once(page, start):
    table = text_of(page).partition(start)[2].partition("\n\n")[0]
    listed = [name for line in table.splitlines() if "|" in line for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(NAMES[page, start]) == sorted(listed)


def test_the_page_on_metrics_has_the_tables_of_the_catalog():
    page = text_of("operations/metrics.md")
    for name, metrics in {"the queue": QUEUE_METRICS, "a worker": WORKER_METRICS, "commits": COMMIT_METRICS}.items():
        rows = [
            f"| `{metric.name}` | {metric.kind} | "
            f"{', '.join(f'`{label}`' for label in metric.labels if label != 'queue')} | {metric.description} |"
            for metric in metrics
        ]
        table = "\n".join(["| metric | kind | more labels | meaning |", "| --- | --- | --- | --- |", *rows])
        assert table == page.partition(f"<!-- metrics of {name} -->\n\n")[2].partition("\n\n")[0]


def test_the_page_on_deployment_has_the_table_of_rights():
    rows = dict[str, frozenset[Role]]()
    operations = dict[frozenset[Role], list[str]]()
    for what, roles in ACCESS.items():
        if isinstance(what, str):
            rows[f"`{what}`"] = roles
        elif roles:
            operations.setdefault(roles, []).append(f"`{what.__name__}`")
    rows |= {f"in `POST /v1/calls`: {', '.join(names)}": roles for roles, names in operations.items()}
    rows["replace a job by an enqueue with its unique key"] = REPLACING
    for field in sorted(frozenset[str]().union(*HIDDEN.values())):
        rows[f"see `{field}` of a job"] = frozenset(role for role in Role if field not in HIDDEN[role])
    lines = [
        f"| {what} | {' | '.join('yes' if role in roles else 'no' for role in Role)} |" for what, roles in rows.items()
    ]
    table = "\n".join([f"| may | {' | '.join(Role)} |", f"| --- |{' --- |' * len(Role)}", *lines])
    assert table == text_of("operations/deploy.md").partition("<!-- rights -->\n\n")[2].partition("\n\n")[0].rstrip()


def test_the_page_on_platforms_has_the_lowest_version_of_each_package():
    page = text_of("project/platforms.md").partition("## Packages")[2].partition("## Pythons")[0].lower()
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]+)\|", page, re.MULTILINE)))
    needed = [*project["dependencies"], *(need for each in extras for need in project["optional-dependencies"][each])]
    assert len(extras) == 13
    for name, version in re.findall(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", " ".join(needed)):
        assert f"{name} {version}" in page


def test_the_page_on_older_formats_has_the_capabilities_and_urls_of_each():
    page = text_of("reference/formats.md")
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page[page.index("| capability |") :].partition("\n\n")[0].splitlines()
    ]
    unlisted = re.search(r"None of them has ([^.]*)\.", page)
    assert unlisted is not None
    assert all(EXAMPLES[scheme] in page for scheme in FORMATS)
    for column, url in OLDER.items():
        capabilities = jqueue.connect(url).capabilities
        listed = {row[0].strip("`"): row[header.index(column)] for row in rows}
        assert {name: "yes" if getattr(capabilities, name) else "no" for name in listed} == listed
        assert set(capabilities.missing) - listed.keys() == set(re.findall(r"`(\w+)`", unlisted[1]))
