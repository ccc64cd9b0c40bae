"""A worker on its way to executors: by its name, if a module has it, and otherwise as it is.

A handler stands in its module under the name of the function that it decorates, so that the pickle of a function would
not find it there, and take the function along with all that its module has. So the worker is looked for, by identity.
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
    """A worker that can be sent.

    Attributes:
        module: the module that has it; None if it is sent as it is.
        name: what it is called there.
        content: itself, if no module has it.
    """

    module: str | None = None
    name: str | None = None
    content: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, worker: Worker) -> WorkerPickle:
        """Make a worker ready to be sent.

        Raises:
            InvalidJobError: it cannot be; the message says why.
        """
        place = _place_of(worker)
        if place is not None:
            return cls(*place)
        try:
            return cls(content=cloudpickle.dumps(worker))  # type: ignore[no-untyped-call]
        except Exception as error:
            what, cause = _culprit(worker, error)
            raise InvalidJobError(
                f"the worker cannot be sent to executors: {what} holds what cannot be pickled"
                f" ({_said(cause)}): make it in the worker's lifespan, or define the worker at the top of a module"
            ) from None

    def load(self) -> Worker:
        """The worker, in the process where its handlers run.

        Raises:
            JQueueError: the module has none.
        """
        if self.module is None or self.name is None:
            found = pickle.loads(self.content)
        else:
            found = getattr(importlib.import_module(self.module), self.name, None)
        if not isinstance(found, Worker):
            raise JQueueError(f"the module {self.module} has no worker {self.name!r} there: is it another version?")
        return found


def _place_of(worker: Worker) -> tuple[str, str] | None:
    """The module that has a worker, and its name there: one that other processes can import, which a program is not."""
    of_handlers = [sys.modules.get(handler.function.__module__) for handler in worker.handlers.values()]
    for module in [*of_handlers, *sys.modules.values()]:
        if isinstance(module, ModuleType) and module.__name__ != "__main__":
            for name, value in list(vars(module).items()):
                if value is worker and _can_be_imported(module.__name__):
                    return module.__name__, name
    return None


def _can_be_imported(module: str) -> bool:
    """Whether a module can be found; not only that somebody has put it among those that are imported."""
    package = module.partition(".")[0]
    return any(finder.find_spec(package, None) is not None for finder in sys.meta_path if hasattr(finder, "find_spec"))


def _culprit(worker: Worker, error: Exception) -> tuple[str, Exception]:
    """The first part of a worker that cannot be pickled, in words, and what is wrong with it."""
    parts: list[tuple[str, Any]] = [
        (f"the handler {name!r}", handler.function) for name, handler in worker.handlers.items()
    ]
    parts += [(f"the handler {name!r}", handler) for name, handler in worker.handlers.items()]
    parts += [("the lifespan", worker._lifespan), ("a middleware", worker._middlewares)]
    for what, part in parts:
        try:
            cloudpickle.dumps(part)  # type: ignore[no-untyped-call]
        except Exception as cause:
            return what, cause
    return "it", error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
