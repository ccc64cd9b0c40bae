"""Faults that are known and not mended yet: what one of them explains is passed over, or it would hide other findings.

Each has a file in `corpus/known`, named after it and its target, and a test says that it is still there: whoever mends
it takes it out of here and moves its file to the corpus of the target, where it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jqueue.core import codec
from jqueue.domain.models import QueueState

KNOWN: Mapping[str, Callable[[str, bytes, QueueState | None], bool]] = {}
"""Name -> whether it explains what was said of a blob, and of its state if it has one."""


def explained(error: BaseException, *contents: bytes) -> str | None:
    """The known fault that explains a finding on one of some blobs; None if none does."""
    for content in contents:
        try:
            state = codec.decode(content)
        except Exception:  # refused, or a finding of its own
            state = None
        for name, explains in KNOWN.items():
            if explains(str(error), content, state):
                return name
    return None
