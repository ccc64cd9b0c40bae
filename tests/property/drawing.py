"""Strategies for records, which are drawn by the types of their fields, and a small state that operations change."""

import types
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from hypothesis import strategies as st

from jqueue import Claim
from jqueue.core.blob.lines import dump_json
from jqueue.domain.counters import Durations
from jqueue.domain.fields import PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.history import HistoryHeader
from jqueue.domain.job import AttemptError, JobRecord, JobStatus, Progress, StoredObject
from jqueue.domain.models import Job, QueueState, record_of
from jqueue.domain.operations.codec import AllOrNothing, Guarded
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.domain.segments import RowKey, Segment

FEW = 3

texts = st.text(st.characters(exclude_categories=["Cs"]))
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)
times = st.datetimes(datetime(1900, 1, 1), datetime(2900, 1, 1), timezones=st.just(UTC))
seconds = st.floats(0, 1e9)
counts = st.integers(0, 2**53)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
"""Values that JSON can hold."""


class Drawing:
    """Strategies for values of a type.

    Args:
        by_type: strategies for some types, in place of those by their fields.
    """

    def __init__(self, by_type: Mapping[Any, Any]) -> None:
        usual = {str: names, bytes: st.binary(max_size=64), bool: st.booleans(), int: counts, float: seconds}
        self._by_type = {**usual, datetime: times, type(None): st.none(), Any: values, **by_type}

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

    def record(self, kind, *, left_out=(), made_by=None, **special):
        """Return a strategy for records, some of whose fields are left out or have a strategy of their own."""
        hints = get_type_hints(kind, include_extras=True)
        drawn = {name: hint for name, hint in hints.items() if name not in left_out and not _is_of_class(hint)}
        fields = {name: special[name] if name in special else self.of(hint) for name, hint in drawn.items()}
        return st.builds(made_by or kind, **fields)

    def _of_class(self, kind):
        if issubclass(kind, Enum):
            return st.sampled_from(kind)
        if is_typeddict(kind):
            hints = get_type_hints(kind, include_extras=True)
            return st.fixed_dictionaries({}, optional={name: self.of(hint) for name, hint in hints.items()})
        return self.record(kind, left_out=("extra",) if issubclass(kind, msgspec.Struct) else ())


def fits(value, kind):
    """Return True if the decoder of operations takes a value of an annotated type."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _is_of_class(hint):
    return str(hint).startswith("typing.ClassVar")


# Records whose fields depend on each other, or that are larger or stranger than their types tell

stored = st.builds(
    lambda folder, name, size, digest: StoredObject(f".{folder}/{name}", size, digest),
    st.sampled_from(["payloads", "results"]),
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    counts,
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)
_simple = Drawing({StoredObject: stored})
_rates = st.builds(lambda rate, per: {"rate": rate, "per": per}, st.integers(1, 2**53), st.floats(0.001, 1e9))
rules = st.builds(
    lambda paused, running, rate: EntrypointRules(paused=paused, max_running=running, **rate),
    st.booleans(),
    st.none() | st.integers(1, 2**53),
    st.just({}) | _rates,
)
_weights = st.none() | st.floats(0.01, 1)
_priorities = st.integers(PRIORITY_MIN, PRIORITY_MAX)
schedules = _simple.record(
    Schedule, left_out=("extra", "declared"), cron=texts, timezone=texts, priority=_priorities, fair_weight=_weights
)
_batches = st.tuples(counts, counts, seconds, texts).map(dump_json).map(msgspec.Raw)
RECORDS = Drawing(
    {
        StoredObject: stored,
        EntrypointRules: rules,
        Schedule: schedules,
        AttemptError: _simple.record(AttemptError, text=texts),
        Progress: _simple.record(Progress, text=texts),
        Durations: _simple.record(Durations, first=st.integers(0, 1000)),
        HistoryHeader: _simple.record(
            HistoryHeader, left_out=("extra",), batches=st.lists(_batches, max_size=3).map(tuple)
        ),
        QueueSettings: _simple.record(QueueSettings, left_out=("extra",), history=st.none() | st.floats(0.001, 1e9)),
    }
)
_claim = ("heartbeat_at", "claim_timeout", "cancel_requested", "holder", "claimed_at", "claim_call")
_end = ("dead_at", "finished_at", "result", "result_dropped", "result_object")
jobs = RECORDS.record(
    JobRecord,
    left_out=("extra", *_claim, *_end),
    made_by=Job,
    status=st.sampled_from([JobStatus.QUEUED, JobStatus.DEAD]),
    sequence=st.integers(1, 2**52),
    priority=_priorities,
    headers=st.dictionaries(names, texts, max_size=3),
    fair_weight=_weights,
    error=st.none() | texts,
    traceback=st.none() | texts,
)
claimed = st.builds(
    lambda job, at, timeout, attempt, told, holder, claimed_at, call: job.evolve(
        status=JobStatus.IN_PROGRESS,
        heartbeat_at=at,
        claim_timeout=timeout,
        attempt=attempt,
        cancel_requested=told,
        holder=holder,
        claimed_at=at if holder is not None and claimed_at is None else claimed_at,
        claim_call=call,
    ),
    jobs,
    st.none() | times,
    st.none() | seconds,
    st.integers(1, 2**53),
    st.booleans(),
    st.none() | names,
    st.none() | times,
    st.none() | names,
)
"""A claim with a holder has a time, that of its heartbeat if the line gives none."""
completed = st.builds(
    lambda job, at, kept, result, dropped, kept_in: job.evolve(
        status=JobStatus.COMPLETED,
        payload=b"",
        finished_at=at,
        keep_result=kept,
        result=result,
        result_dropped=dropped,
        result_object=kept_in,
    ),
    jobs,
    times,
    seconds,
    values | st.floats(allow_nan=False, allow_infinity=False),
    counts,
    st.none() | stored,
)
dead = st.builds(lambda job, at: job.evolve(status=JobStatus.DEAD, dead_at=at), jobs, times)
any_jobs = jobs | claimed | dead | completed

# A state, and operations that mostly name its jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
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
OPERATIONS = Drawing(
    {
        str: st.sampled_from([*(job.id for job in STATE.jobs), "mail", "nightly", "key"]) | texts,
        bytes: st.binary(max_size=20),
        int: st.integers(0, 20),
        Claim: st.sampled_from([*(job.claim for job in STATE.jobs), Claim("gone", 1)]),
        JobRecord: (st.sampled_from(STATE.jobs) | any_jobs).map(record_of),
        StoredObject: stored,
        Schedule: st.sampled_from([*STATE.schedules.values()]) | schedules,
        QueueSettings: st.just(STATE.settings) | RECORDS.of(QueueSettings),
        EntrypointRules: st.just(STATE.entrypoints["mail"]) | rules,
        Segment: st.just(SEGMENT),
    }
)
"""Strategies for the fields of operations. Ids and claims are mostly those of `STATE`."""
