"""The payload of a command: an argument, a file, or the standard input. A large one is never held in memory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from jqueue.cli.on_queue import RefusedError
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.limits import Limits
from jqueue.ports.queue import Capabilities
from jqueue.runtime.threads import in_a_thread

PIECE = 1 << 20
"""Number of bytes to read at once."""

STDIN = "-"

Payload = Annotated[
    str | None,
    typer.Argument(
        metavar="PAYLOAD", help="Payload as text, or - for the standard input. Empty by default.", show_default=False
    ),
]
PayloadFile = Annotated[
    str | None,
    typer.Option("--file", "-f", metavar="FILE", help="Read the payload from a file of any size.", show_default=False),
]


async def payload_of(text: str | None, file: str | None, limits: Limits, capabilities: Capabilities) -> PayloadSource:
    """Return the payload that the arguments mean: its bytes if it is small, or else a source to read it from.

    Args:
        text: the argument, if given.
        file: path of a file, if given.
        limits: limits of the queue object.
        capabilities: of the queue. If it keeps no objects, a payload must fit into the queue itself.

    Raises:
        RefusedError: both are given, or the file cannot be read.
    """
    if text is not None and file is not None:
        raise RefusedError("give the payload as an argument or with --file, not both")
    if text is None and file is None:
        return b""
    if text is not None and text != STDIN:
        return text.encode("utf-8", "surrogateescape")  # the bytes that the shell passed
    most = limits.most_payload(objects=False)
    whole = ((capabilities.objects and limits.object_bytes) or most) + 1
    if file is None or file == STDIN:
        return await _from(sys.stdin.buffer, whole, streams=capabilities.objects)
    try:
        if await in_a_thread(Path(file).is_file):
            start = await in_a_thread(lambda: _start_of(file, whole))
            return Path(file) if capabilities.objects and len(start) == whole else start
        pipe = await in_a_thread(lambda: Path(file).open("rb"))  # noqa: SIM115 - it is read later, and then closed
        return await _from(pipe, whole, streams=capabilities.objects)
    except OSError as error:
        raise RefusedError(f"the file of the payload cannot be read: {error.strerror}") from None


def _start_of(file: str, size: int) -> bytes:
    with Path(file).open("rb") as opened:
        return opened.read(size)


async def _from(stream: BinaryIO, whole: int, *, streams: bool) -> PayloadSource:
    """Return the bytes of a stream that cannot be read twice, or an async iterable if there are more than fit."""
    start = await in_a_thread(lambda: stream.read(whole))
    if streams and len(start) == whole:
        return _pieces(start, stream)
    _close(stream)
    return start


async def _pieces(start: bytes, stream: BinaryIO) -> AsyncIterator[bytes]:
    piece = start
    try:
        while piece:
            yield piece
            piece = await in_a_thread(lambda: stream.read(PIECE))
    finally:
        _close(stream)


def _close(stream: BinaryIO) -> None:
    if stream is not sys.stdin.buffer:
        stream.close()
