"""Operations that hold others, and the encoded form of every operation and result, to travel to another process.

A prepared operation is JSON: an object with the name of its class as `type`, and the fields that differ from their
defaults. Bytes are base64, times are RFC 3339, a claim is an array of the job's id and the attempt. A result is an
array with one value, whose type is what the operation's `change` returns; a refusal is an object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec
from msgspec.structs import replace

from jqueue.domain import errors
from jqueue.domain.draft import Draft
from jqueue.domain.durations import exact_time
from jqueue.domain.errors import (
    BatchUnknownError,
    ChangedMeanwhileError,
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
)
from jqueue.domain.fields import Count, Moment
from jqueue.domain.header import ClientRecord
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import Limits
from jqueue.domain.models import NotLoaded, record_of
from jqueue.domain.operations import ends, enqueue, groups, leases, lookups, operator, rules, segments
from jqueue.domain.operations.base import (
    GivenJob,
    JobReference,
    Operation,
    Preparation,
    asker,
    carry_out,
    perform,
    result_type,
)
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.operator import Redriven
from jqueue.domain.rules import EntrypointRules, Schedule
from jqueue.domain.selection import Selection


class Guarded(Operation, frozen=True):
    """An operation that is done only if the queue still is as its caller has seen it. Its result is the operation's.

    A person looks at a queue, decides, and acts seconds later. Between the look and the commit a worker may have
    claimed the job, or another person may have changed it. The values are compared in the transition itself, so a
    change between the look and the commit is always noticed.

    Attributes:
        operation: any that hands out no claims and has no large value.
        job: the job is in the queue, and nothing of it but its heartbeat has changed. Its payload is not compared.
        selection, job_id: the job with this id is in the queue and belongs to the selection.
        rules, entrypoint: the limits and the pause of this entrypoint have not changed.
        schedule: the cron entry is there, and nothing of it but its times, and what a program declares, has changed.
    """

    operation: Inner
    job: GivenJob | None = None
    job_id: str = ""
    selection: Selection | None = None
    entrypoint: str = ""
    rules: EntrypointRules | None = None
    schedule: Schedule | None = None

    def prepared(self, preparation: Preparation) -> Guarded:
        """Return the operation with the guarded one checked. A large value of that one stays in it."""
        job = self.job if self.job is None or isinstance(self.job, JobRecord) else record_of(self.job)
        return replace(self, operation=self.operation.prepared(_inline(preparation)), job=job)

    def needs(self, claim_timeout: float) -> Iterable[str]:
        """Return the needs of the guarded operation."""
        return self.operation.needs(claim_timeout)

    def change(self, draft: Draft, now: datetime) -> Any:
        """Compare what the caller has seen, and do the operation.

        Raises:
            JobNotFoundError: the job is not in the queue.
            ChangedMeanwhileError: something has changed.
            JQueueError: the operation is refused.
        """
        if (changed := self._changed(draft, now)) is not None:
            raise ChangedMeanwhileError(f"{changed} meanwhile")
        return carry_out(self.operation, draft, now)

    def _changed(self, draft: Draft, now: datetime) -> str | None:
        """Return the part of an error that names what has changed; None if nothing has."""
        header = draft.header
        if self.job is not None:
            assert isinstance(self.job, JobRecord)
            if _without_place(draft.get(self.job.id)) != _without_place(self.job):
                return f"job {self.job.id!r} has changed"
        if self.selection is not None and not self.selection.matches(draft.get(self.job_id), now):
            return f"job {self.job_id!r} no longer matches: it has changed"
        if self.rules is not None and header.entrypoints.get(self.entrypoint, EntrypointRules()) != self.rules:
            return f"the limits of entrypoint {self.entrypoint!r} have changed"
        if self.schedule is not None:
            entry = header.schedules.get(self.schedule.name)
            if entry is None or _without_times(entry) != _without_times(self.schedule):
                return f"cron entry {self.schedule.name!r} has changed, or was removed,"
        return None

    def recovered(self, draft: Draft, at: datetime) -> Any:
        """Return the operation's."""
        return self.operation.recovered(draft, at)

    def references(self) -> Sequence[JobReference]:
        """Return the jobs that the guarded operation names."""
        return self.operation.references()

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs of the guarded operation."""
        return self.operation.job_ids()


def _inline(preparation: Preparation) -> Preparation:
    """Return the preparation of an operation inside another: only the outer one could name an object."""
    return msgspec.structs.replace(preparation, object_bytes=None)


def _without_place(job: JobRecord) -> JobRecord:
    """Return a job without its heartbeat, steps, progress, place, which a reader may have numbered, and its payload.

    No operation changes a payload. A job of `find`, and the mirror of a folder of files, have none.
    """
    return job.evolve(heartbeat_at=None, steps=(), progress=None, sequence=0, payload=b"")


def _without_times(schedule: Schedule) -> Schedule:
    return schedule.evolve(next_at=datetime.min, fired=(), declared=None)


class AllOrNothing(Operation, frozen=True):
    """Do several operations, or none of them. The result is the list of their results.

    `apply_each` does each of its operations by itself, and `apply` all of them as one. A batch needs both in its
    commit: thousands of jobs, each by itself, and with some of them the jobs that their handlers enqueue with the ack.

    Attributes:
        operations: in order. None of them claims jobs.
    """

    needs_space = False

    operations: tuple[Inner, ...]

    def prepared(self, preparation: Preparation) -> AllOrNothing:
        """Return it with each operation checked. Their large values stay in them."""
        inline = _inline(preparation)
        return AllOrNothing(tuple(operation.prepared(inline) for operation in self.operations))

    def change(self, draft: Draft, now: datetime) -> list[Any]:
        """Do the operations in order. The first refusal is the error of all, and the caller takes all of them back."""
        return [carry_out(operation, draft, now) for operation in self.operations]

    def recovered(self, draft: Draft, at: datetime) -> Any:
        """Return the results, or the first error among them."""
        results = [operation.recovered(draft, at) for operation in self.operations]
        return next((each for each in results if isinstance(each, JQueueError)), results)

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs that the operations are about."""
        return [job_id for operation in self.operations for job_id in operation.job_ids()]


