"""A client that lies in any field of any operation leaves the queue small and readable, and the others served.

Every field is found in the records of the operations, also within the records that they have.
"""

import json
import types
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits
from jqueue.core.messages import Batch, Stop
from jqueue.core.messages import Claim as MessageClaim
from jqueue.domain.job import Claim
from jqueue.domain.operations.codec import TRAVELLING, ClientBatch
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.rules import Configure

LIMIT = 200_000
"""Size limit of the queue's object in bytes."""

LONG = "é" * LIMIT
FAR = ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "2100-01-01T00:00:00+05:00"]
LIES: Mapping[Any, list[Any]] = {
    str: [LONG, "", "a\x00"],
    bytes: [b64encode(LONG.encode()).decode()],
    bool: [True, False],
    int: [2**62, 2**53, 0, -1],
    float: [1e300, 0.0, -1.0],
    datetime: FAR,
    Any: [LONG, {"": LONG}, [[]] * LIMIT],
    type(None): [],
    timedelta: [],
    msgspec.UnsetType: [],
}
FIT: Mapping[Any, Any] = {
    **{str: "mail", bytes: "", bool: False, int: 1, float: 1.0, datetime: "2026-01-01T00:00:00Z", Any: 1},
    Claim: ["runs", 1],
}
IDS = {"job_id": "waits", "lease_id": "range", "new_id": "new", "id": "new", "status": "queued", "at": 4e9}
IDS["cron"] = "0 0 1 1 *"
"""Values of fields by their names, where the type alone does not tell one that fits."""


