"""Every operation that travels is decoded as it was encoded, and changes a queue in the same way."""

import types
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from jqueue import Claim, JQueueError, Limits, operations
from jqueue.core.claims import ClaimRegistry
from jqueue.domain.draft import Draft
from jqueue.domain.job import JobRecord, JobStatus, StoredObject
from jqueue.domain.models import Job, QueueState, record_of
from jqueue.domain.operations.base import Preparation, perform
from jqueue.domain.operations.bulk import EnqueueSegments
from jqueue.domain.operations.codec import TRAVELLING, AllOrNothing, Guarded, decode_operation, encode_operation
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.domain.segments import RowKey, Segment
from tests.property.test_codec_properties import (
    PATIENT,
    any_jobs,
    decisions,
    rules,
    schedules,
    seconds,
    stored,
    texts,
    times,
    values,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FEW = 3
SEGMENT = Segment(entrypoint="mail", rows=3, bytes=100, index=50, chunk_rows=2, head=RowKey(0, 1, 0.0), crc=1)


JOB: dict[str, Any] = {"entrypoint": "mail", "payload": b"x", "created_at": NOW, "max_attempts": 3}
CLAIM: dict[str, Any] = {"heartbeat_at": NOW, "claim_timeout": 5.0, "holder": "one", "claimed_at": NOW, "attempt": 2}
STATE = QueueState(
    version=3,
    queue="q",
    jobs=(
        Job(id="waits", sequence=1, unique_key="key", **JOB),
        Job(id="runs", sequence=2, status=JobStatus.IN_PROGRESS, failures=1, **CLAIM, **JOB),
        Job(id="runs last", sequence=3, status=JobStatus.IN_PROGRESS, failures=3, keep_result=9.0, **CLAIM, **JOB),
        Job(id="is dead", sequence=4, status=JobStatus.DEAD, dead_at=NOW, attempt=3, error="no", **JOB),
        Job(id="is done", sequence=5, status=JobStatus.COMPLETED, finished_at=NOW, attempt=1, keep_result=60.0, **JOB),
    ),
    finished={"is done": 1, "was done": 2},
    entrypoints={"mail": EntrypointRules(max_running=4)},
    schedules={"nightly": Schedule(name="nightly", cron="0 2 * * *", entrypoint="mail", next_at=NOW)},
    settings=QueueSettings(dead_retention=60.0),
)


class Drawing:
    """Strategies for the fields of operations, by their types. Ids and claims are mostly those of `STATE`."""

    def __init__(self):
        known = [job.id for job in STATE.jobs]
        self._by_type = {
            str: st.sampled_from([*known, "mail", "nightly", "key"]) | texts,
            bytes: st.binary(max_size=20),
            bool: st.booleans(),
            int: st.integers(0, 20),
            float: seconds,
            datetime: times,
            type(None): st.none(),
            Any: values,
            Claim: st.sampled_from([*(job.claim for job in STATE.jobs), Claim("gone", 1)]),
            JobRecord: (st.sampled_from(STATE.jobs) | any_jobs).map(record_of),
            StoredObject: stored,
            Schedule: st.sampled_from([*STATE.schedules.values()]) | schedules,
            QueueSettings: st.just(STATE.settings) | decisions.map(lambda found: found["settings"]),
            EntrypointRules: st.just(STATE.entrypoints["mail"]) | rules,
            Segment: st.just(SEGMENT),
        }

    def of(self, kind):
        """Return a strategy for values of a type."""
        if kind in self._by_type:
            return self._by_type[kind]
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self.of(parts[0]).filter(lambda value: fits(value, kind))
        if origin is Literal:
            return st.sampled_from(parts)
        if origin in (Union, types.UnionType):
            several = [part for part in parts if part not in (timedelta, msgspec.UnsetType)]
            if (
                kinds := [part for part in several if isinstance(part, type) and issubclass(part, msgspec.Struct)]
            ) and (len(kinds) > FEW):
                several = [part for part in kinds if part not in (Guarded, AllOrNothing)]
                return st.sampled_from(several).flatmap(self.of)
            return st.one_of(*map(self.of, several))
        if origin is tuple and parts[-1] is ...:
            return st.lists(self.of(parts[0]), max_size=FEW).map(tuple)
        if origin is tuple:
            return st.tuples(*map(self.of, parts))
        if origin is frozenset:
            return st.frozensets(self.of(parts[0]), max_size=FEW)
        if origin in (Sequence, list):
            return st.lists(self.of(parts[0]), max_size=FEW)
        if origin in (Mapping, dict):
            return st.dictionaries(self.of(parts[0]), self.of(parts[1]), max_size=FEW)
        return self._of_class(kind)

    def _of_class(self, kind):
        if issubclass(kind, Enum):
            return st.sampled_from(kind)
        hints = get_type_hints(kind, include_extras=True)
        if is_typeddict(kind):
            return st.fixed_dictionaries({}, optional={name: self.of(hint) for name, hint in hints.items()})
        assert not issubclass(kind, BaseModel), f"{kind} needs a strategy here"
        return st.builds(kind, **{name: self.of(hint) for name, hint in hints.items() if not is_of_class(hint)})


DRAWING = Drawing()
PREPARATION = Preparation(Limits(), 1.0, lambda: "new", ClaimRegistry().find)
OURS = {"call", "name_before", "new_id", "payload_object", "lease_id", "result_object", "singles"}
"""Fields that no caller sets."""

PUBLIC = {each for each in vars(operations).values() if isinstance(each, type)} & {*TRAVELLING}


def fits(value, kind):
    """Return True if the decoder of operations takes a value of an annotated type."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def is_of_class(hint):
    return str(hint).startswith("typing.ClassVar")


@pytest.mark.parametrize("kind", TRAVELLING, ids=lambda kind: kind.__name__)
@settings(PATIENT, max_examples=4)
@given(data=st.data())
def test_an_operation_is_decoded_as_it_was_and_changes_a_queue_in_the_same_way(kind, data):
    operation = data.draw(DRAWING.of(kind))
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
    operation = data.draw(DRAWING.of(kind))
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