def held_by(operation: Operation) -> Sequence[Operation]:
    """Return the operations that an operation holds."""
    inner = (operation.operation,) if isinstance(operation, Guarded) else ()
    return operation.operations if isinstance(operation, AllOrNothing) else inner


def asked_by(who: str | None, operation: Operation) -> Operation:
    """Return an operation that names a person or program as the one who asked for it, and for those that it holds."""
    if isinstance(operation, Guarded):
        return replace(operation, operation=asked_by(who, operation.operation))
    if isinstance(operation, AllOrNothing):
        return AllOrNothing(tuple(asked_by(who, each) for each in operation.operations))
    if not hasattr(operation, "asked_by"):
        return operation
    return replace(operation, asked_by=who and asker(who))


def count_of(operations: Iterable[Operation]) -> int:
    """Return the number of operations, with those that they hold."""
    return sum(count_of(held_by(each)) or 1 for each in operations)


class Refused(msgspec.Struct, frozen=True):
    """An error of the queue as it travels, and as the header keeps it.

    Attributes:
        error: name of its class.
        message: its text.
        about: its attributes.
    """

    error: str
    message: str
    about: dict[str, Any] = {}


REFUSALS_KEPT = 16
"""Largest number of refusals that the header keeps of a batch. The answer of each further one may get lost."""


REFUSALS_BYTES = 8192
"""About the largest size of what the header keeps of the refusals of a batch. There may be a thousand clients."""


def _first_of(refused: Mapping[str, JQueueError]) -> dict[str, Refused]:
    """Return the refusals that the header keeps."""
    refusals, size = dict[str, Refused](), 0
    for place in [*refused][:REFUSALS_KEPT]:
        refusal = refusal_of(refused[place])
        size += len(_encoder.encode(refusal))
        if size > REFUSALS_BYTES:
            break
        refusals[place] = refusal
    return refusals


