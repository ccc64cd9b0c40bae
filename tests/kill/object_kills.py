"""The creation of an object beside a queue file, killed at its system calls: `python -m tests.kill.object_kills`.

After a kill, the object is there whole, or it is not there. If its creation was acknowledged, it is there. The next
process can create it if it is missing, and its folder has at most a temporary file, which no listing shows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from jqueue import CASConflictError, LocalFileSystemStorage
from jqueue.domain.errors import ObjectMissingError
from tests.kill.ledger import ViolationError
from tests.kill.traced_kills import EVERY_CREATION, TracedKills, run_all
from tests.kill.tracing import START

NEW = ".history/new"
CONTENT = bytes(range(256)) * 10_000
_TEMPORARY = re.compile(r"\.new\.[\w-]+\.object\.tmp")


class InPlace(LocalFileSystemStorage):
    """An adapter that writes into the object itself: a killed process leaves a part of it."""

    async def create_object(self, suffix: str, content: bytes | memoryview) -> None:
        path = Path(f"{self.path}{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb", buffering=0) as file:
            file.write(content[: len(content) // 2])
            file.write(content[len(content) // 2 :])


class Hasty(LocalFileSystemStorage):
    """An adapter that answers before the object is there."""

    async def create_object(self, suffix: str, content: bytes | memoryview) -> None:
        self._later = asyncio.create_task(super().create_object(suffix, content))


async def _pieces() -> AsyncIterator[bytes]:
    for start in range(0, len(CONTENT), 700_000):
        yield CONTENT[start : start + 700_000]


Creation = Callable[[LocalFileSystemStorage], Awaitable[object]]


def _from_bytes(storage: LocalFileSystemStorage) -> Awaitable[object]:
    return storage.create_object(NEW, CONTENT)


def _from_pieces(storage: LocalFileSystemStorage) -> Awaitable[object]:
    return storage.create_object_from(NEW, _pieces())


CREATIONS: dict[str, tuple[Creation, bool]] = {
    "first": (_from_bytes, False),
    "another": (_from_bytes, True),
    "pieces": (_from_pieces, True),
}
"""Each creation, and True if the queue and another object exist before."""

ADAPTERS = {"real": LocalFileSystemStorage, "in-place": InPlace, "hasty": Hasty}


class ObjectKills(TracedKills):
    """The kills in one creation.

    Args:
        folder: folder for the queue.
        name: name of the creation.
        adapter: class of the storage.
    """

    def __init__(self, folder: Path, name: str, adapter: type[LocalFileSystemStorage]) -> None:
        super().__init__(name)
        if adapter is LocalFileSystemStorage:
            self.expected = EVERY_CREATION | {"mkdir"}
        self._adapter = adapter
        self._create, self._exists = CREATIONS[name]
        self._folder = folder / name
        self._file = self._folder / "queue.json"

    def begin(self) -> None:
        """Remove the folder. The child makes it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def work(self, descriptor: int) -> None:
        """Create the object, in the child."""
        storage = self._adapter(self._file)
        if self._exists:
            await storage.write(b"the queue")
            await LocalFileSystemStorage(self._file).create_object(".history/old", b"old")
        signal.raise_signal(START)
        await self._create(storage)
        os.write(descriptor, b"!")

    def check(self, acknowledged: bool) -> bool:
        """Check the folder, and that the next process can create the object. Return True if it was there."""
        return asyncio.run(self._check(acknowledged))

    async def _check(self, acknowledged: bool) -> bool:
        storage = LocalFileSystemStorage(self._file)
        there = await self._is_there(storage)
        if acknowledged and not there:
            raise ViolationError("the creation was acknowledged, and the object is not there")
        old = [(".history/old", 3)] * self._exists
        listed = [(each.suffix, each.size) for each in await storage.list_beside(".")]
        if listed != [(NEW, len(CONTENT))] * there + old:
            raise ViolationError(f"the listing has {listed}")
        names = {path.name for path in self._folder.rglob("*")} if self._folder.exists() else set()
        names -= {"queue.json", "queue.json.lock", "queue.json.history", "old", "new"}
        if len(names) > 1 or not all(map(_TEMPORARY.fullmatch, names)):
            raise ViolationError(f"something is left over: {', '.join(sorted(names))}")
        try:
            await storage.create_object(NEW, CONTENT)
        except CASConflictError:
            if not there:
                raise ViolationError("the object is not there, and cannot be created") from None
        if not await self._is_there(storage):
            raise ViolationError("the next process could not create it")
        return there

    async def _is_there(self, storage: LocalFileSystemStorage) -> bool:
        try:
            content = await storage.read_object(NEW)
        except ObjectMissingError:
            return False
        if content != CONTENT:
            raise ViolationError(f"the object has {len(content)} bytes, which are not those that were written")
        return True


def main(arguments: list[str] | None = None) -> int:
    """Kill in each creation."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill.object_kills", description=__doc__)
    parser.add_argument("--creation", choices=CREATIONS, action="append")
    parser.add_argument("--adapter", choices=ADAPTERS, default="real", help="one that is broken on purpose")
    parser.add_argument("--both", action="store_true", help="at entry and exit of each call")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        several = [ObjectKills(Path(folder), name, ADAPTERS[asked.adapter]) for name in asked.creation or CREATIONS]
        return run_all(several, asked.both, "the object was there")


if __name__ == "__main__":
    sys.exit(main())
