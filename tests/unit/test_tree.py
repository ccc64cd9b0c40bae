"""Rules for the source tree: functions of a readable size, and no trace of one machine."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 70

REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|debian\.org|crates\.io|proxy\.golang\.org)\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:root|home|Users|work|opt)/|\b[A-Z]:\\\\?Users\b")


def _files(suffix: str = "") -> Iterator[tuple[str, str]]:
    """Return the name and the text of every file of the project that is committed or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: what belongs to the project cannot be told")
    for name in sorted(set(listing.decode().split("\0"))):
        path = ROOT / name
        if name.endswith(suffix) and path.is_file():
            yield name, path.read_bytes().decode(errors="ignore")


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions in the blocks of a node, at any depth."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(each, block, ())
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


@pytest.mark.wide
def test_every_module_says_why_it_exists_and_no_function_is_too_long_to_be_read_at_once():
    faults = []
    for name, text in _files(".py"):
        module = ast.parse(text)
        if name.startswith("jqueue/") and not ast.get_docstring(module):
            faults.append(f"{name} says nothing")
        for function in _functions(module):
            length = (function.end_lineno or function.lineno) - function.lineno + 1
            faults += [f"{name}:{function.lineno} {function.name}: {length}"] if length > MAX_FUNCTION_LINES else []
    assert [] == faults


def test_no_file_names_a_package_registry_or_holds_a_path_of_one_machine():
    patterns = (REGISTRY, MACHINE_PATH)
    matches = [(name, match.group()) for name, text in _files() for each in patterns if (match := each.search(text))]
    assert [] == matches
    for line in ("see https://pypi" + ".org/simple", "/home" + "/somebody/q.json", "C:" + "\\Users\\somebody"):
        assert REGISTRY.search(line) or MACHINE_PATH.search(line)
    for line in ("https://example.org/work/1", "~/work/x", "docs/root/x", "/tmp/queue.json"):
        assert not MACHINE_PATH.search(line)
