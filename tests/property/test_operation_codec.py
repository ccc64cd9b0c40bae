"""Every operation that travels is decoded as it was encoded, and changes a queue in the same way."""

from datetime import datetime
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import JQueueError, Limits, operations
from jqueue.core.claims import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.operations.base import Preparation, perform
from jqueue.domain.operations.bulk import EnqueueSegments
from jqueue.domain.operations.codec import TRAVELLING, decode_operation, encode_operation
from tests.property.drawing import NOW, OPERATIONS, STATE
from tests.property.test_codec_properties import PATIENT

PREPARATION = Preparation(Limits(), 1.0, lambda: "new", ClaimRegistry().find)
OURS = {"call", "name_before", "new_id", "payload_object", "lease_id", "result_object", "last", "singles"}
"""Fields that no caller sets."""

PUBLIC = {each for each in vars(operations).values() if isinstance(each, type)} & {*TRAVELLING}


@pytest.mark.parametrize("kind", TRAVELLING, ids=lambda kind: kind.__name__)
@settings(PATIENT, max_examples=4)
@given(data=st.data())
def test_an_operation_is_decoded_as_it_was_and_changes_a_queue_in_the_same_way(kind, data):
    operation = data.draw(OPERATIONS.of(kind))
    if operation.large is not None:
        with pytest.raises(TypeError, match="must be stored first"):
            encode_operation(operation)
        return
    found = decode_operation(encode_operation(operation))
    assert operation == found
    here, there = Draft(STATE), Draft(STATE)
    result, again = (perform([each], draft, NOW) for each, draft in ((operation, here), (found, there)))
    assert (type(result), str(result)) == (type(again), str(again))
    assert here.changed == there.changed
    assert here.freeze() == there.freeze()


class Moment(datetime):
    """A time of a class of the program's own."""


def derived(value):
    """Return an equal value of derived classes, whose objects no encoder of JSON takes."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return type(value)(**{name: each if name in OURS else derived(each) for name, each in fields})
    if isinstance(value, dict):
        return {name: derived(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(*map(derived, value)) if hasattr(value, "_fields") else type(value)(map(derived, value))
    if isinstance(value, datetime):
        return Moment.fromisoformat(value.isoformat())
    if isinstance(value, bool | Enum) or not isinstance(value, str | int | float):
        return value
    return type("Derived", (type(value),), {})(value)


@pytest.mark.parametrize("kind", sorted(PUBLIC, key=str), ids=lambda kind: kind.__name__)
@settings(PATIENT, max_examples=4)
@given(data=st.data())
def test_an_operation_of_a_callers_travels_alike_if_its_values_are_of_derived_classes(kind, data):
    operation = data.draw(OPERATIONS.of(kind))
    prepared = list[Any]()
    for each in (operation, derived(operation)):
        try:
            prepared.append(encode_operation(each.prepared(PREPARATION)))
        except (JQueueError, TypeError) as error:
            prepared.append((type(error), str(error).replace("Derived", "str")))
    assert prepared[0] == prepared[1]


@pytest.mark.parametrize(
    "encoded",
    [
        {"type": "Enqueue", "entrypoint": "", "new_id": "a"},
        {"type": "Enqueue", "entrypoint": "e", "job_id": ""},
        {"type": "Enqueue", "entrypoint": "e", "new_id": "a", "priority": 10**20},
        {"type": "Enqueue", "entrypoint": "e", "new_id": "a", "max_attempts": 0},
        {"type": "Enqueue", "entrypoint": "e", "new_id": "a", "keep_result": -1.0},
        {"type": "Enqueue", "entrypoint": "e", "new_id": "a", "delay": 1e300},
        {"type": "Enqueue", "entrypoint": "e", "new_id": "a", "run_at": "2026-01-01T00:00:00"},
        {"type": "Dequeue", "entrypoint": ["e"], "claim_timeout": -1},
        {"type": "Reprioritise", "job_id": "a", "priority": -(10**20)},
        {"type": "Pause", "entrypoint": ""},
        {"type": "SetLimits", "entrypoint": "e", "running": -5},
        {"type": "Configure", "blob_bytes": -5},
        {"type": "Configure", "dead_retention": -5},
        {"type": "SetSchedule", "name": "n", "cron": "* * * * *", "entrypoint": "e", "priority": 2**31},
        {"type": "ClaimLease", "entrypoint": "e", "rows": 9, "lease_id": ""},
    ],
    ids=str,
)
def test_an_operation_out_of_bounds_is_not_decoded(encoded):
    """It would write a line or a header that cannot be read back."""
    with pytest.raises(msgspec.ValidationError):
        decode_operation(msgspec.json.encode(encoded))


def test_a_bulk_enqueue_stays_with_the_process_that_wrote_its_segments():
    with pytest.raises(TypeError, match="EnqueueSegments cannot travel"):
        encode_operation(EnqueueSegments(0, NOW, (), (), NOW))
