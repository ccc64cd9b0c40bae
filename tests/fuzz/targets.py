"""The targets by name. Each is a function of bytes that returns or raises its finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fuzz import decode, hand_edit, operations, segments
from tests.fuzz.seeds import SEPARATOR


@dataclass(frozen=True)
class Target:
    """A target of the fuzzer.

    Attributes:
        run: runs an input, and raises a finding.
        contents: the blobs that an input stands for.
        words: more text about an input, for people.
    """

    run: Callable[[bytes], None]
    contents: Callable[[bytes], list[bytes]]
    words: Callable[[bytes], list[str]] = lambda data: []


TARGETS: Mapping[str, Target] = {
    "decode": Target(decode.decode_target, lambda data: data.split(SEPARATOR, 1)),
    "hand-edit": Target(hand_edit.hand_edit_target, hand_edit.contents),
    "operations": Target(operations.operations_target, operations.contents, operations.calls),
    "segments": Target(segments.segments_target, segments.contents),
}


def found(name: str, data: bytes) -> BaseException | None:
    """Return the finding of a target for an input, or None."""
    try:
        TARGETS[name].run(data)
    except Exception as error:
        return error
    return None
