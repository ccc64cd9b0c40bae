"""A worker on its way to executors: by its name if a module has it, and otherwise as a pickle.

In its module, a handler replaces the function that it decorates. So pickle would not find the function there by its
name, and would send it along with everything in its module. Instead, the worker itself is looked for, by identity.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from types import ModuleType

from pyspark import cloudpickle

from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.worker import Worker


def pickled(worker: Worker) -> bytes:
    """Return a worker in a form that can be sent: the pickle of its module and its name there, or of itself.

    Raises:
        InvalidJobError: it cannot be sent. The message says why.
    """
    if (place := _place_of(worker)) is not None:
        return pickle.dumps(place)
    parts: list[tuple[str, object]] = [
        (f"the handler {name!r}", handler.function) for name, handler in worker.handlers.items()
    ]
    parts.append(("its settings, such as the lifespan,", worker.settings))
    parts.append(("it, its middleware or its queue", worker))
    content = b""
    for what, part in parts:  # the last is the whole; the others only say what is wrong
        try:
            content = cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
        except Exception as error:
            cause = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise InvalidJobError(
                f"the worker cannot be sent to executors: {what} holds an object that cannot be pickled"
                f" ({cause}): create it in the worker's lifespan, or define the worker at the top of a module"
            ) from None
    return content


def unpickled(content: bytes) -> Worker:
    """Return the worker, in the process where its handlers run.

    Raises:
        JQueueError: the module does not have it.
    """
    value = pickle.loads(content)
    if isinstance(value, tuple):
        module, name = value
        value = getattr(importlib.import_module(module), name, None)
        if not isinstance(value, Worker):
            raise JQueueError(f"the module {module} has no worker {name!r} on executors: is it another version?")
    worker: Worker = value
    return worker


def _place_of(worker: Worker) -> tuple[str, str] | None:
    """Return the module that has a worker, and its name there. `__main__` does not count: others cannot import it."""
    of_handlers = [sys.modules.get(handler.function.__module__) for handler in worker.handlers.values()]
    for module in [*of_handlers, *sys.modules.values()]:
        if isinstance(module, ModuleType) and module.__name__ != "__main__":
            for name, value in list(vars(module).items()):
                if value is worker:  # to be in `sys.modules` is not enough: others must find the package
                    package = module.__name__.partition(".")[0]
                    if any(each.find_spec(package, None) for each in sys.meta_path if hasattr(each, "find_spec")):
                        return module.__name__, name
    return None