class ClientBatch(Operation, frozen=True):
    """A batch of calls that one process commits for another, at most once whoever commits it.

    The header notes the number of the last batch of each client. So a batch that is sent again, as its answer was
    lost, is recognised in the commit; and a process that was paused with an old batch cannot do it late.

    Attributes:
        client: id of the client: random, and made anew after a fork.
        sequence: number of the batch, counted by the client. A client has one batch on the way.
        token: random, drawn for this batch alone. A copy of the client's process counts on from the same number.
        base: a version that was there when the batch was first sent.
        operations: its operations, each done by itself. None of them claims jobs.
        due: for each operation the last time at which it may be done; empty: no operation has such a time.
        again: True if the batch may have been sent before. Then the header notes it in any case.
        answer_bytes: bytes that its results may have in an answer; None: they do not travel.
    """

    needs_space = False  # a client has one batch on its way, and bounds its calls itself; some may keep claims

    client: str
    sequence: Count
    token: str
    base: Count
    operations: tuple[Inner, ...]
    due: tuple[Moment, ...] = ()
    again: bool = False
    answer_bytes: Count | None = None

    def change(self, draft: Draft, now: datetime) -> list[Any]:
        """Do each operation that is not too late. Return their results, with errors for the refused ones.

        Raises:
            BatchUnknownError: it can no longer be known whether the batch was done before.
            InvalidJobError: its results are too large for an answer.
        """
        header = draft.header
        record = header.clients.get(self.client)
        if record is not None and (record.sequence, record.token) == (self.sequence, self.token):
            answers = [self._known(record, place, draft, now) for place in range(len(self.operations))]
            fitting = self._fitting(answers)
            return answers[:fitting] + [each.lost_answer() for each in self.operations[fitting:]]
        if record is not None and record.sequence >= self.sequence:
            raise BatchUnknownError("the client, or a copy of its process, has sent a later batch")
        if header.version < self.base or header.clients_evicted > self.base:
            raise BatchUnknownError("the queue no longer has the record of the batch, which may or may not be done")
        before = draft.savepoint()
        late = {place: None for place, due in enumerate(self.due) if due <= now}
        results = perform([each for place, each in enumerate(self.operations) if place not in late], draft, now)
        assert isinstance(results, list)
        for place in late:
            results.insert(place, DeadlineExceededError("the deadline passed, and nothing was done"))
        if self._fitting(results) < len(results):
            raise InvalidJobError(
                f"the results of the batch are too large for one answer ({self.answer_bytes} bytes): send fewer "
                "operations together"
            )
        if self.again or draft.savepoint() != before:
            refused = {str(place): each for place, each in enumerate(results) if isinstance(each, JQueueError)}
            refusals = _first_of(refused)
            entry = ClientRecord(self.sequence, self.token, header.version + 1, now.timestamp(), len(refused), refusals)
            draft.note(header.clients, self.client, entry)
        return results

    def _fitting(self, results: Sequence[Any]) -> int:
        """Return the number of results, from the first, for which an answer has room."""
        left = self.answer_bytes
        for place, (operation, result) in enumerate(zip(self.operations, results, strict=True)):
            if left is None:
                break
            left -= _answer_bytes(operation, result)
            if left < 0:
                return place
        return len(results)

    def _known(self, record: ClientRecord, place: int, draft: Draft, now: datetime) -> Any:
        """Return the result of an operation of a batch that has landed, as far as the queue still tells it."""
        operation, stored_refusals = self.operations[place], record.refused
        if (refusal := stored_refusals.get(str(place))) is not None:
            return error_of(msgspec.convert(refusal, Refused))
        if record.refusals > len(stored_refusals) and place > max(map(int, stored_refusals), default=-1):
            return operation.lost_answer()
        try:
            if isinstance(operation, lookups.TRAVELLING):
                return operation.change(draft, now)
            return operation.recovered(draft, exact_time(datetime.fromtimestamp(record.at, UTC)))
        except JQueueError as error:  # of this one alone: the batch has landed
            return error if isinstance(operation, lookups.TRAVELLING) else operation.lost_answer()

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs that the operations are about."""
        return [job_id for operation in self.operations for job_id in operation.job_ids()]


TRAVELLING = (
    *(Dequeue, *ends.TRAVELLING, *enqueue.TRAVELLING, *lookups.TRAVELLING, *operator.TRAVELLING),
    *(*groups.TRAVELLING, *leases.TRAVELLING, *rules.TRAVELLING, *segments.TRAVELLING),
    *(Guarded, AllOrNothing, ClientBatch),
)
"""The operations that have an encoded form.

