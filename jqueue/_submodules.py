"""Import of a package's modules at their first use: `import jqueue` is enough for `jqueue.domain.errors`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType


def imported_at_first_use(package: str) -> Callable[[str], ModuleType]:
    """Return the `__getattr__` of a package, which imports the module of that name.

    Args:
        package: full name of the package.
    """

    def find(name: str) -> ModuleType:
        module = f"{package}.{name}"
        if not name.startswith("_"):
            try:
                return import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
