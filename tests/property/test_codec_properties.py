"""Any job is read back as it was written. Decoding any file ends in a state or
in our own error.
"""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.domain.counters import Counters, Durations, Window
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.history import HistoryHeader, Series
from jqueue.domain.models import (
    COUNT_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    AttemptError,
    EntrypointRules,
    Job,
    JobStatus,
    QueueSettings,
    QueueState,
    Schedule,
    TransactionRecord,
    Usage,
)
from jqueue.domain.rules import Span
from jqueue.domain.stored_object import StoredObject
from jqueue.domain.workers import WorkerRecord

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A machine with other things to do needs seconds to draw some states."""

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

ceilings = st.none() | st.integers(1, COUNT_MAX)
stored = st.builds(
    lambda folder, name, size, digest: StoredObject(f".{folder}/{name}", size, digest),
    st.sampled_from(["payloads", "results"]),
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    counts,
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)
jobs = st.builds(
    Job,
    id=names,
    entrypoint=names,
    payload=st.binary(max_size=64),
    status=st.sampled_from([JobStatus.QUEUED, JobStatus.DEAD]),
    priority=st.integers(PRIORITY_MIN, PRIORITY_MAX),
    created_at=times,
    sequence=st.integers(1, 2**52),
    attempt=counts,
    attempts_before=counts,
    failures=counts,
    max_attempts=ceilings,
    run_at=st.none() | times,
    expires_at=st.none() | times,
    headers=st.dictionaries(names, texts, max_size=3),
    unique_key=st.none() | names,
    queued_at=st.none() | times,
    payload_object=st.none() | stored,
    errors=st.lists(st.builds(AttemptError, counts, times, texts), max_size=3).map(tuple),
    unique_for=st.none() | seconds,
    error=st.none() | texts,
    error_dropped=counts,
    traceback=st.none() | texts,
    concurrency_key=st.none() | names,
    concurrency_limit=ceilings,
    keep_result=st.none() | seconds,
)
claimed = st.builds(
    lambda job, at, timeout, attempt, told, holder, claimed_at: job.evolve(
        status=JobStatus.IN_PROGRESS,
        heartbeat_at=at,
        claim_timeout=timeout,
        attempt=attempt,
        cancel_requested=told,
        holder=holder,
        claimed_at=at if holder is not None and claimed_at is None else claimed_at,
    ),
    jobs,
    st.none() | times,
    st.none() | seconds,
    st.integers(1, 2**53),
    st.booleans(),
    st.none() | names,
    st.none() | times,
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
rates = st.builds(lambda rate, per: {"rate": rate, "per": per}, st.integers(1, COUNT_MAX), st.floats(0.001, 1e9))
rules = st.builds(
    lambda paused, running, rate: EntrypointRules(paused=paused, max_running=running, **rate),
    st.booleans(),
    ceilings,
    st.just({}) | rates,
)
spans = st.lists(st.builds(Span, times, times), max_size=3).map(tuple)
schedules = st.builds(
    Schedule,
    name=names,
    cron=texts,
    timezone=texts,
    entrypoint=names,
    payload=st.binary(max_size=16),
    priority=st.integers(PRIORITY_MIN, PRIORITY_MAX),
    max_attempts=ceilings,
    headers=st.dictionaries(names, texts, max_size=2),
    unique_key=st.none() | names,
    concurrency_key=st.none() | names,
    concurrency_limit=ceilings,
    keep_result=st.none() | seconds,
    next_at=times,
    fired=spans,
)
numbers = st.lists(counts, max_size=12).map(tuple)
durations = st.builds(Durations, seconds, counts, numbers)
counters = st.builds(
    Counters, numbers, durations, durations, st.lists(st.builds(Window, counts, numbers, numbers)).map(tuple), seconds
)
workers = st.builds(
    WorkerRecord,
    name=names,
    host=names,
    pid=counts,
    started=seconds,
    at=seconds,
    slots=counts,
    entrypoints=st.lists(names, max_size=3).map(tuple),
    version=names,
)
batches = st.tuples(counts, counts, seconds, texts).map(json.dumps)
histories = st.builds(
    HistoryHeader,
    series=st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    last=counts,
    removed=counts,
    lost=counts,
    stopped=st.booleans(),
    older=st.lists(st.builds(Series, names, counts), max_size=2).map(tuple),
    batches=st.lists(batches, max_size=3).map(tuple),
)
decisions = st.fixed_dictionaries(
    {
        "settings": st.builds(
            QueueSettings,
            aging=st.none() | st.floats(0.001, 1e9),
            dead_retention=st.none() | seconds,
            blob_bytes=ceilings,
            history=st.none() | st.floats(0.001, 1e9),
            history_bytes=ceilings,
            history_payloads=st.booleans(),
        ),
        "history": st.none() | histories,
        "entrypoints": st.dictionaries(names, rules, max_size=2),
        "recent": st.dictionaries(
            names, st.lists(st.builds(Usage, seconds, seconds, counts), min_size=1, max_size=3).map(tuple), max_size=2
        ),
        "transactions": st.dictionaries(names, st.builds(TransactionRecord, counts, seconds), max_size=2),
        "counters": st.dictionaries(names, counters, max_size=2),
        "workers": st.dictionaries(names, workers, max_size=2),
        "schedules": st.lists(schedules, max_size=2).map(lambda many: {each.name: each for each in many}),
    }
)
"""Fields of a state besides its jobs: settings of the whole queue."""

states = st.builds(
    lambda jobs, decided, **header: QueueState(jobs=tuple(jobs), **header, **decided),
    jobs=st.lists(jobs | claimed | completed, max_size=6, unique_by=lambda job: job.id),
    version=counts,
    queue=names,
    finished=st.dictionaries(names, counts, max_size=3),
    attempt_floor=counts,
    last_sequence=counts,
    decided=decisions,
)


@PATIENT
@given(states)
def test_every_state_is_read_back_as_it_was(state):
    assert state == codec.decode(codec.encode(state))


@pytest.mark.wide
@PATIENT
@given(states, states)
def test_reading_over_a_known_blob_equals_reading_it_anew(old, new):
    known, fresh = Blob(), Blob()
    for blob, history in ((known, (old, new)), (fresh, (new,))):
        for state in history:
            data = codec.encode(state)
            blob.adopt(codec.parse_blob(data), len(data))
    ours, theirs = known.draft.freeze(), fresh.draft.freeze()
    assert sorted(theirs.jobs, key=lambda job: job.id) == sorted(ours.jobs, key=lambda job: job.id)
    assert sorted(theirs.set_aside) == sorted(ours.set_aside)


@pytest.mark.wide
@PATIENT
@given(states, st.data())
def test_a_damaged_blob_is_a_state_or_our_own_error(state, data):
    blob = bytearray(codec.encode(state))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    check_decodes_or_refuses(bytes(blob))


@PATIENT
@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_a_state_or_our_own_error(data):
    check_decodes_or_refuses(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
job_fields = st.dictionaries(st.sampled_from([*Job.model_fields]), json_values, max_size=6)


@PATIENT
@given(st.dictionaries(st.text(), job_fields | json_values, max_size=4), st.booleans())
def test_any_json_in_the_jobs_is_a_state_that_can_be_written_again(entries, legacy):
    blob = {"version": 1, "jobs": list(entries.values())} if legacy else {"format": 2, "jobs": entries}
    state = check_decodes_or_refuses(json.dumps(blob).encode())
    if state is not None:
        assert len(state.jobs) + len(state.set_aside) == len(codec.decode(codec.encode(state)).jobs) + len(
            codec.decode(codec.encode(state)).set_aside
        )


def check_decodes_or_refuses(data):
    try:
        state = codec.decode(data)
    except InvalidBlobError:
        return None
    codec.encode(state)
    return state
