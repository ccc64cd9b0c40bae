"""A queue opened for one command of an operator. A queue that does not exist is an error, and is not made."""

from __future__ import annotations

import asyncio
import gc
import getpass
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.help import RefusedError
from jqueue.cli.parameters import argument
from jqueue.cli.printing import note
from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.view import QueueView
from jqueue.domain import errors
from jqueue.domain.errors import (
    JobNotFoundError,
    JQueueError,
    MissingFolderError,
    QueueMissingError,
    UnknownOutcomeError,
)
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import asked_by
from jqueue.domain.stats import QueueStats
from jqueue.ports.storage import ObjectStoragePort, describe, storage_of, time_of
from jqueue.runtime.system import process_name

if TYPE_CHECKING:
    from jqueue.formats.port import JobStorePort
    from jqueue.formats.queue import StoreQueue

Answer = TypeVar("Answer")

FIRST_CALL_DEADLINE = 15.0
"""Seconds for the first look: the user waits for it."""

SECOND_THOUGHT = 15.0
"""Seconds to find out the outcome of a change after its deadline, if it was not known by then."""

IN_MEMORY = "an in-memory queue is visible only to its own process: give the URL of a file or a store"

UNKNOWN = (
    "the outcome is unknown: the connection failed before it was certain whether the change was made. Look at the "
    "queue (`jqueue ls`, `jqueue stats`) before you repeat it"
)

URL = Annotated[
    str,
    argument(
        "URL",
        "URL of the queue, such as s3://bucket/q.json, or a path. By default what JQUEUE_URL names.",
        envvar="JQUEUE_URL",
    ),
]
Create = Annotated[bool, typer.Option("--create", help="Create the folder of the queue if it is missing.")]
MustExist = Annotated[
    bool, typer.Option("--must-exist", help="Never create the queue: if it does not exist, it is to be restored.")
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
OneALine = Annotated[bool, typer.Option("--json", help="Print one JSON object a line instead of text.")]


@dataclass(frozen=True)
class OpenedQueue:
    """A queue that exists.

    Attributes:
        queue: the queue.
        name: the name of its object, without secrets.
        view: its content when it was opened.
    """

    queue: DirectQueue | StoreQueue
    name: str
    view: QueueView

    async def stats(self) -> QueueStats:
        """Return its figures when it was opened."""
        return await self.view.stats(self.now())

    async def apply(self, operation: Operation) -> Any:
        """Carry out an operation, and return its result.

        Raises:
            JQueueError: it was refused, or its outcome is not known.
        """
        [result] = await self.apply_each(operation)
        if isinstance(result, JQueueError):
            raise result
        return result

    async def apply_each(self, *operations: Operation) -> list[Any]:
        """Carry out operations, each by itself. The history names the user of the command as the one who asked.

        Raises:
            JQueueError: their outcome is not known.
        """
        return await certain(self.queue.apply_each(*(asked_by(user(), each) for each in operations)))

    def now(self) -> datetime:
        """Return the time by the store's clock, or by ours if it has none. Jobs are dated by the same clock."""
        return time_of(self.queue, self.queue.options.clock)


def user() -> str:
    """Return the name of the user of the command: `user@host`."""
    try:
        name = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container may have no name for its user
        name = "unknown"
    return f"{name}@{process_name().rpartition(':')[0]}"


def on_queue(
    url: str, work: Callable[[OpenedQueue], Awaitable[Answer]], *, create: bool = False, absent: bool = False
) -> Answer:
    """Return the answer of some work on the queue of a URL.

    Args:
        url: of the queue.
        work: called with the queue, once it is certain that it exists.
        create: True if neither the queue nor its folder need exist: the work may create them.
        absent: True if the queue need not exist, but its folder must.

    Raises:
        RefusedError: the work could not be done.
        JQueueError: likewise.
        ImportError: the extra for the store is not installed.
    """
    try:
        queue = connect(url, direct, create=create)
    except MissingFolderError as error:
        remedy = "correct the path, or add --create" if absent else "correct the path"
        raise RefusedError(f"there is no queue: the folder {error.folder!r} does not exist; {remedy}") from None
    answers: list[Answer] = []  # `asyncio.run` makes the repr of what its coroutine returns

    async def perform() -> None:
        if isinstance(storage_of(queue), InMemoryStorage):
            raise RefusedError(IN_MEMORY)
        name = describe(storage_of(queue))
        async with queue:
            gc.disable()  # the objects of the view live until the end, so the garbage collector skips them
            try:
                with waiting_for(name):
                    view = await queue.view(deadline=FIRST_CALL_DEADLINE)
            finally:
                gc.freeze()
                gc.enable()
            if view.absent and not (create or absent):
                raise QueueMissingError(name)
            try:
                answers.append(await work(OpenedQueue(queue, name, view)))
            except JobNotFoundError:  # the id is not shown: it may be a URL that was put into the wrong place
                tells = ". `jqueue history URL ID` tells" if view.header.history is not None else ""
                raise RefusedError(f"there is no job with this id in {name}: it may have finished{tells}") from None

    try:
        asyncio.run(perform())
        return answers[0]
    except UnknownOutcomeError:
        raise RefusedError(UNKNOWN) from None


@contextmanager
def waiting_for(name: str) -> Iterator[None]:
    """Tell a user at a terminal, after a second, that the first look waits for a store or a broker."""

    def tell() -> None:
        if sys.stderr.isatty():
            note(f"waiting for {name}, for up to {FIRST_CALL_DEADLINE:.0f} s")

    timer = asyncio.get_running_loop().call_later(1.0, tell)
    try:
        yield
    finally:
        timer.cancel()


async def certain(call: Awaitable[Answer]) -> Answer:
    """Return the answer of a change. If its outcome is not known at its deadline, try some time longer to find out.

    Raises:
        UnknownOutcomeError: the outcome is still not known.
        JQueueError: the change was not made.
    """
    try:
        return await errors.certain(call, SECOND_THOUGHT)
    except asyncio.CancelledError:  # Ctrl-C
        note("interrupted: it is not known whether the last change was made")
        raise


def direct(place: ObjectStoragePort | JobStorePort) -> DirectQueue | StoreQueue:
    """Return the queue that a URL names, whose calls are made one by one."""
    if isinstance(place, ObjectStoragePort):
        return DirectQueue(place)
    from jqueue.formats.queue import StoreQueue

    return StoreQueue(place)
