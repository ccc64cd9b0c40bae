"""The targets by name: each is a function of bytes that returns, or raises what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fuzz import decode, hand_edit, operations
from tests.fuzz.seeds import SEPARATOR


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        run: takes an input, and raises what it finds.
        contents: the blobs that an input stands for.
        words: what else there is to say of an input, for people.
    """

    run: Callable[[bytes], None]
    contents: Callable[[bytes], list[bytes]]
    words: Callable[[bytes], list[str]] = lambda data: []


TARGETS: Mapping[str, Target] = {
    "decode": Target(decode.decode_target, lambda data: data.split(SEPARATOR, 1)),
    "hand-edit": Target(hand_edit.hand_edit_target, hand_edit.contents),
    "operations": Target(operations.operations_target, operations.contents, operations.calls),
}


def found(name: str, data: bytes) -> BaseException | None:
    """What a target finds in an input; None if nothing."""
    try:
        TARGETS[name].run(data)
    except Exception as error:
        return error
    return None
