"""Make the table of rooms in the architecture page and the map in the files page from the docstrings of modules.

`python -m tests.docs.architecture_map` writes both into the pages.
"""

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- map: begin -->\n", "<!-- map: end -->\n"
WIDTH, COLUMN = 118, 22


def summary(module: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(module.read_bytes())) or ""
    sentence, *_ = " ".join(text.split("\n\n")[0].split()).split(". ")
    return sentence.rstrip(".:")


def packages() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "jqueue").rglob("__init__.py"))


def rooms() -> str:
    """A row for each folder below jqueue/."""
    names = {path.relative_to(ROOT / "jqueue").as_posix(): path / "__init__.py" for path in packages()[1:]}
    rows = [f"| `{name}` | {summary(module)} |" for name, module in names.items()]
    return "\n".join(["| room | what is in it |", "| --- | --- |", *rows])


def entry(name: str, text: str) -> str:
    head = f"  {name}".ljust(COLUMN - 1) + " "
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * COLUMN, break_on_hyphens=False)


def files() -> str:
    """A paragraph for each folder, a line for each file."""
    paragraphs = []
    for package in packages():
        modules = [path for path in sorted(package.glob("*.py")) if path.name not in ("__init__.py", "_version.py")]
        name = package.relative_to(ROOT).as_posix()
        heading = textwrap.fill(f"{name}: {summary(package / '__init__.py')}", WIDTH, subsequent_indent="    ")
        paragraphs.append("\n".join([heading, *(entry(path.name, summary(path)) for path in modules)]))
    listed = "\n\n".join(paragraphs)
    return f"```text\n{listed}\n```"


PAGES = {ROOT / "docs/reference/architecture.md": rooms, ROOT / "docs/reference/files.md": files}


def as_it_should_be(page: Path) -> str:
    """A page with its map made from the docstrings."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{PAGES[page]()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(as_it_should_be(each), encoding="utf-8")
