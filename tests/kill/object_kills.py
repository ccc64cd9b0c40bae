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
from tests.kill.children import warm_up
from tests.kill.ledger import ViolationError
from tests.kill.system_calls import ON_FILES
from tests.kill.tracing import START, Point, Trace, trace_call, why_not

UNAVAILABLE = 2
SECONDS = 60.0
TRIES = 5
NEW = ".history/new"
CONTENT = bytes(range(256)) * 10_000
EVERY_CREATION = {"mkdir", "openat", "write", "fsync", "link", "unlink", "close"}
"""System calls of every creation. If one is not seen, the wrong process is traced."""

_TEMPORARY = re.compile(r"\.new\.[\w-]+\.object\.tmp")


class InPlace(LocalFileSystemStorage):
    """An adapter that writes into the object itself: a killed process leaves a part of it."""

    async def create_object(self, suffix: str, content: bytes) -> None:
        path = Path(f"{self.path}{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb", buffering=0) as file:
            file.write(content[: len(content) // 2])
            file.write(content[len(content) // 2 :])


class Hasty(LocalFileSystemStorage):
    """An adapter that answers before the object is there."""

    async def create_object(self, suffix: str, content: bytes) -> None:
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


class ObjectKills:
    """The kills in one creation.

    Args:
        folder: an empty folder for the queue.
        name: name of the creation.
        adapter: class of the storage.
    """

    def __init__(self, folder: Path, name: str, adapter: type[LocalFileSystemStorage]) -> None:
        self._name = name
        self._adapter = adapter
        self._create, self._exists = CREATIONS[name]
        self._folder = folder / "queue"
        self._file = self._folder / "queue.json"

    def run(self, both: bool) -> tuple[int, int]:
        """Kill at every point, and return the number of kills, and of those after which the object was there.

        Raises:
            ViolationError: the folder is wrong after a kill.
        """
        for _ in range(2):  # the second run and all later ones find everything imported
            trace, acknowledged = self._trace(None)
            if trace.code != 0 or not acknowledged:
                raise ViolationError(f"{self._name} ended with {trace.code}, though nobody killed it")
        is_real = self._adapter is LocalFileSystemStorage
        if is_real and not EVERY_CREATION <= {point.name.replace("linkat", "link") for point in trace.points}:
            raise ViolationError(f"{self._name} made other system calls than a creation makes")
        kills = landed = 0
        for point in trace.points:
            if both or not point.at_exit or point == trace.points[-1]:
                there = self._kill_at(point)
                kills, landed = kills + (there is not None), landed + bool(there)
        return kills, landed

    def _kill_at(self, point: Point) -> bool | None:
        """Return True if the object was there after the kill; None if chance did not bring the point again."""
        must = point.name in ON_FILES or point.name.startswith("link")
        for _ in range(TRIES if must else 1):
            trace, acknowledged = self._trace(point)
            if not trace.killed:
                continue
            try:
                return asyncio.run(self._check(acknowledged))
            except ViolationError as error:
                raise ViolationError(f"{self._name}, killed at {point}: {error}") from error
        if must:
            raise ViolationError(f"{self._name}: {point} was there once, and not again in {TRIES} runs")
        return None

    def _trace(self, point: Point | None) -> tuple[Trace, bool]:
        shutil.rmtree(self._folder, ignore_errors=True)
        return trace_call(lambda write: asyncio.run(self._run(write)), point, SECONDS, self._name)

    async def _run(self, descriptor: int) -> None:
        """Create the object in the child."""
        storage = self._adapter(self._file)
        if self._exists:
            await storage.write(b"the queue")
            await LocalFileSystemStorage(self._file).create_object(".history/old", b"old")
        signal.raise_signal(START)
        await self._create(storage)
        os.write(descriptor, b"!")

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
    warm_up()
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return UNAVAILABLE
    for name in asked.creation or CREATIONS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                kills, landed = ObjectKills(Path(folder), name, ADAPTERS[asked.adapter]).run(asked.both)
            except ViolationError as error:
                print(f"VIOLATION: {error}", file=sys.stderr)
                return 1
        print(f"{name:10}{kills:4} kills, and the object was there after {landed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
