"""The operations that each role may send to the broker. An operation that holds others is allowed with all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from jqueue.core.messages import Batch, Claim, Stop
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.codec import TRAVELLING, AllOrNothing, Carried, Guarded
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ends import Ack, HandBack, HandBackCalls, Heartbeat, Nack, Sweep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Attend, Fence
from jqueue.domain.operations.ranges import ClaimBatch, ClaimRange, EndRange
from jqueue.domain.operations.rules import SetSchedule
from jqueue.server.access import Role

_PRODUCERS = frozenset((Role.PRODUCER, Role.WORKER, Role.OPERATOR))
_WORKERS = frozenset((Role.WORKER, Role.OPERATOR))

ALLOWED: Mapping[type[Operation], frozenset[Role]] = {
    **dict.fromkeys(TRAVELLING, frozenset((Role.OPERATOR,))),
    **dict.fromkeys((Enqueue, AllOrNothing), _PRODUCERS),
    **dict.fromkeys((Dequeue, Ack, Nack, Heartbeat, HandBack, HandBackCalls, Sweep, Attend, Fence), _WORKERS),
    **dict.fromkeys((ClaimRange, EndRange, ClaimBatch, Guarded, *lookups.TRAVELLING), _WORKERS),
    SetSchedule: _WORKERS,  # a worker sets the cron entries of its handlers when it starts
    Carried: frozenset(),  # the broker makes it of a batch: a client that sends one could speak for another
}
"""The roles that may send each operation that travels."""


def _no_claim(reference: JobReference) -> NoReturn:
    raise InvalidJobError("an enqueue names no claim")


class NotAllowedError(Exception):
    """The caller's role does not allow what it has asked for."""


def check_rights(role: Role, message: Batch | Claim | Stop, limits: Limits) -> None:
    """Check what a client asks of the broker.

    Raises:
        NotAllowedError: its role does not allow it. The message names the operation.
        InvalidJobError: a job is larger than the limits, or its values are wrong.
    """
    if isinstance(message, Stop):
        if role not in _WORKERS:
            raise NotAllowedError(f"a {role} may not claim jobs")
        return
    for operation in message.operations if isinstance(message, Batch) else (message.operation,):
        _check(role, operation, limits)


def _check(role: Role, operation: Operation, limits: Limits) -> None:
    if role not in ALLOWED[type(operation)]:
        raise NotAllowedError(f"a {role} may not do {type(operation).__name__}")
    if isinstance(operation, AllOrNothing):
        for each in operation.operations:
            _check(role, each, limits)
        return
    if isinstance(operation, Guarded):
        _check(role, operation.operation, limits)
    if isinstance(operation, Enqueue) and role is Role.PRODUCER:
        if operation.payload_object is not None:
            raise NotAllowedError("a producer may not name an object that has a payload: it might be another job's")
        if operation.enqueue_bytes > limits.enqueue_bytes:
            raise InvalidJobError(f"enqueue_bytes may be at most {limits.enqueue_bytes}")
        check_name("id", operation.id, limits)
        operation.prepared(Preparation(limits, 0.0, str, _no_claim))
