"""How Sphinx builds the site from this folder: `make docs`."""

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import typer
from pydantic import BaseModel
from sphinx.application import Sphinx
from typer.cli import get_docs_for_click
from typer.main import get_command

from jqueue import __version__
from jqueue.cli.app import app as commands
from jqueue.domain.errors import JQueueError
from jqueue.operations import EnqueuedJobs, Operation

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPOSITORY = "https://github.com/janbjorge/jqueue"
STEPS_UP = re.compile(r"\]\(((?:\.\./)+[^)#\s]*)")
"""The target of a link that begins with steps up."""

COLON = "\ue000"
"""Stands for a colon and a space while Napoleon reads a docstring."""

PAGE = re.compile(r"^- \[([^]]+)\]\(([^)#]+)\.md\): (.+)$", re.MULTILINE)
"""A page in the lists of `LISTS`: its title, its name, and what is in it."""

LISTS = ("index.md", "reference/README.md")

SOUGHT = {
    "guide/results": ["cancel running job", "stop a job"],
    "guide/handlers": ["job timeout", "middleware"],
    "guide/claim-jobs": ["status of a job"],
    "guide/changing-handlers": ["rename a handler"],
    "operations/traces": ["sentry", "structured logs", "json logs"],
    "guide/web": ["jupyter"],
    "operations/deploy": ["docker compose", "kubernetes"],
    "guide/command-line": ["clear the queue", "empty the queue"],
}
"""Queries whose words a page does not have, by the page: the search gives that page first."""

MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=\w)")
"""The modules before a name, in a type."""

ANNOTATED = re.compile(r"~?(?:\w+\.)*Annotated\[")
DURATION = re.compile(r"~?(?:\w+\.)*timedelta \| float \| int|~?(?:\w+\.)*Annotated\[float, [^]]*ge=0, le=\d+\)[^]]*\]")
"""The types that are a `Duration`, as Python spells them out."""

FILTERS = re.compile(r"(?:^\* `--[a-z-]+ [A-Z]+`: Only (?:running )?jobs .*\n){3,}", re.MULTILINE)
"""The options of a command that choose jobs, on the page of commands."""

UNCALLED = (BaseModel, JQueueError, EnqueuedJobs)
"""Classes whose objects callers get, and do not make."""

LONGEST_TYPE = 160
"""Number of characters of the longest type of an attribute that is shown."""

SUMMARY = "A job queue for asyncio programs in Python whose whole state is one JSON object in a file or a bucket."

project = "jqueue"
copyright = "the jqueue authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
default_role = "code"
autodoc_mock_imports = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]  # they are large
smartquotes = False  # the two hyphens of an option stay two
myst_heading_anchors = 4
copybutton_exclude = ".linenos, .gp, .go"
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = f"jqueue {__version__}"
html_baseurl = "https://janbjorge.github.io/jqueue/"
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main", "source_directory": "docs/"}
html_show_sphinx = False
html_search_scorer = str(DOCS / "search_scorer.js")


def describe_commands(app: Sphinx) -> None:
    """Write the page of all commands and their options, which the command line itself describes."""
    command = get_command(commands)
    context = typer.Context(command, info_name="jqueue")
    _import_commands(command, context)
    text = get_docs_for_click(obj=command, ctx=context, name="jqueue", title="Commands")
    start = text.index("\n## ")
    filters = f"\n## Filters\n\nOptions that choose jobs. A job must match all of them.\n\n{FILTERS.findall(text)[0]}"
    text = text[:start] + filters + FILTERS.sub(_name_filters, text[start:])
    (DOCS / "reference" / "api" / "commands.md").write_text(text, encoding="utf-8")


def _name_filters(match: re.Match[str]) -> str:
    names = re.findall(r"^\* (`--[a-z-]+)", match[0], re.MULTILINE)
    return f"* {'`, '.join(names)}`: see [Filters](#filters).\n"


def _import_commands(group: Any, context: typer.Context) -> None:
    """Import the commands of a group, which the command line does only when they are called."""
    for name in group.list_commands(context):
        command = group.commands[name] = group.resolve_command(context, [name])[1]
        command.name = name  # that of `import` is `import-`, after its function
        if hasattr(command, "list_commands"):
            _import_commands(command, context)


def link_to_repository(app: Sphinx, name: str, source: list[str]) -> None:
    """Let links to files outside of this folder lead to the repository."""

    def target(match: re.Match[str]) -> str:
        path = (DOCS / name).parent.joinpath(match[1]).resolve()
        if path.is_relative_to(DOCS):
            return match[0]
        return f"]({REPOSITORY}/{'tree' if path.is_dir() else 'blob'}/main/{path.relative_to(ROOT).as_posix()}"

    source[0] = STEPS_UP.sub(target, source[0])


def add_entries(app: Sphinx, name: str, source: list[str]) -> None:
    """Add entries to the index, for the search, below the title of a page."""
    title, _, rest = source[0].partition("\n")
    entries = "".join(f"\n```{{index}} ! {entry}\n```\n" for entry in SOUGHT.get(name, ()))
    source[0] = f"{title}\n{entries}{rest}"


def _parts(text: str) -> tuple[list[str], str]:
    """Split a text at its commas outside of brackets, up to the bracket that closes it. Return the rest, too."""
    parts: list[str] = []
    depth = start = 0
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return [*parts, text[start:place]], text[place + 1 :]
        if char == "," and not depth:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]], ""


