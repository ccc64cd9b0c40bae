"""Stores that tell each request before they make it: a test can refuse it, lose its answer, or end the process there.

`steps:///folder/queue.json` is a file, `steps-memory://name/queue.json` an object of a store in the memory of this
process. A process knows these URLs once it has imported this module.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect.parsed_url import ParsedURL
from jqueue.connect.stores import STORES
from jqueue.domain.errors import StorageError, StorageFatalError
from tests.kill.children import fork, warm_up

CALLS = (
    "read",
    "read_if_changed",
    "write",
    "remove",
    "list_beside",
    "create_object",
    "create_object_from",
    "read_object",
    "remove_object",
)
OF_OBJECTS = CALLS[4:]
Request = Callable[[], Awaitable[Any]]
Step = Callable[[str, Request], Callable[[], object] | Awaitable[object] | None]
"""Called with the name of a request and the request. It may raise, and may return what to call after the request, or
what to await before it."""

_steps: list[Step] = []


@contextmanager
def told(step: Step) -> Iterator[None]:
    """Tell all requests of this process, and of those that it forks, to a function while the block runs."""
    _steps.append(step)
    try:
        yield
    finally:
        _steps.remove(step)


class Fault:
    """Fails requests whose names match a pattern, and notes the names of all.

    Args:
        pattern: regular expression.
        kind: "lost" is never done and may be tried again, "refused" is final, "unanswered" is done, and "late" is done
            once the test says so: see `land`.
        times: number of requests to fail.
    """

    def __init__(self, pattern: str, kind: str, times: int = 1) -> None:
        self.pattern, self.kind, self.left = pattern, kind, times
        self.names: list[str] = []
        self.late: list[Request] = []

    def __call__(self, name: str, request: Request) -> Callable[[], object] | None:
        self.names.append(name)
        if not self.left or not re.search(self.pattern, name):
            return None
        self.left -= 1
        if self.kind == "unanswered":
            return self._fail
        if self.kind == "late":
            self.late.append(request)
        self._fail()
        return None

    def _fail(self) -> None:
        if self.kind == "refused":
            raise StorageFatalError("access was refused")
        raise StorageError("the connection was reset")

    async def land(self) -> None:
        """Make the late requests."""
        for request in self.late:
            await request()


def killed_at(number: int, run: Callable[[], Any]) -> bool:
    """Run it in a process that is killed before a request. Return False if it has ended before.

    Args:
        number: of the request, from 0.
        run: what the process does.
    """
    left = itertools.count(-number)

    def step(_name: str, _request: Request) -> None:
        if next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def live() -> None:
        with told(step):
            run()

    warm_up()
    _, status = os.waitpid(fork(live), 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), "see the error of the process"
    return code != 0


def _telling(kind: Any, object_of: Callable[[Any], str], storage_of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return methods that tell each request, and then have a storage make it."""

    def method(name: str) -> Any:
        async def call(self: Any, *arguments: Any, **options: Any) -> Any:
            async def request() -> Any:
                return await getattr(kind, name)(storage_of(self), *arguments, **options)

            suffix = arguments[0] if name in OF_OBJECTS else ""
            told = [step(f"{name} {object_of(self)}{suffix}", request) for step in list(_steps)]
            for each in told:
                if inspect.isawaitable(each):
                    await each
            answer = await request()
            for each in told:
                if callable(each):
                    each()
            return answer

        return call

    return {name: method(name) for name in CALLS}


_FileCalls: Any = type("FileCalls", (LocalFileSystemStorage,), _telling(
    LocalFileSystemStorage, lambda storage: storage.path.name, lambda storage: storage
))  # fmt: skip
_MemoryCalls: Any = type("MemoryCalls", (), _telling(
    InMemoryStorage, lambda storage: storage.name, lambda storage: storage.storage
))  # fmt: skip


class FileSteps(_FileCalls):  # type: ignore[misc]
    """A file that tells its requests."""

    def beside(self, suffix: str) -> FileSteps:
        """Return the file beside this one."""
        return FileSteps(f"{self.path}{suffix}")


class MemorySteps(_MemoryCalls):  # type: ignore[misc]
    """An object in memory that tells its requests. All objects of one name are the same."""

    stores: ClassVar[dict[str, InMemoryStorage]] = {}

    def __init__(self, name: str, storage: InMemoryStorage) -> None:
        self.name, self.storage = name, storage

    def __repr__(self) -> str:
        return f"steps-memory://{self.name}"

    def beside(self, suffix: str) -> MemorySteps:
        """Return the object beside this one."""
        return MemorySteps(f"{self.name}{suffix}", self.storage.beside(suffix))

    def store_time(self) -> Any:
        """Return the time of the store."""
        return self.storage.store_time()


def _in_memory(url: ParsedURL) -> Any:
    name = f"{url.host}/{url.name}"
    return MemorySteps(name, MemorySteps.stores.setdefault(name, InMemoryStorage()))


STORES.update({"steps": lambda url: FileSteps(f"/{url.name}"), "steps-memory": _in_memory})
