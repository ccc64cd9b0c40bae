"""The targets by name. Each is a function of bytes that returns or raises its finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.fuzz.decode import decode_target
from tests.fuzz.hand_edit import hand_edit_target
from tests.fuzz.operations import operations_target
from tests.fuzz.segments import segments_target

TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "decode": decode_target,
    "hand-edit": hand_edit_target,
    "operations": operations_target,
    "segments": segments_target,
}
