"""A worker on its way to executors: by its name if a module has it, and otherwise as a pickle.

In its module, a handler replaces the function that it decorates. So pickle would not find the function there by its
name, and would send it along with everything in its module. Instead, the worker itself is looked for, by identity.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.worker import Worker


@dataclass(frozen=True, slots=True)
class WorkerPickle:
    """A worker in a form that can be sent.

    Attributes:
        module: the module that has it; None if it is sent as a pickle.
        name: its name there.
        content: its pickle, if no module has it.
    """

    module: str | None = None
    name: str | None = None
    content: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, worker: Worker) -> WorkerPickle:
        """Return a worker in a form that can be sent.

        Raises:
            InvalidJobError: it cannot be sent. The message says why.
        """
        place = _place_of(worker)
        if place is not None:
            return cls(*place)
        try:
            return cls(content=cloudpickle.dumps(worker))  # type: ignore[no-untyped-call]
        except Exception as error:
            what, cause = _culprit(worker, error)
            raise InvalidJobError(
                f"the worker cannot be sent to executors: {what} holds an object that cannot be pickled"
                f" ({_said(cause)}): create it in the worker's lifespan, or define the worker at the top of a module"
            ) from None

    def load(self) -> Worker:
        """Return the worker, in the process where its handlers run.

        Raises:
            JQueueError: the module does not have it.
        """
        if self.module is None or self.name is None:
            found = pickle.loads(self.content)
        else:
            found = getattr(importlib.import_module(self.module), self.name, None)
        if not isinstance(found, Worker):
            raise JQueueError(
                f"the module {self.module} has no worker {self.name!r} on executors: is it another version?"
            )
        return found


def _place_of(worker: Worker) -> tuple[str, str] | None:
    """Return the module that has a worker, and its name there. `__main__` does not count: others cannot import it."""
    of_handlers = [sys.modules.get(handler.function.__module__) for handler in worker.handlers.values()]
    for module in [*of_handlers, *sys.modules.values()]:
        if isinstance(module, ModuleType) and module.__name__ != "__main__":
            for name, value in list(vars(module).items()):
                if value is worker and _can_be_imported(module.__name__):
                    return module.__name__, name
    return None


def _can_be_imported(module: str) -> bool:
    """Return True if a module can be found. To be in `sys.modules` is not enough."""
    package = module.partition(".")[0]
    return any(finder.find_spec(package, None) is not None for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _culprit(worker: Worker, error: Exception) -> tuple[str, Exception]:
    """Return the first part of a worker that cannot be pickled, in words, and the error."""
    parts: list[tuple[str, Any]] = [
        (f"the handler {name!r}", handler.function) for name, handler in worker.handlers.items()
    ]
    parts += [
        ("its settings, such as the lifespan", worker.settings),
        ("a middleware", [*worker._middlewares, *worker._thread_middlewares]),
        ("the queue that it is bound to", worker.queues()),
    ]
    parts += [(f"the handler {name!r}", handler) for name, handler in worker.handlers.items()]
    for what, part in parts:
        try:
            cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
        except Exception as cause:
            return what, cause
    return "it", error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
