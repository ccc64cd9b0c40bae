"""A blob means the same in any layout, from any writer, and read after any earlier versions."""

import json
from base64 import b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from jqueue import Job, JobStatus, QueueState
from jqueue.core.blob import codec, lines
from jqueue.core.blob.content import Blob
from jqueue.core.blob.lines import encode_job, read_entry, read_line, read_waiting_lines
from jqueue.domain.job_table import packed, unpacked
from jqueue.domain.models import CommitRecord, EntrypointRules, KeyHold, QueueSettings, Schedule, SetAside
from tests.property.test_codec_properties import (
    claimed,
    completed,
    counts,
    decisions,
    jobs,
    names,
    seconds,
    texts,
    times,
    values,
)

pytestmark = pytest.mark.wide

LAYOUT = settings(max_examples=30, deadline=None)
dead = st.builds(lambda job, at: job.evolve(status=JobStatus.DEAD, dead_at=at), jobs, times)
any_jobs = jobs | claimed | dead | completed
unknown = st.dictionaries(names.map("from the future: {}".format), values, max_size=3)
headers = st.fixed_dictionaries(
    {
        "version": counts,
        "queue": names,
        "finished": st.dictionaries(names, counts, max_size=3),
        "evicted_through": counts,
        "attempt_floor": counts,
        "last_sequence": counts,
        "commits": st.dictionaries(
            names, st.builds(CommitRecord, counts, counts, seconds, seconds, st.lists(values, max_size=2).map(tuple))
        ),
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


def ranked(state):
    """The jobs by id, each with its rank, as the order of the lines means nothing; and the lines set aside."""
    places = sorted({job.sequence for job in state.jobs})
    jobs = {job.id: (places.index(job.sequence), job.evolve(sequence=0)) for job in state.jobs}
    return jobs, sorted(state.set_aside)


def header_of(state):
    return state.model_copy(update={"jobs": (), "set_aside": ()})


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_field_of_a_job_is_read_back_beside_any_others(data):
    job = data.draw(any_jobs)
    drawn = data.draw({JobStatus.DEAD: dead, JobStatus.QUEUED: completed}.get(job.status, claimed))
    for name in Job.model_fields:
        mixed = job.evolve(**{name: getattr(drawn, name)})
        if mixed.status is JobStatus.IN_PROGRESS and mixed.attempt == 0:
            continue  # a claim counts as attempt 1 at least
        if mixed.status is JobStatus.COMPLETED and None in (mixed.keep_result, mixed.finished_at):
            continue  # such a job would not be kept
        if mixed.status is JobStatus.IN_PROGRESS and mixed.holder is not None and mixed.claimed_at is None:
            continue  # the time of its heartbeat counts as that of its claim
        found = read_line(encode_job(mixed))
        assert mixed == found, name
        assert getattr(mixed, name) == getattr(found, name), name


@given(st.lists(any_jobs, min_size=1), st.binary(max_size=3), st.data())
@settings(deadline=None)
def test_a_line_read_by_the_fast_path_gives_the_same_job(jobs, bytes_put_in, data):
    """Lines that we write, and lines with a few bytes changed."""
    for job in jobs:
        waiting = Job(
            id=job.id, entrypoint=job.entrypoint, payload=job.payload, sequence=len(jobs) - 1, created_at=job.created_at
        )
        for whole in (encode_job(job), encode_job(waiting)):
            first, last = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
            for line in (whole, whole[:first] + bytes_put_in + whole[min(last, first + 3) :]):
                if b'"created_at": ' not in line:
                    continue  # it was created when it is read
                expected = read_line(line)
                found = read_entry(line, {})
                assert expected == (found if isinstance(found, SetAside) else unpacked(*found))


@given(st.lists(any_jobs, min_size=1), st.binary(max_size=3), st.data())
@settings(deadline=None)
def test_lines_read_together_give_the_same_jobs_as_one_by_one(jobs, bytes_put_in, data):
    """Lines that we write, and lines with a few bytes changed."""
    waiting = [
        Job(id=job.id, entrypoint=job.entrypoint, payload=job.payload, sequence=place, created_at=job.created_at)
        for place, job in enumerate(jobs, 1)
    ]
    whole = b"".join(encode_job(job) + b"\n" for job in waiting)
    first, last = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
    for text in (whole, whole[:first] + bytes_put_in + whole[min(last, first + 3) :]):
        found = read_waiting_lines(text, {})
        one_by_one = [read_entry(line, {}) for line in text.split(b"\n")[:-1]]
        assert found is None or one_by_one == list(zip(*found, strict=True))


def test_lines_of_jobs_that_only_wait_are_read_together():
    jobs = [Job(entrypoint=name, payload=b"p", sequence=place) for place, name in enumerate(["a", "grüße", "a"], 1)]
    text = b"".join(encode_job(job) + b"\n" for job in jobs)
    assert ([job.id for job in jobs], [packed(job, {}) for job in jobs]) == read_waiting_lines(text, {})
    another = encode_job(Job(entrypoint="a", payload=b"", sequence=4, headers={"x": "y"})) + b"\n"
    assert read_waiting_lines(text + another, {}) is None


def test_the_fast_path_refuses_a_number_that_is_invalid_in_json():
    line = encode_job(Job(id="a", entrypoint="b", payload=b"", sequence=1))
    found = read_entry(line.replace(b'"sequence": 1', b'"sequence": 01'), {})
    assert isinstance(found, SetAside)


def test_the_line_of_a_job_that_only_waits_is_read_without_a_model(monkeypatch):
    monkeypatch.setattr(lines, "read_line", None)
    job = Job(id="0f-1", entrypoint="grüße", payload=bytes(range(256)), sequence=2**40)
    assert (job.id, packed(job, {})) == read_entry(encode_job(job), {})


def drawn(strategy, fields_of):
    """Return the fields that `fields_of` finds in 500 values of a strategy."""
    found = set()

    @settings(max_examples=500, database=None, phases=[Phase.generate], deadline=None)
    @given(strategy)
    def draw(value):
        found.update(fields_of(value))

    draw()
    return found


def filled(value, plain):
    """Return the names of the fields in which a value differs from a plain one."""
    return {name for name in type(value).model_fields if getattr(value, name) != getattr(plain, name, None)}


def test_the_strategies_draw_every_field_of_a_job():
    """Without this, the tests above would show nothing for a new field."""
    plain = Job(id="0", entrypoint="", payload=b"")
    assert set(Job.model_fields) == drawn(any_jobs, lambda job: filled(job, plain))


@pytest.mark.full
def test_the_strategies_draw_every_field_of_a_state_and_of_its_tables():
    rows: dict[str, type[BaseModel]] = {
        "settings": QueueSettings,
        "entrypoints": EntrypointRules,
        "schedules": Schedule,
    }

    def fields_of(state):
        yield from filled(state, QueueState())
        for table, row in rows.items():
            found = getattr(state, table)
            for each in found.values() if isinstance(found, dict) else [found]:
                yield from (f"{table}.{name}" for name in filled(each, row.model_construct()))

    fields = {f"{table}.{name}" for table, row in rows.items() for name in row.model_fields}
    assert (
        set(QueueState.model_fields) - {"critical", "set_aside", "segments", "ranges", "retired"}
    ) | fields <= drawn(states, fields_of)


@LAYOUT
@given(states)
def test_the_header_with_all_its_tables_is_read_back(state):
    assert state == codec.decode(codec.encode(state))


@LAYOUT
@given(states, unknown, st.randoms(use_true_random=False))
def test_unknown_fields_survive_any_change_of_a_job(state, fields, random):
    content = json.loads(codec.encode(state))
    for entry in content["jobs"].values():
        entry |= fields
    blob = Blob()
    data = json.dumps(content).encode()
    blob.adopt(codec.parse_blob(data), len(data))
    for job in list(blob.draft.jobs.values()):
        if random.random() < 0.5:
            blob.draft.load([job.evolve(priority=7, entrypoint="moved")])
    written = json.loads(blob.encode(header_of(blob.draft.freeze())))
    assert state.extra == {name: written[name] for name in state.extra}
    for entry in written["jobs"].values():
        assert fields == {name: entry[name] for name in fields}


@LAYOUT
@given(states, st.lists(any_jobs, max_size=2))
def test_lines_that_did_not_change_keep_their_order_and_their_bytes(state, added):
    data = codec.encode(state)
    assert data == codec.encode(codec.decode(data))
    blob = Blob()
    blob.adopt(codec.parse_blob(data), len(data))
    old = codec.parse_blob(data).lines
    new = [job for job in added if job.id not in blob.draft.jobs]
    blob.draft.load(new)
    lines = codec.parse_blob(blob.encode(header_of(state))).lines
    assert old == lines[: len(old)]
    assert {job.id for job in new} == {json.loads(b"{" + line + b"}").popitem()[0] for line in lines[len(old) :]}


layouts = st.fixed_dictionaries(
    {
        "indent": st.none() | st.integers(0, 3) | st.just("\t"),
        "sort_keys": st.booleans(),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([None, (",", ":"), (" , ", " : ")]),
    }
)


@LAYOUT
@given(states, layouts, st.sampled_from([b"", b"\n", b" \r\n"]))
def test_any_layout_of_the_json_gives_the_same_state(state, layout, end):
    data = json.dumps(json.loads(codec.encode(state)), **layout).encode() + end
    found = codec.decode(data)
    assert ranked(state) == ranked(found)
    assert header_of(state) == header_of(found)
    assert found == codec.decode(codec.encode(found))


old_times = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
old_jobs = st.fixed_dictionaries(
    {
        "id": names,
        "entrypoint": texts,
        "payload": st.binary(max_size=20).map(lambda payload: b64encode(payload).decode()),
        "status": st.sampled_from(["queued", "in_progress"]),
        "priority": st.integers(-(2**40), 2**40),
        "created_at": old_times.map(lambda time: time.isoformat().replace("+00:00", "Z")),
        "heartbeat_at": st.none() | old_times.map(datetime.isoformat),
    }
)
OLD_FIELDS = {"id", "entrypoint", "payload", "status", "priority", "created_at", "heartbeat_at"}
old_lists = st.lists(old_jobs, max_size=6, unique_by=lambda job: job["id"])


@LAYOUT
@given(old_lists, counts, layouts)
def test_the_shape_of_1_0_0_is_read_in_its_order_and_then_kept_in_ours(entries, version, layout):
    state = codec.decode(json.dumps({"jobs": entries, "version": version}, **layout).encode())
    assert version == state.version
    shown = [job.model_dump(mode="json", include=OLD_FIELDS) for job in state.jobs]
    for entry, job, found in zip(entries, state.jobs, shown, strict=True):
        at = {"created_at": job.created_at, "heartbeat_at": job.heartbeat_at}
        assert entry | at == found | at
        assert datetime.fromisoformat(entry["created_at"]) == job.created_at
        assert int(entry["status"] == "in_progress") == job.attempt == job.failures
    assert list(range(1, len(entries) + 1)) == [job.sequence for job in state.jobs]
    assert state == codec.decode(codec.encode(state))


@st.composite
def versions(draw):
    """Versions of one queue, each a few changes after the one before; by us, by hand, by another program."""
    pool = draw(st.lists(any_jobs | any_jobs.map(unplaced), min_size=1, max_size=8, unique_by=lambda job: job.id))
    found: list[bytes] = []
    for _ in range(draw(st.integers(2, 5))):
        present = draw(st.lists(st.sampled_from(pool), unique_by=lambda job: job.id))
        changed = [job.evolve(priority=draw(st.integers(0, 2))) if draw(st.booleans()) else job for job in present]
        state = QueueState(queue="q", version=len(found), jobs=tuple(changed))
        data = codec.encode(state)
        damage = draw(st.sampled_from(["none", "none", "layout", "line", "twice"]))
        if damage == "layout":
            data = json.dumps(json.loads(data), indent=1).encode()
        elif damage == "line" and present:
            data = data.replace(b'"entrypoint"', b'"entry"', 1)
        elif damage == "twice" and present:
            line = codec.parse_blob(data).lines[0]
            data = data.replace(line, line + b",\n" + line.replace(b'"sequence": ', b'"sequence": 1'), 1)
        found.append(data)
    return found


def unplaced(job):
    """Return the job as a person adds it by hand."""
    return job.evolve(sequence=0)


@LAYOUT
@given(versions(), st.data())
def test_reading_versions_in_sequence_equals_reading_each_anew(found, data):
    blob = Blob()
    for content in found:
        blob.adopt(codec.parse_blob(content), len(content))
        anew = codec.decode(content)
        assert ranked(anew) == ranked(blob.draft.freeze())
        assert ranked(anew) == ranked(blob.look(codec.parse_blob(content)))
        if data.draw(st.booleans()):  # a commit of ours that is not to land
            for job in list(blob.draft.jobs.values())[:2]:
                blob.draft.note(blob.draft.jobs, job.id, job)
            blob.draft.rollback()
