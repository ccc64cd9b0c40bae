"""`import jqueue` and `jqueue --help` load only what they need. Modules are counted: no machine is too slow for it."""

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jqueue
from jqueue.cli.app import MODULES

ROOT = Path(__file__).parents[2]
MOST = 15
"""Largest number of our modules that `import jqueue` loads. All of them would be more than a hundred."""

MOST_NAMES = 45
"""Largest number of names in `jqueue`: what a program imports in its first days, and the errors that it catches."""

SLOW_STANDARD = {"asyncio", "email", "importlib.metadata", "logging", "multiprocessing", "socket", "ssl", "subprocess"}
CLIENTS = {"aiobotocore", "azure", "boto3", "google.cloud", "grpc", "pyarrow", "pyspark"}
COMMAND = "from jqueue.cli import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code"


def loaded_by(code, *arguments):
    """The modules that a new interpreter has loaded after the code, beyond those of its own start."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint('loaded', *sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def ours(modules):
    return {name for name in modules if name.partition(".")[0] == "jqueue"}


def rooms(modules):
    return {name.split(".")[1] for name in ours(modules) if "." in name}


def test_importing_jqueue_loads_few_modules_and_no_other_package_and_needs_no_fcntl():
    loaded = loaded_by("sys.modules['fcntl'] = None; import jqueue")
    assert {"_submodules", "_version", "connect", "domain"} == rooms(loaded)
    assert len(ours(loaded)) <= MOST
    assert set() == {name.partition(".")[0] for name in loaded} - {"jqueue"} - sys.stdlib_module_names
    assert set() == loaded & SLOW_STANDARD
    loaded = loaded_by("from jqueue import LocalFileSystemStorage, InMemoryStorage")
    assert "core" not in rooms(loaded)
    loaded = loaded_by("import jqueue; jqueue.connect('queue.json', jqueue.DirectQueue); assert jqueue.core.pacing")
    assert set() == rooms(loaded) & {"cli", "formats", "spark", "sync", "testing", "worker"}
    assert set() == loaded & (CLIENTS | {"multiprocessing", "rich", "typer", "watchfiles"})


@pytest.mark.parametrize("command", ["", "stats"])
def test_help_loads_no_other_command_no_queue_and_no_client_of_a_store(command):
    loaded = loaded_by(COMMAND, *command.split(), "--help")
    assert set() == loaded & (CLIENTS | {"markdown_it"})
    modules = {f"jqueue.cli.{name}" for name in MODULES} & loaded
    assert {"jqueue.cli.queue" for _ in command.split()} == modules
    assert command or set() == loaded & {
        "asyncio",
        "pydantic",
        "pygments",
        "rich.console",
        "jqueue.core",
        "jqueue.worker",
    }


def test_each_public_name_is_listed_imported_pickled_and_seen_by_type_checkers():
    tree = ast.parse((ROOT / "jqueue/__init__.py").read_bytes())
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" == ast.unparse(node.test))
    seen = {name.name for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {"__version__", "connect", "open_storage"} <= set(jqueue.__all__) <= set(dir(jqueue))
    assert set(jqueue.__all__) - {"__version__", "connect", "open_storage"} <= seen
    for name in jqueue.__all__:
        value = getattr(jqueue, name)
        assert name == "__version__" or value is pickle.loads(pickle.dumps(value))
    assert MOST_NAMES >= len(dir(jqueue))
    assert {"S3Storage", "Depends"} <= set(dir(jqueue))
    assert set() == {"Any", "TYPE_CHECKING", "import_module"} & set(dir(jqueue))


def test_rarer_names_are_in_the_modules_of_their_kind_and_the_same_ones():
    for module, name, home in (
        ("errors", "MissingFolderError", "domain.errors"),
        ("errors", "JobNotFoundError", "domain.errors"),
        ("operations", "Enqueue", "domain.operations.enqueue"),
        ("ports", "ObjectStoragePort", "ports.storage"),
        ("ports", "JobQueue", "ports.queue"),
        ("ports", "clock", "ports"),
    ):
        found = getattr(importlib.import_module(f"jqueue.{module}"), name)
        assert found is getattr(importlib.import_module(f"jqueue.{home}"), name)
    assert "jqueue.ports.queue" not in loaded_by("from jqueue.ports import ObjectStoragePort")


def test_a_package_has_no_other_names_and_a_module_that_cannot_be_imported_is_not_taken_for_absent(monkeypatch):
    domain: Any = jqueue.domain
    with pytest.raises(AttributeError, match=r"module 'jqueue.domain' has no attribute 'nothing'"):
        domain.nothing  # noqa: B018
    monkeypatch.setitem(sys.modules, "msgspec", None)
    monkeypatch.delitem(sys.modules, "jqueue.domain.fields")
    monkeypatch.delattr(importlib.import_module("jqueue.domain"), "fields")
    with pytest.raises(ModuleNotFoundError, match="msgspec"):
        jqueue.domain.fields  # noqa: B018