The others belong to the process that made them: a broker's seat, the sweep of its commit, and new segments.

`EnqueueSegments` has megabytes of hashes of new segments. Its commit compares these hashes with the indexes of all
segments. So it is committed by the process that wrote the segments.
"""

if TYPE_CHECKING:
    Inner = Operation
else:
    Inner = reduce(or_, TRAVELLING)


def encode_operation(operation: Operation) -> bytes:
    """Return a prepared operation as JSON.

    Raises:
        TypeError: it cannot travel: see `TRAVELLING`; or a large value of it is not in its object yet.
    """
    if not isinstance(operation, TRAVELLING):
        raise TypeError(f"{type(operation).__name__} cannot travel: it belongs to the process that made it")
    if operation.large is not None:
        raise TypeError(f"{type(operation).__name__} has a large value, which must be stored first")
    return _encoder.encode(operation)


def decode_operation(data: bytes) -> Operation:
    """Return the operation in these bytes.

    Raises:
        msgspec.ValidationError: they are not an encoded operation.
    """
    return _decoder().decode(data)


def receiving(limits: Limits, claim_timeout: float) -> Preparation:
    """Return the preparation of operations that other processes have prepared.

    Names, headers and batches are held to the limits of this process. Payloads and results may be larger, as they count
    against its limit of the blob.

    Args:
        limits: of the queue object.
        claim_timeout: seconds that a claim lasts if its operation does not say.
    """
    wide = dataclasses.replace(limits, payload_bytes=1 << 40, result_bytes=1 << 40)
    return Preparation(wide, claim_timeout, str, lambda reference: cast(Claim, reference))


def received(operation: Operation, preparation: Preparation) -> Operation:
    """Return an operation from another process as it is done here: prepared again, as its sender may lie.

    Its values are checked, its texts are cut, and its sizes are counted anew. A wrong value in the blob might make the
    queue unreadable for everybody.

    Args:
        operation: the operation as it was decoded.
        preparation: see `receiving`.

    Raises:
        InvalidJobError: a value is wrong.
    """
    try:
        if operation.large is not None:
            raise InvalidJobError("its large value must be stored first")
        if isinstance(operation, AllOrNothing):
            return AllOrNothing(tuple(received(each, preparation) for each in operation.operations))
        if isinstance(operation, Guarded):
            return replace(operation, operation=received(operation.operation, preparation))
        return operation.prepared(preparation)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:  # InvalidJobError is a ValueError
        raise InvalidJobError(f"{type(operation).__name__} has a wrong value: {error}") from None


def refusal_of(error: JQueueError) -> Refused:
    """Return an error as it travels: without its cause, its traceback, and what belongs to this process."""
    about = {name: each for name, each in vars(error).items() if name != "cause" and not name.startswith("_")}
    return Refused(type(error).__name__, str(error), about)


def error_of(refusal: Refused) -> JQueueError:
    """Return the error that has travelled. One of a later version of jqueue is a `JQueueError`."""
    kind = _ERRORS.get(refusal.error, JQueueError)
    error = kind.__new__(kind)
    error.args = (refusal.message,)  # an OSError, as a TimeoutError is one, would not take it from `__new__`
    vars(error).update((name, tuple(each) if isinstance(each, list) else each) for name, each in refusal.about.items())
    return error


_ERRORS: dict[str, type[JQueueError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, JQueueError)
}


Content = Literal["whole", "sent", "hidden"]
"""The payload and the headers of a job in the result of an enqueue: they are there, or are those of the enqueue, or are
left out. `sent` keeps a new job from travelling twice.
"""

SHORT = 1024
"""Bytes of the largest payload that travels back all the same: to leave it out would take longer."""


def _content_of(operation: Enqueue, job: JobRecord, *, hidden: bool = False) -> Content:
    if not hidden and len(job.payload) <= SHORT:
        return "whole"
    sent_data = operation.payload, operation.headers
    if operation.new_id == job.id or (not hidden and sent_data == (job.payload, job.headers)):
        return "sent"
    return "hidden" if hidden else "whole"


def _answer_bytes(operation: Operation, result: Any) -> int:
    """Return about how many bytes a result takes in an answer. Payloads, results and errors of jobs make it large."""
    if isinstance(operation, Guarded):
        return _answer_bytes(operation.operation, result)
    if isinstance(result, JobRecord):
        is_sent = isinstance(operation, Enqueue) and _content_of(operation, result) == "sent"
        size = SHORT + (0 if is_sent else len(result.payload) * 4 // 3)
        others = (result.headers, result.error, result.result, result.extra)
        if others == (None, None, None, None) and not result.steps:
            return size
        size += enqueue.stored_bytes(result.evolve(payload=b"")) + 512 * len(result.errors)
        return size if result.result is None else size + len(_encoder.encode(result.result))
    if isinstance(result, list):
        operations = held_by(operation) or (operation,) * len(result)
        return sum(map(_answer_bytes, operations, result))
    return 100


def encode_result(operation: Operation, result: Any, *, hidden: bool = False) -> msgspec.Raw:
    """Return the result of an operation, or the error that refused it, as JSON.

    Args:
        operation: the operation.
        result: its result.
        hidden: True if the client may not see the payload, the headers and the result of a job.
    """
    if isinstance(result, JQueueError):
        return msgspec.Raw(_encoder.encode(refusal_of(result)))
    if isinstance(operation, Guarded):
        return encode_result(operation.operation, result, hidden=hidden)
    if isinstance(operation, AllOrNothing):
        pairs = zip(operation.operations, result, strict=True)
        result = [encode_result(*pair, hidden=hidden) for pair in pairs]
    elif isinstance(operation, Enqueue):
        content = _content_of(operation, result, hidden=hidden)
        if content != "whole":
            result = result.evolve(payload=b"", headers=None, **(_HIDDEN if hidden else {}))
        return msgspec.Raw(_encoder.encode((result, content)))
    return msgspec.Raw(_encoder.encode((result,)))


_HIDDEN: dict[str, Any] = {
    **dict.fromkeys(("payload_object", "result", "result_object", "claim_call", "extra")),
    "steps": (),
}


def decode_result(operation: Operation, data: bytes | msgspec.Raw) -> Any:
    """Return the result of an operation, or the error that refused it.

    Raises:
        msgspec.ValidationError: this is not an encoded result of it.
    """
    text = bytes(data)
    if text.startswith(b"{"):
        return error_of(msgspec.json.decode(text, type=Refused))
    if isinstance(operation, AllOrNothing):
        [results] = msgspec.json.decode(text, type=tuple[list[msgspec.Raw]])
        return [decode_result(each, one) for each, one in zip(operation.operations, results, strict=True)]
    if isinstance(operation, Guarded):
        return decode_result(operation.operation, data)
    if isinstance(operation, Enqueue):
        job, content = _enqueued_decoder().decode(text)
        if content == "sent":
            return job.evolve(payload=operation.payload, headers=operation.headers)
        return job if content == "whole" else job.evolve(payload=NotLoaded())
    result = _result_decoder(type(operation)).decode(text)[0]
    if isinstance(operation, lookups.Peek | lookups.AwaitChange) or (
        isinstance(operation, lookups.Find) and not operation.with_payload
    ):
        return [job.evolve(payload=NotLoaded()) for job in result]
    return result


def _to_json(value: Any) -> Any:
    if isinstance(value, JQueueError):
        return refusal_of(value)
    if isinstance(value, Redriven):
        return int(value), value.left
    if isinstance(value, NotLoaded):
        return b""
    raise TypeError(f"{type(value).__name__} does not travel")


def _from_json(kind: type, value: Any) -> Any:
    if issubclass(kind, JQueueError):
        return error_of(msgspec.convert(value, Refused))
    if kind is Redriven:
        return Redriven(*value)
    raise TypeError(f"{kind.__name__} does not travel")


_encoder = msgspec.json.Encoder(enc_hook=_to_json)


@cache
def _decoder() -> msgspec.json.Decoder[Operation]:
    return msgspec.json.Decoder(Inner)


@cache
def _enqueued_decoder() -> msgspec.json.Decoder[tuple[JobRecord, Content]]:
    return msgspec.json.Decoder(tuple[JobRecord, Content])


@cache
def _result_decoder(kind: type[Operation]) -> msgspec.json.Decoder[tuple[Any]]:
    return msgspec.json.Decoder(result_type(kind), dec_hook=_from_json)