def parts_of(kind):
    """Return the kinds of value that a type allows. Of all operations that another one may hold, one stands for all."""
    if get_origin(kind) is Annotated:
        return parts_of(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        operations = [part for part in get_args(kind) if part in TRAVELLING]
        parts = [part for part in get_args(kind) if part not in operations] + ([Nack] if operations else [])
        return [each for part in parts for each in parts_of(part)]
    return [kind]


def fields_of(kind):
    """Return the fields of a record or a named tuple that travel, by name: the type, and True if it must be given."""
    hints = get_type_hints(kind, include_extras=True)
    if not issubclass(kind, msgspec.Struct):
        return {name: (hints[name], True) for name in kind._fields}
    fields = msgspec.structs.fields(kind)
    assert all(get_origin(hints[each.name]) is not ClassVar for each in fields)
    return {each.encode_name: (hints[each.name], each.required) for each in fields}


def fit(kind, name=""):
    """Return a value that fits a type, as JSON."""
    kind = parts_of(kind)[0]
    origin, parts = get_origin(kind), get_args(kind)
    if name in IDS or kind in FIT:
        return IDS.get(name, FIT.get(kind))
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return next(iter(parts or kind))
    if origin in (Mapping, dict):
        return {"waits": fit(parts[1])}
    if origin is not None:
        return [fit(part) for part in parts if part is not ...]
    given = {each: fit(one, each) for each, (one, needed) in fields_of(kind).items() if needed}
    if not issubclass(kind, msgspec.Struct):
        return list(given.values())
    return {"type": kind.__name__} | given if kind in TRAVELLING else given


def lies_in(kind, depth=4):
    """Yield values of a type, as JSON, each with one lie in it, however deep."""
    for part in parts_of(kind) if depth else ():
        origin, parts = get_origin(part), get_args(part)
        if part in LIES:
            yield from LIES[part]
        elif origin is Literal or (isinstance(part, type) and issubclass(part, Enum)):
            yield from parts or part
        elif origin in (Mapping, dict):
            yield from ({"waits": lie} for lie in lies_in(parts[1], depth - 1))
            yield {LONG: fit(parts[1])}
            yield {f"{number}": fit(parts[1]) for number in range(1000)}
        elif origin is tuple and parts[-1] is not ...:
            for place, one in enumerate(parts):
                yield from ([*map(fit, parts[:place]), lie, *map(fit, parts[place + 1 :])] for lie in lies_in(one))
        elif origin in (tuple, Sequence, list, frozenset):
            yield from ([lie] for lie in lies_in(parts[0], depth - 1))
            yield [fit(parts[0])] * 1000
        else:
            for name, (one, _) in fields_of(part).items():
                for lie in lies_in(one, depth - 1):
                    yield with_lie(part, name, lie)


def with_lie(kind, name, lie):
    """Return a record that fits but for one field, as JSON."""
    if not issubclass(kind, msgspec.Struct):
        return [lie if each == name else fit(one, each) for each, (one, _) in fields_of(kind).items()]
    ids = {each: IDS[each] for each in fields_of(kind).keys() & {"new_id", "lease_id", "at"}}
    return fit(kind) | ids | {name: lie}


def message_of(kind, lie):
    common = {"client": "c", "seconds": [9]}
    if kind is Dequeue:
        return common | {"do": "claim", "operation": {"call": "c/1"} | lie, "seconds": 9}
    return common | {"do": "batch", "sequence": 1, "operations": [lie]}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=[pytest.mark.wide] * (each is not Enqueue), id=each.__name__)
        for each in TRAVELLING
        if each is not ClientBatch
    ],
)
async def test_a_lie_in_any_field_of_an_operation_harms_nobody_else(kind):
    lies = list(lies_in(kind)) or [fit(kind)]
    for lie in lies:
        storage, limits = InMemoryStorage(), Limits(blob_bytes=LIMIT, hot_bytes=None, object_bytes=None)
        async with BrokerQueue(storage, limits=limits) as queue:
            await queue.enqueue("mail", job_id="runs", keep_result=60)
            await queue.dequeue("mail", holder="worker")
            await queue.schedule("mail", "0 0 1 1 *", "mail")
            await queue.enqueue("mail", job_id="waits")
            answer = await queue.service().handle(json.dumps(message_of(kind, lie)).encode())
            assert b"the broker failed" not in answer, lie
            size = len((await storage.read())[0])
            assert size <= LIMIT or kind is Configure, f"{size} bytes after {str(lie)[:300]}"
            if kind is not Configure:
                await queue.purge()
                await queue.enqueue("other", job_id="innocent", unique_key="innocent")
                [job] = await queue.dequeue("other")
                await queue.ack(job)
            await queue.stats()
        reader = DirectQueue(storage)
        await reader.stats()
        assert () == (await reader.read_state()).set_aside, f"{str(lie)[:300]}"


MESSAGES: Mapping[Any, dict[str, Any]] = {
    Batch: {"do": "batch", "client": "c", "sequence": 1, "token": "t", "operations": [fit(Nack)], "seconds": [9]},
    MessageClaim: {"do": "claim", "client": "c", "operation": {"type": "Dequeue", "call": "c/1"}, "seconds": 9},
    Stop: {"do": "stop", "client": "c", "call": "c/1"},
}


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
async def test_a_lie_in_any_field_of_a_message_harms_nobody_else(kind):
    fields = {name: each for name, (each, _) in fields_of(kind).items() if name not in ("operation", "operations")}
    storage = InMemoryStorage()
    async with BrokerQueue(storage) as queue:
        for number, (name, lie) in enumerate((name, lie) for name, each in fields.items() for lie in lies_in(each)):
            await queue.enqueue("mail", job_id=f"{number}")
            answer = await queue.service().handle(json.dumps(MESSAGES[kind] | {name: lie}).encode())
            assert b"the broker failed" not in answer, (name, lie)
            batch = MESSAGES[Batch] | {"client": "innocent", "sequence": number + 1, "token": f"{number}"}
            assert b"BatchUnknownError" not in await queue.service().handle(json.dumps(batch).encode()), (name, lie)
            assert len((await storage.read())[0]) < 20_000
    assert () == (await DirectQueue(storage).read_state()).set_aside
