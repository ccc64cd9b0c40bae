"""Any state is read back as it was written, in any layout of its JSON; `tests/fuzz` reads any other bytes."""

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from jqueue.core.blob import codec
from jqueue.core.blob.lines import dump_json
from jqueue.domain.counters import Counters, Durations, Window
from jqueue.domain.fields import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.header import BrokerSeat, CommitRecord, KeyHold, TransactionRecord, WorkerRecord
from jqueue.domain.history import HistoryHeader
from jqueue.domain.job import AttemptError, JobStatus, Progress, Step, StoredObject
from jqueue.domain.models import Job, QueueState
from jqueue.domain.rules import EntrypointRules, Fired, QueueSettings, Schedule, Usage
from tests.fuzz.oracles import check_same

CHECKS = [HealthCheck.too_slow]
PATIENT = settings(deadline=None, max_examples=12, derandomize=True, suppress_health_check=CHECKS)
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
attempt_errors = st.builds(AttemptError, counts, times, texts, st.none() | texts, st.none() | times)
stored = st.builds(
    lambda folder, name, size, digest: StoredObject(f".{folder}/{name}", size, digest),
    st.sampled_from(["payloads", "results"]),
    st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True),
    counts,
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
)
several_names = st.lists(names, max_size=2).map(tuple)
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
    errors=st.lists(attempt_errors, max_size=3).map(tuple),
    unique_for=st.none() | seconds,
    error=st.none() | texts,
    error_dropped=counts,
    traceback=st.none() | texts,
    concurrency_key=st.none() | names,
    concurrency_limit=ceilings,
    fair_key=st.none() | names,
    fair_weight=st.none() | st.floats(0.01, 1),
    keep_result=st.none() | seconds,
    group=st.none() | names,
    after=several_names,
    waits_for=several_names,
    on_dead=st.sampled_from([None, "cancel", "run"]),
    steps=st.lists(st.builds(Step, names, st.integers(1, 9), times, values, st.none() | stored), max_size=2).map(tuple),
    encoding=st.sampled_from([None, "named", "chained"]),
    timeout=st.none() | seconds,
    progress=st.none() | st.builds(Progress, counts, st.none() | counts, texts, st.none() | times),
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
rates = st.builds(lambda rate, per: {"rate": rate, "per": per}, st.integers(1, COUNT_MAX), st.floats(0.001, 1e9))
rules = st.builds(
    lambda paused, running, rate: EntrypointRules(paused=paused, max_running=running, **rate),
    st.booleans(),
    ceilings,
    st.just({}) | rates,
)
spans = st.lists(st.builds(Fired, times, times), max_size=3).map(tuple)
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
durations = st.builds(Durations, seconds, st.integers(0, 1000), numbers)
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
batches = st.tuples(counts, counts, seconds, texts).map(dump_json).map(msgspec.Raw)
histories = st.builds(
    HistoryHeader,
    last=counts,
    removed=counts,
    lost=counts,
    stopped=st.booleans(),
    batches=st.lists(batches, max_size=3).map(tuple),
)
decisions = st.fixed_dictionaries(
    {
        "settings": st.builds(
            QueueSettings,
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

dead = st.builds(lambda job, at: job.evolve(status=JobStatus.DEAD, dead_at=at), jobs, times)
any_jobs = jobs | claimed | dead | completed
unknown = st.dictionaries(names.map("from the future: {}".format), values, max_size=3)
writers = st.builds(CommitRecord, counts, counts, seconds, seconds, extra=st.none() | unknown.filter(bool))
headers = st.fixed_dictionaries(
    {
        "version": counts,
        "queue": names,
        "finished": st.dictionaries(names, counts, max_size=3),
        "evicted_through": counts,
        "attempt_floor": counts,
        "last_sequence": counts,
        "broker": st.none()
        | st.builds(BrokerSeat, writer=names, url=names, term=st.integers(0, 2**53), doubted_at=seconds),
        "commits": st.dictionaries(names, writers, max_size=3),
        "holds": st.dictionaries(names, st.builds(KeyHold, names, seconds), max_size=3),
        "extra": unknown,
    }
)
states = st.builds(
    lambda jobs, header, decided: QueueState(jobs=tuple(jobs), **header, **decided),
    st.lists(any_jobs, max_size=6, unique_by=lambda job: job.id),
    headers,
    decisions,
)
layouts = st.fixed_dictionaries(
    {
        "indent": st.none() | st.integers(0, 3) | st.just("\t"),
        "sort_keys": st.booleans(),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" , ", " : ")]),
    }
)


@pytest.mark.wide
def test_the_strategies_draw_every_field_of_a_job():
    """Without this, the tests below would show nothing for a new field."""
    plain = Job(id="0", entrypoint="", payload=b"")
    drawn: set[str] = set()

    @settings(PATIENT, max_examples=150, database=None, phases=[Phase.generate])
    @given(any_jobs)
    def draw(job):
        drawn.update(name for name in Job.model_fields if getattr(job, name) != getattr(plain, name))

    draw()
    assert set(Job.model_fields) == drawn


@PATIENT
@given(states, layouts, st.sampled_from([b"", b"\n", b" \r\n"]))
def test_every_state_is_read_back_as_it_was_in_any_layout_of_the_json(state, layout, end):
    data = codec.encode(state)
    assert state == codec.decode(data)
    assert data == codec.encode(codec.decode(data))
    found = codec.decode(json.dumps(json.loads(data), **layout).encode() + end)
    if layout["sort_keys"]:  # only the order of the tables is another
        assert {job.id: job for job in state.jobs} == {job.id: job for job in found.jobs}
    else:
        check_same(state, found, "in another layout", placed=False)
    assert found == codec.decode(codec.encode(found))
