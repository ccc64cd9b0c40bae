"""Rules for the source tree: functions of a readable size, and no trace of one machine."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 70

REGISTRY = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|debian\.org|crates\.io|proxy\.golang\.org)\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:root|home|Users|work|opt)/|\b[A-Z]:\\\\?Users\b")


def _files(suffix: str = "") -> Iterator[Path]:
    """Return every file of the project that is committed or about to be."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: what belongs to the project cannot be told")
    for name in sorted(set(listing.decode().split("\0"))):
        path = ROOT / name
        if name.endswith(suffix) and path.is_file():
            yield path


def _modules() -> list[Path]:
    return sorted((ROOT / "jqueue").rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module, at any depth. Expressions have none."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            yield each
        if not isinstance(each, ast.expr):
            yield from _statements(each)


def _matches(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in _files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [f"{_name(path)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]
    return found


def test_every_module_says_why_it_exists():
    silent = [_name(path) for path in _modules() if not ast.get_docstring(ast.parse(path.read_bytes()))]
    assert [] == silent


@pytest.mark.wide
def test_no_function_is_too_long_to_be_read_at_once():
    lengths = {
        f"{_name(path)}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in _files(".py")
        for node in _statements(ast.parse(path.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {} == {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}


def test_every_module_takes_the_logger_that_escapes_foreign_text():
    raw = [_name(path) for path in _modules() if 'getLogger("jqueue' in path.read_text(encoding="utf-8")]
    assert [] == raw


def test_no_file_names_a_package_registry():
    assert [] == _matches(REGISTRY)


def test_no_file_holds_a_path_of_one_machine():
    assert [] == _matches(MACHINE_PATH)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("see https://pypi" + ".org/simple", REGISTRY),
        ("/home" + "/somebody/queue.json", MACHINE_PATH),
        ('open("/work' + '/main/x")', MACHINE_PATH),
        ("C:" + "\\Users\\somebody", MACHINE_PATH),
    ],
)
def test_the_patterns_find_registries_and_machine_paths(line, found):
    assert found.search(line)


@pytest.mark.parametrize("line", ["https://example.org/work/1", "~/work/x", "docs/root/x", "/tmp/queue.json"])
def test_other_paths_are_left_alone(line):
    assert not MACHINE_PATH.search(line)


def _modules_after_import(before: str = "") -> set[str]:
    """Return the names of the modules that a new interpreter has loaded after importing jqueue."""
    code = f"import sys\n{before}\nimport jqueue\nassert jqueue.__file__\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_jqueue_can_be_imported_without_fcntl():
    assert "jqueue" in _modules_after_import("sys.modules['fcntl'] = None")


def test_importing_jqueue_loads_no_test_tool_and_no_optional_client():
    unwanted = {"aiobotocore", "google.cloud", "hypothesis", "pytest", "rich"}
    assert set() == _modules_after_import() & unwanted
