"""Print every public name of the modules of jqueue 1.0.0, with its parameters and their defaults, as JSON.

A parameter has its position, or "keyword", and its default as text, or None if it has none. Names with an underscore
and the modules of S3 and GCS are left out.
"""

import enum
import importlib
import inspect
import json
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
    try:
        signature = inspect.signature(function)
    except ValueError:  # an exception with the signature of Exception
        return {}
    found = {}
    for position, parameter in enumerate(signature.parameters.values()):
        place = "keyword" if parameter.kind is parameter.KEYWORD_ONLY else position
        found[parameter.name] = place, default(parameter)
    return found


def default(parameter):
    """The default as text. One without a readable repr is `...`."""
    if parameter.default is parameter.empty:
        return "()" if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) else None
    value = parameter.default.value if isinstance(parameter.default, enum.Enum) else parameter.default
    return "..." if repr(value).startswith("<") else repr(value)


def is_ours(thing):
    return str(getattr(thing, "__module__", "")).startswith("jqueue.")


def names_of_class(name, kind):
    if issubclass(kind, enum.Enum):
        yield from ((f"{name}.{member.name} = {member.value!r}", {}) for member in kind)
        return
    yield name, parameters(kind)
    yield from ((f"{name} is a {base.__name__}", {}) for base in kind.__mro__[1:] if is_ours(base))
    for member in sorted(dir(kind)):
        function = getattr(kind, member)
        if inspect.isroutine(function) and is_ours(function) and (member in SPECIAL or not member.startswith("_")):
            kept = "async " if inspect.iscoroutinefunction(function) else ""
            yield f"{kept}{name}.{member}", parameters(function)


def names_of_module(module):
    for name in sorted({*vars(module), *getattr(module, "__all__", ())}):
        full, value = f"{module.__name__}.{name}", getattr(module, name)
        its_own = getattr(value, "__module__", None) == module.__name__
        exported = not its_own and name in getattr(module, "__all__", ())
        if name.startswith("_"):
            continue
        if inspect.isfunction(value) and (its_own or exported):
            yield full, parameters(value)
        elif isinstance(value, type) and (its_own or (exported and issubclass(value, enum.Enum))):
            yield from names_of_class(full, value)
        elif isinstance(value, types.GenericAlias) or exported:
            yield full, {}


print(json.dumps({name: value for path in MODULES for name, value in names_of_module(importlib.import_module(path))}))
