"""Import of a package's modules at their first use: `import jqueue` is enough for `jqueue.domain.errors`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_at_first_use(package: str, names: Mapping[str, str] | None = None) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, which imports the module of that name.

    Args:
        package: full name of the package.
        names: modules of the package, each with the names that the package has from it, separated by spaces.
    """
    homes = {name: module for module, several in (names or {}).items() for name in several.split()}

    def find(name: str) -> Any:
        module = f"{package}.{homes.get(name, name)}"
        if not name.startswith("_"):
            try:
                submodule = import_module(module)
                return getattr(submodule, name) if name in homes else submodule
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
