"""`import jqueue` and `jqueue --help` load only what they need. Modules are counted: no machine is too slow for it."""

import ast
import importlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import jqueue
from jqueue.cli.app import app
from jqueue.cli.help import CommandGroup, identifier

ROOT = Path(__file__).parents[2]

ROOMS = {"_submodules", "_version", "connect", "domain"}
"""The rooms that `import jqueue` loads modules of: of the domain only the errors and what they need."""

MOST = 15
"""Largest number of our modules that `import jqueue` loads. All of them would be more than a hundred."""

SLOW_STANDARD = {"asyncio", "email", "importlib.metadata", "logging", "multiprocessing", "socket", "ssl", "subprocess"}

CLIENTS = {"aiobotocore", "azure", "boto3", "google.cloud", "grpc", "pebble", "pyarrow", "pyspark"}


def loaded_by(code, *arguments):
    """The modules that a new interpreter has loaded after the code, beyond those of its own start."""
    program = f"import sys\nbefore = set(sys.modules)\n{code}\nprint('loaded', *sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert 0 == done.returncode, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


RUN_THE_COMMAND_LINE = """
from jqueue.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""


def loaded_by_command(*arguments):
    return loaded_by(RUN_THE_COMMAND_LINE, *arguments)


def ours(modules):
    return {name for name in modules if name.partition(".")[0] == "jqueue"}


def rooms(modules):
    return {name.split(".")[1] for name in ours(modules) if "." in name}


def foreign(modules):
    """The packages that are neither ours nor of the standard library."""
    return {name.partition(".")[0] for name in modules} - {"jqueue"} - sys.stdlib_module_names


def test_importing_jqueue_loads_few_modules_and_no_other_package():
    loaded = loaded_by("import jqueue")
    assert (ROOMS, True) == (rooms(loaded), len(ours(loaded)) <= MOST), ours(loaded)
    assert set() == foreign(loaded)
    assert set() == loaded & SLOW_STANDARD


def test_help_loads_no_command_no_queue_and_no_box_drawing():
    loaded = loaded_by_command("--help")
    assert ROOMS | {"cli"} == rooms(loaded)
    assert {"jqueue.cli", "jqueue.cli.app", "jqueue.cli.completion", "jqueue.cli.default_url", "jqueue.cli.help"} == {
        name for name in loaded if "jqueue.cli" in name
    }
    assert set() == loaded & (CLIENTS | {"asyncio", "markdown_it", "pydantic", "pygments", "rich.console"})


@pytest.mark.parametrize("command", ["stats", "worker", "spark run"])
def test_a_command_loads_no_other_command_and_no_client_of_a_store(command):
    loaded = loaded_by_command(*command.split(), "--help")
    assert set() == loaded & (CLIENTS | {"markdown_it"})
    commands = {f"jqueue.cli.{name.replace(' ', '.')}" for name in summaries()} & loaded
    package, _, _ = command.rpartition(" ")
    assert {f"jqueue.cli.{command.replace(' ', '.')}", *([f"jqueue.cli.{package}"] if package else [])} == commands
    assert command != "stats" or "jqueue.worker" not in loaded


def test_a_queue_in_a_file_loads_no_older_format_no_queue_set_and_no_worker():
    loaded = loaded_by("import jqueue; jqueue.connect('queue.json', jqueue.DirectQueue)")
    assert "jqueue.core.direct" in loaded
    unwanted = ("cli", "core.migration", "core.sets", "formats", "spark", "sync", "testing", "worker")
    assert set() == {f"jqueue.{name}" for name in unwanted} & loaded
    assert set() == loaded & (CLIENTS | {"multiprocessing", "rich", "typer", "watchfiles"})


def test_a_storage_loads_no_queue_and_no_model():
    loaded = loaded_by("from jqueue import LocalFileSystemStorage, InMemoryStorage")
    assert set() == foreign(loaded)
    assert not {name for name in ours(loaded) if name.startswith("jqueue.core")}


def imported_for_type_checkers():
    """Each public name that `jqueue/__init__.py` shows to type checkers, and its module."""
    tree = ast.parse((ROOT / "jqueue/__init__.py").read_bytes())
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" == ast.unparse(node.test))
    return {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}


def test_type_checkers_see_each_name_where_it_is_imported_from():
    assert imported_for_type_checkers() == jqueue._HOMES | jqueue._CLIENTS
    assert {"__version__", "connect", "connect_queue", *jqueue._HOMES} == set(jqueue.__all__)


@pytest.mark.parametrize("name", jqueue.__all__)
def test_a_name_is_listed_found_imported_and_pickled(name):
    assert name in dir(jqueue)
    value = getattr(jqueue, name)
    namespace: dict[str, object] = {}
    exec(f"from jqueue import {name}", namespace)
    assert value is namespace[name]
    assert value is pickle.loads(pickle.dumps(value)) or name == "__version__"


def test_every_operation_of_the_module_operations_is_a_name_of_jqueue():
    names = vars(importlib.import_module("jqueue.operations")).items()
    operations = {name for name, value in names if hasattr(value, "apply")}
    assert operations - {"Operation"} <= set(jqueue.__all__)


def test_all_names_are_imported_by_a_star():
    loaded_by("from jqueue import *\nassert DirectQueue and migrate and connect")


@pytest.mark.wide
@pytest.mark.parametrize(
    "path",
    [
        "adapters.storage.memory.InMemoryStorage",
        "core.broker.BrokerQueue",
        "core.group_commit.GroupCommitLoop",
        "domain.errors.JQueueError",
        "domain.rules.EntrypointRules",
        "formats.queue.StoreQueue",
        "ports.storage.ObjectStoragePort",
        "runtime.threads.in_a_thread",
    ],
)
def test_packages_need_no_import_of_their_own(path):
    loaded_by(f"import jqueue\nassert jqueue.{path}")
    loaded_by(f"from jqueue import InMemoryStorage\nimport jqueue\nassert jqueue.{path}")


@pytest.mark.parametrize("package", ["jqueue.domain", "jqueue.adapters.storage"])
def test_a_package_has_no_other_names(package):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_a_module_that_cannot_be_imported_is_not_taken_for_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)
    monkeypatch.delitem(sys.modules, "jqueue.domain.fields")
    monkeypatch.delattr(importlib.import_module("jqueue.domain"), "fields")
    with pytest.raises(ModuleNotFoundError, match="pydantic"):
        jqueue.domain.fields  # noqa: B018


def test_help_knows_the_first_paragraph_of_each_command():
    """It is written twice, as `jqueue --help` does not import the commands."""
    assert summaries() == {name: first_paragraph(command) for name, command in commands().items()}


def groups():
    yield "", app.info.cls
    yield "spark ", importlib.import_module("jqueue.cli.spark").SparkCommands


def summaries():
    return {f"{path}{name}": text for path, group in groups() for name, text in group.summaries.items()}


def commands():
    found = {}
    for path, group in groups():
        assert issubclass(group, CommandGroup)
        for name in group.summaries:
            module = identifier(name)
            found[f"{path}{name}"] = getattr(importlib.import_module(f"{group.package}.{module}"), module)
    return found


def first_paragraph(command):
    text = command.registered_callback.help if hasattr(command, "registered_callback") else inspect.getdoc(command)
    return " ".join(str(text).partition("\n\n")[0].split())