def _plain(text: str) -> str:
    """Return a signature or a type with durations by name, and without the bounds of values, which `Annotated` has."""
    text = DURATION.sub("Duration", text)
    while found := ANNOTATED.search(text):
        parts, rest = _parts(text[found.end() :])
        text = text[: found.start()] + parts[0] + rest
    return re.sub(r"~(\w+\.)+", "", text).replace("datetime.timedelta(", "timedelta(").replace("= 384", "= 0o600")


def shorten_signature(
    app: Sphinx, kind: str, name: str, item: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Show types by their own names, no excluded fields of a class, and no signature of a class that nobody calls."""
    if signature is None:
        return None, returned
    if signature == "(*args, **kwargs)" or (inspect.isclass(item) and issubclass(item, UNCALLED)):
        return "", returned
    returned = returned and MODULES.sub("", _plain(returned)) if len(returned or "") <= LONGEST_TYPE else None
    hidden = (kind == "class" and options.exclude_members) or ()
    shown = [each.strip() for each in _parts(_plain(signature)[1:])[0]]
    if kind == "class" and "\nOptions:\n" in (item.__doc__ or ""):
        shown = [*shown[: shown.index("*")], "**options: QueueOptions"]
    return f"({', '.join(each for each in shown if each.partition(':')[0] not in hidden)})", returned


def refer_to_options(app: Sphinx, kind: str, name: str, item: object, options: Any, lines: list[str]) -> None:
    """Leave out the options that the docstrings of all queues end with: the page shows them once."""
    if kind == "class" and "Options:" in lines:
        del lines[lines.index("Options:") :]


def keep_colon(app: Sphinx, kind: str, name: str, item: object, options: Any, lines: list[str]) -> None:
    """Hide the colon of a property's first line from Napoleon, which takes what is before it for a type."""
    if kind == "property" and lines:
        lines[0] = lines[0].replace(": ", COLON)


def shorten_types(app: Sphinx, kind: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Show the type of an attribute without the modules of its parts, and not at all if it takes many lines."""
    for number, line in enumerate(lines):
        if ":type:" in line:
            short = MODULES.sub("", _plain(line))
            if kind == "class" and issubclass(item, Operation):
                short = short.replace("float", "Duration")
            lines[number] = short if len(short) <= LONGEST_TYPE else ""


def hide_excluded(app: Sphinx, kind: str, name: str, item: Any, options: Any, lines: list[str]) -> None:
    """Hide attributes that a docstring lists and the directive excludes. Fields of a tuple are listed twice."""
    if kind != "class" or issubclass(item, tuple):
        return
    shown, is_hidden = [], False
    for line in lines:
        if line and not line.startswith(" "):
            is_hidden = line.startswith(".. attribute:: ") and line.split()[2] in (options.exclude_members or ())
        shown += [] if is_hidden else [line]
    lines[:] = shown


def show_code(app: Sphinx, kind: str, name: str, item: object, options: Any, lines: list[str]) -> None:
    """Show indented lines after an empty line of a docstring as code, and the colons that were hidden."""
    lines[:] = [line.replace(COLON, ": ") for line in lines]
    for number in range(len(lines) - 1, 1, -1):
        before = next(line for line in reversed(["-", *lines[:number]]) if line)
        if not lines[number - 1] and lines[number].startswith("    ") and not before.startswith(("    ", ".. ", ":")):
            lines[number:number] = [".. code-block:: python", ""]


def find_shown(app: Sphinx, environment: Any, node: Any, content: Any) -> Any:
    """Let a name in a signature or docstring lead to the page that shows it, whichever its module is."""
    last = node["reftarget"].rpartition(".")[2]
    if node.get("refdomain") != "py" or not last[:1].isupper():
        return None
    python = environment.domains["py"]
    shown = [name for name in python.objects if name.rpartition(".")[2] == last]
    if not shown:
        return None
    return python.resolve_xref(environment, node["refdoc"], app.builder, "obj", min(shown, key=len), node, content)


def announce_unpublished(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Say on each page how to install a version that the changelog calls unreleased."""
    if f"## {version} (unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        address = f"{context['pathto']('project/releases')}#the-state-of-the-release"
        context["theme_announcement"] = f"{version} is not on PyPI yet: <a href='{address}'>how to install it</a>"


def list_for_programs(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt: what each page is about, and where its Markdown is."""
    if error is None and app.builder.name == "html":
        lines = [
            f"- [{title}]({urljoin(f'{html_baseurl}_sources/{page}', name)}.md.txt): {what}\n"
            for page in LISTS
            for title, name, what in PAGE.findall((DOCS / page).read_text(encoding="utf-8"))
        ]
        Path(app.outdir, "llms.txt").write_text(f"# jqueue\n\n> {SUMMARY}\n\n{''.join(lines)}", encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the steps above."""
    app.connect("builder-inited", describe_commands)
    app.connect("source-read", link_to_repository)
    app.connect("source-read", add_entries)
    app.connect("autodoc-process-signature", shorten_signature)
    app.connect("autodoc-process-docstring", refer_to_options, priority=400)
    app.connect("autodoc-process-docstring", keep_colon, priority=400)
    app.connect("autodoc-process-docstring", shorten_types, priority=600)
    app.connect("autodoc-process-docstring", hide_excluded, priority=600)
    app.connect("autodoc-process-docstring", show_code, priority=600)
    app.connect("missing-reference", find_shown)
    app.connect("html-page-context", announce_unpublished)
    app.connect("build-finished", list_for_programs)
