"""The target `decode`: bytes read as a blob, or as two blobs, one read after the other."""

from __future__ import annotations

from jqueue.testing.virtual_time import run
from tests.fuzz.choices import Choices
from tests.fuzz.edits import edit
from tests.fuzz.oracles import check_blob
from tests.fuzz.seeds import SEPARATOR
from tests.fuzz.session import Session


def decode_target(data: bytes) -> None:
    """Read the bytes, check the result against every promise, and let a queue read and write them.

    Raises:
        Finding: a promise was broken. Any other exception is a finding too.
    """
    blobs = data.split(SEPARATOR, 1)
    if all(check_blob(blob) is not None for blob in blobs) and data:
        run(_program(*blobs))


async def _program(first: bytes, second: bytes = b"") -> None:
    session = Session(first)
    await session.judge_view()
    await session.call("dequeue", batch_size=100)
    if second:
        await session.another_queue_writes(second)
        await session.judge_view()
    await session.call("enqueue", "mail", b"new")
    await session.judge_view()


def mutated(data: bytes, choices: Choices) -> bytes:
    """Return a neighbour of an input: one of its blobs edited, or an edited copy appended."""
    first, separator, second = data.partition(SEPARATOR)
    if not separator and choices.one_in(4):
        return first + SEPARATOR + edit(first, choices)
    if separator and choices.one_in(2):
        return first + SEPARATOR + edit(second, choices)
    return edit(first, choices) + separator + second
