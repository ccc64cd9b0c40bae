"""Print every public name of the modules of jqueue 1.0.0, with its parameters and their defaults, one on each line.

With the interpreter of 1.0.0, the output is public_names_1_0_0.txt; with this project's, it is compared with that file.
Names with an underscore and the modules of S3 and GCS are left out.
"""

import enum
import importlib
import inspect
import types

MODULES = (
    "jqueue",
    "jqueue.adapters.storage.filesystem",
    "jqueue.adapters.storage.memory",
    "jqueue.core.broker",
    "jqueue.core.codec",
    "jqueue.core.direct",
    "jqueue.core.group_commit",
    "jqueue.core.heartbeat",
    "jqueue.domain.errors",
    "jqueue.domain.models",
    "jqueue.ports.storage",
)
SPECIAL = ("__aenter__", "__aexit__")


def parameters(function):
    """The parameters as in source code, without annotations. A default without a readable repr is `...`."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # an exception with the signature of Exception
        return "(*args)"
    shown, keyword_only = [], False
    for name, parameter in signature.parameters.items():
        if name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
        keyword_only |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
        shown.append(f"{stars}{name}{default(parameter)}")
    return f"({', '.join(shown)})"


def default(parameter):
    if parameter.default is parameter.empty:
        return ""
    value = parameter.default.value if isinstance(parameter.default, enum.Enum) else parameter.default
    return "=..." if repr(value).startswith("<") else f"={value!r}"


def is_ours(thing):
    return str(getattr(thing, "__module__", "")).startswith("jqueue.")


def lines_of_class(name, kind):
    if issubclass(kind, enum.Enum):
        yield from (f"{name}.{member.name} = {member.value!r}" for member in kind)
        return
    bases = [base.__name__ for base in kind.__mro__[1:] if is_ours(base)]
    yield f"{name}{parameters(kind)}"
    yield from (f"{name} is a {base}" for base in bases)
    for member in sorted(dir(kind)):
        function = getattr(kind, member)
        public = not member.startswith("_") or member in SPECIAL
        if public and inspect.isroutine(function) and is_ours(function):
            kept = "async " if inspect.iscoroutinefunction(function) else ""
            yield f"{kept}{name}.{member}{parameters(function)}"


def lines_of_module(module):
    for name in sorted({*vars(module), *getattr(module, "__all__", ())}):
        full = f"{module.__name__}.{name}"
        if name.startswith("_"):
            continue
        value = getattr(module, name)
        its_own = getattr(value, "__module__", None) == module.__name__
        if isinstance(value, types.GenericAlias) or (not its_own and name in getattr(module, "__all__", ())):
            yield full
        elif not its_own:
            continue
        elif inspect.isclass(value):
            yield from lines_of_class(full, value)
        elif inspect.isfunction(value):
            yield f"{full}{parameters(value)}"


for path in MODULES:
    for line in lines_of_module(importlib.import_module(path)):
        print(line)
