"""No data of a store is imported, evaluated or unpickled: each place that could is listed, with its reason."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

UNPICKLED = {
    "spark/batch/task.py": "claims that the driver of the same application has pickled",
    "spark/batch/worker_pickle.py": "the worker of the driver of the same application",
}
IMPORTED = {
    "__init__.py": "public names, from a table",
    "_submodules.py": "modules of a package, by their own names",
    "cli/help.py": "modules of the command line, from a table",
    "cli/worker.py": "the program that the user names on the command line",
    "spark/__init__.py": "public names, from a table",
    "spark/batch/worker_pickle.py": "the module of the worker of the driver",
    "testing/__init__.py": "public names, from a table",
    "worker/in_process.py": "the module of a handler that the worker's own program has registered",
}
EVALUATING = {"eval", "exec", "compile", "__import__"}
UNPICKLING = {"load", "loads", "Unpickler", "unsafe_load", "full_load"}


def calls():
    """The file of each call below jqueue/ of a function that may run code, with its name: ("pickle", "loads")."""
    names = EVALUATING | UNPICKLING | {"import_module"}
    for path in (ROOT / "jqueue").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                yield path.relative_to(ROOT / "jqueue").as_posix(), tuple(ast.unparse(node.func).split("."))


def test_nothing_is_evaluated_and_only_what_the_program_or_its_user_names_is_unpickled_or_imported():
    found = list(calls())
    assert [] == [(file, name) for file, name in found if name[-1] in EVALUATING and name[:-1] != ("re",)]
    modules = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "yaml"}
    assert set(UNPICKLED) == {file for file, name in found if name[-1] in UNPICKLING and name[0] in modules}
    assert set(IMPORTED) == {file for file, name in found if name[-1] == "import_module"}
