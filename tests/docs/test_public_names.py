"""The API pages of docs/reference/api show every public name, and no other name is public."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"
SHOWN = re.compile(r"^\.\. auto(\w+):: ([\w.]+)", re.MULTILINE)
PACKAGES = ("django", "operations", "server", "spark", "sync", "testing", "worker")
NOT_SHOWN = {"__version__"}


def _public(module: str) -> list[object]:
    home = importlib.import_module(module)
    names = getattr(home, "__all__", None) or [
        name
        for name, value in vars(home).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return [getattr(home, name) for name in names if name not in NOT_SHOWN]


@cache
def _shown() -> list[object]:
    """Every object that a directive of the pages names, and all public ones of a module that it names."""
    shown: list[object] = []
    for page in sorted(PAGES.glob("*.md")):
        for kind, path in SHOWN.findall(page.read_text(encoding="utf-8")):
            module, _, name = path.rpartition(".")
            shown += _public(path) if kind == "module" else [getattr(importlib.import_module(module), name)]
    return shown


@pytest.mark.parametrize("module", ["jqueue", *(f"jqueue.{name}" for name in PACKAGES)])
def test_all_that_a_package_exports_is_shown(module):
    shown = _shown()
    assert [] == [item for item in _public(module) if item not in shown]
