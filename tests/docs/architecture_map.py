"""The map of files in docs/architecture.md, made of the docstrings of the modules.

`python -m tests.docs.architecture_map` writes it anew.
"""

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- map: begin -->\n", "<!-- map: end -->\n"
WIDTH, COLUMN = 118, 22


def summary(module: Path) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(module.read_bytes())) or ""
    sentence, *_ = " ".join(text.split("\n\n")[0].split()).split(". ")
    return sentence.rstrip(".:")


def entry(name: str, text: str) -> str:
    head = f"  {name}".ljust(COLUMN - 1) + " "
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * COLUMN, break_on_hyphens=False)


def architecture_map() -> str:
    rooms = []
    for package in sorted(path.parent for path in (ROOT / "jqueue").rglob("__init__.py")):
        modules = [path for path in sorted(package.glob("*.py")) if path.name not in ("__init__.py", "_version.py")]
        name = package.relative_to(ROOT).as_posix()
        heading = textwrap.fill(f"{name}: {summary(package / '__init__.py')}", WIDTH, subsequent_indent="    ")
        rooms.append("\n".join([heading, *(entry(path.name, summary(path)) for path in modules)]))
    return "\n\n".join(rooms)


def page() -> str:
    """The page with the map as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n```text\n{architecture_map()}\n```\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
