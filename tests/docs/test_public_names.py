"""The API pages of docs/reference/api show every public name, and no other name is public."""

import enum
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_overloads, get_type_hints

import pytest

from jqueue import Job, JQueueError
from jqueue.domain import errors
from jqueue.domain.counters import Totals
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.ports import queue as verbs

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"
SHOWN = re.compile(r"^\.\. auto(\w+):: ([\w.]+)((?:\n +.*)*)", re.MULTILINE)
PACKAGES = ("django", "errors", "operations", "ports", "server", "spark", "sync", "testing", "worker")
NOT_SHOWN = {"__version__"}

INTERNAL = {"BatchUnknownError", "ChangedMeanwhileError"}
"""Errors that no call of a user raises as such."""

ROLES = (verbs.Producer, verbs.Consumer, verbs.Operator)
VALUES = (Job, QueueStats, EntrypointStats, Totals)


def _public(module: str) -> dict[str, Any]:
    home = importlib.import_module(module)
    names = getattr(home, "__all__", None) or [
        name
        for name, value in vars(home).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return {name: getattr(home, name) for name in names if name not in NOT_SHOWN}


@cache
def _shown() -> list[Any]:
    """Every object that a directive of the pages names, and all classes and functions of a module that it names."""
    shown: list[Any] = []
    for page in sorted(PAGES.glob("*.md")):
        for kind, path, _ in SHOWN.findall(page.read_text(encoding="utf-8")):
            module, _, name = path.rpartition(".")
            if kind == "module":
                shown += [item for item in _public(path).values() if inspect.isclass(item) or inspect.isfunction(item)]
            else:
                shown.append(getattr(importlib.import_module(module), name))
    return shown


def _classes(hint: Any) -> set[type]:
    """The classes of jqueue in the type of a value."""
    inner = set().union(*(_classes(each) for each in (*get_args(hint), get_origin(hint)) if each is not None))
    return inner | ({hint} if inspect.isclass(hint) and hint.__module__.startswith("jqueue") else set())


@pytest.mark.parametrize("module", ["jqueue", *(f"jqueue.{name}" for name in PACKAGES)])
def test_all_that_a_package_exports_is_shown(module):
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md"))
    missing = {name for name, item in _public(module).items() if item not in _shown()}
    assert set() == {name for name in missing if f"| `{name}` |" not in text}, "the type of an argument is in a table"


def test_every_error_is_shown_where_it_can_be_imported():
    shown = re.findall(r":: jqueue\.(errors\.)?(\w+)$", (PAGES / "errors.md").read_text(encoding="utf-8"), re.MULTILINE)
    known = {name for name, item in vars(errors).items() if _is_error(item)}
    assert known - INTERNAL == {name for _, name in shown} == set(_public("jqueue.errors"))
    assert {name for rare, name in shown if not rare} == {n for n, item in _public("jqueue").items() if _is_error(item)}
    assert INTERNAL <= known


def _is_error(item: Any) -> bool:
    return inspect.isclass(item) and issubclass(item, JQueueError)


def test_the_classes_of_all_that_the_verbs_return_and_of_its_fields_are_shown():
    functions = [each for role in ROLES for each in vars(role).values() if inspect.isfunction(each)]
    hints = [get_type_hints(each)["return"] for each in functions if each.__name__[0] != "_"]
    hints += [hint for value in VALUES for name, hint in get_type_hints(value).items() if name[0] != "_"]
    assert set() == set().union(*map(_classes, hints)) - set(_shown())


def test_each_enumeration_is_shown_with_its_members():
    for page in sorted(PAGES.glob("*.md")):
        for kind, path, options in SHOWN.findall(page.read_text(encoding="utf-8")):
            module, _, name = path.rpartition(".")
            item = getattr(importlib.import_module(module), name) if kind == "class" else None
            if inspect.isclass(item) and issubclass(item, enum.Enum):
                assert ":undoc-members:" in options, path


def _called() -> Iterator[tuple[Any, set[str], str, Any]]:
    """Each function and method that callers call: the item that the pages name, what they exclude, its kind, itself."""
    for page in sorted(PAGES.glob("*.md")):
        for kind, path, options in SHOWN.findall(page.read_text(encoding="utf-8")):
            module, _, name = path.rpartition(".")
            items = _public(path).values() if kind == "module" else [getattr(importlib.import_module(module), name)]
            listed = re.search(r":exclude-members:((?:[^:]|\n {6})*)", options)
            excluded = set(re.findall(r"\w+", listed[1])) if listed else set()
            for item in items:
                if inspect.isfunction(item):
                    yield item, excluded, "function", item
                for member in vars(item).values() if inspect.isclass(item) else ():
                    if inspect.isfunction(inner := getattr(member, "__func__", member)) and inner.__name__[0] != "_":
                        yield item, excluded, "method", inner


def test_each_signature_on_the_pages_has_every_parameter():
    """The members that a directive excludes are fields of its classes, not parameters of their methods."""
    sphinx = pytest.importorskip("sphinx.util.inspect", reason="`make docs` installs Sphinx")
    conf = runpy.run_path(str(PAGES.parents[1] / "conf.py"))
    for item, excluded, kind, function in _called():
        options, signature = SimpleNamespace(exclude_members=excluded), inspect.signature(function)
        text, _ = conf["shorten_signature"](
            None, kind, "", function, options, sphinx.stringify_signature(signature), None
        )
        names = [re.sub(r"\W.*", "", each.strip(" *")) for each in conf["_parts"](text[1:])[0]]
        assert [name for name in names if name] == list(signature.parameters), (item, function)
        shown = [each for one in get_overloads(function) for each in inspect.signature(one).parameters.values()]
        if shown and not any("Unpack" in str(each.annotation) for each in shown):
            assert set(signature.parameters) <= {each.name for each in shown}, (item, function)
