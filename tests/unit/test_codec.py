"""The wire format: what is written can be read, by people too, and what cannot be read is refused or set aside."""

import json
from datetime import UTC, datetime

import pytest

from jqueue.core import codec
from jqueue.core.blob import Blob
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import CommitRecord, Job, JobStatus, KeyHold, QueueState

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def job(name, **fields):
    return Job(**{"id": name, "entrypoint": "t", "payload": b"x", "created_at": NOW, "sequence": 1, **fields})


FULL = QueueState(
    version=17,
    queue="the queue",
    jobs=(
        job("a", payload=bytes(range(256)), headers={"name": 'té\n"xt'}, unique_key="k", unique_for=3.5, sequence=1),
        job("b", status="in_progress", heartbeat_at=NOW, claim_timeout=0.0, attempt=3, failures=2, sequence=2),
        job("c", status="dead", dead_at=NOW, error="boom", max_attempts=2, run_at=NOW, expires_at=NOW, sequence=3),
    ),
    commits={"writer": CommitRecord(4, 17, 1.5, 0.25)},
    evicted_through=3,
    finished={"z": 9},
    holds={"kept": KeyHold("z", 5.5)},
    attempt_floor=4,
    extra={"from the future": {"deep": [1, 2.5, None]}},
)


def test_what_is_encoded_is_decoded_the_same():
    assert FULL == codec.decode(codec.encode(FULL))


def test_the_blob_is_json_with_one_job_on_each_line():
    data = codec.encode(FULL)
    assert ["a", "b", "c"] == list(json.loads(data)["jobs"])
    assert 1 + len(FULL.jobs) + 1 == len(data.splitlines())


def test_the_empty_queue_is_a_blob_too():
    data = codec.encode(QueueState())
    assert {} == json.loads(data)["jobs"]
    assert QueueState() == codec.decode(data)


@pytest.mark.parametrize("indent", [None, 2])
def test_any_layout_of_the_same_json_is_read(indent):
    data = json.dumps(json.loads(codec.encode(FULL)), indent=indent).encode()
    assert FULL == codec.decode(data)


@pytest.mark.parametrize("newline", [b"\r\n", b"\n\n"])
def test_line_ends_of_other_editors_are_read(newline):
    assert FULL == codec.decode(codec.encode(FULL).replace(b"\n", newline))


def test_fields_that_are_not_known_survive():
    data = codec.encode(FULL).replace(b'"a": {', b'"a": {"from the future": [1, {"x": null}], ')
    state = codec.decode(data)
    assert b'"from the future": [1, {"x": null}]' in codec.encode(state)
    moved = state.jobs[0].evolve(priority=3)
    assert b'"from the future": [1, {"x": null}]' in codec.encode_job(moved)


def test_the_shape_of_1_0_0_is_read_in_its_order():
    old = {
        "version": 3,
        "jobs": [
            {"id": "b", "entrypoint": "t", "payload": "eA==", "created_at": "2024-01-01T12:00:00Z"},
            {
                "id": "a",
                "entrypoint": "t",
                "payload": "",
                "status": "in_progress",
                "priority": 5,
                "created_at": "2024-01-01T11:00:00",
                "heartbeat_at": "2024-01-01T12:00:45+02:00",
            },
        ],
    }
    state = codec.decode(json.dumps(old).encode())
    assert 3 == state.version
    assert [("b", 1, 0), ("a", 2, 1)] == [(each.id, each.sequence, each.attempt) for each in state.jobs]
    assert datetime(2024, 1, 1, 11, tzinfo=UTC) == state.jobs[1].created_at
    assert datetime(2024, 1, 1, 10, 0, 45, tzinfo=UTC) == state.jobs[1].heartbeat_at


@pytest.mark.parametrize("odd", ['"\\ud800"', "NaN", "1e999"])
def test_an_odd_job_of_1_0_0_spoils_no_other(odd):
    good, bad = '{"id": "a", "entrypoint": "t", "payload": ""}', f'{{"id": "b", "entrypoint": "t", "odd": {odd}}}'
    state = codec.decode(f'{{"version": 1, "jobs": [{good}, {bad}]}}'.encode())
    assert (["a"], 1) == ([each.id for each in state.jobs], len(state.set_aside))
    codec.encode(state)


def test_a_job_that_1_0_0_stored_twice_is_one_job():
    entry = {"id": "a", "entrypoint": "t", "payload": "eA=="}
    claimed = {**entry, "status": "in_progress"}
    other = {**entry, "payload": "eQ=="}
    state = codec.decode(json.dumps({"version": 1, "jobs": [entry, claimed, other]}).encode())
    assert [("a", JobStatus.IN_PROGRESS)] == [(each.id, each.status) for each in state.jobs]
    assert ["the id stands twice"] == [aside.reason for aside in state.set_aside]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b" ", "empty"),
        (b"\0\0", "not JSON"),
        (b"not json", "not JSON at line 1"),
        (b"[]", 'no "jobs"'),
        (b"{}", 'no "jobs"'),
        (b'"jobs"', 'no "jobs"'),
        (b'{"jobs": 3}', 'no "jobs"'),
        (b'{"format": 2, "jobs": []}', "format 2"),
        (b'{"format": 3, "jobs": {}}', "upgrade"),
        (b'{"format": true, "jobs": {}}', "format"),
        (b'{"jobs": {}}', "format None"),
        (b'{"format": 2, "critical": ["time travel"], "jobs": {}}', "time travel"),
        (b'{"format": 2, "version": -1, "jobs": {}}', "version"),
        (b'{"format": 2, "version": 9007199254740993, "jobs": {}}', "version"),
        (b'{"format": 2, "commits": {"w": 3}, "jobs": {}}', "commits"),
        (b'{"format": 2, "jobs": {"a": {}, "a": {}}}', "'a' twice"),
        (b'{"format": 2, "version": ' + b"9" * 5000 + b', "jobs": {}}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (codec.encode(FULL)[:200], "cut off"),
        (codec.encode(FULL)[:-4], "cut off"),
        (codec.encode(FULL)[: codec.encode(FULL).index(b'"b"')], "cut off"),
    ],
)
def test_what_is_not_a_queue_is_refused_in_words(data, said):
    with pytest.raises(InvalidBlobError, match=said):
        codec.decode(data)


@pytest.mark.parametrize(
    "line",
    [
        b'"bad": {"entrypoint": 7, "payload": "SECRET"}',
        b'"bad": {"entrypoint": "t"}',
        b'"bad": {"entrypoint": "t", "payload": "SECRET!"}',
        b'"bad": {"entrypoint": "t", "payload": "", "priority": 99999999999999999999}',
        b'"bad": {"entrypoint": "t", "payload": "", "status": "completed"}',
        b'"bad": {"entrypoint": "t", "payload": "", "created_at": "yesterday"}',
        b'"bad": {"entrypoint": "t", "payload": "", "created_at": "0001-01-01T00:00:00+10:00"}',
        b'"bad": {"entrypoint": "t", "payload": "", "attempt": 9223372036854775807}',
        b'"bad": {"entrypoint": "\\ud800", "payload": ""}',
        b'"bad": {"entrypoint": "t", "payload": "", "headers": ["SECRET"]}',
        b'"bad": {"entrypoint": "t", "payload": "", "run_at": 3}',
        b'"bad": "SECRET"',
        b'"bad": {"entrypoint": "t", "payl',
        b'"": {"entrypoint": "t", "payload": ""}',
        b'"a": {"entrypoint": "t", "payload": "", "sequence": 7}',
    ],
)
def test_a_line_that_cannot_be_read_is_set_aside_and_written_back_as_it_was(line, caplog):
    data = codec.encode(FULL).replace(b'"b": {', line + b',\n"b": {', 1)
    blob = Blob()
    blob.adopt(codec.parse_blob(data), len(data))
    state = blob.draft.freeze()
    assert ["a", "b", "c"] == [each.id for each in state.jobs]
    assert [line] == [aside.line for aside in state.set_aside]
    assert line in blob.encode(state)
    assert line in codec.encode(codec.decode(data))
    assert "SECRET" not in caplog.text + state.set_aside[0].reason + repr(state)


def test_jobs_added_by_hand_need_little_and_come_last():
    data = codec.encode(FULL).replace(b'"b": {', b'"by hand": {"entrypoint": "t", "payload": ""},\n"b": {', 1)
    assert 4 == {each.id: each.sequence for each in codec.decode(data).jobs}["by hand"]


def test_a_sequence_out_of_range_spoils_no_other():
    data = codec.encode(FULL).replace(b'"sequence": 2', b'"sequence": 9007199254740999')
    assert [1, 4, 3] == [each.sequence for each in codec.decode(data).jobs]


def test_only_changed_lines_are_parsed_and_encoded():
    first, second = Blob(), Blob()
    data = codec.encode(FULL)
    for blob in (first, second):
        blob.adopt(codec.parse_blob(data), len(data))
        assert (3, 0) == (blob.lines_parsed, blob.lines_encoded)
    first.draft.load([job("d", sequence=4)])
    data = first.encode(first.draft.freeze())
    second.adopt(codec.parse_blob(data), len(data))
    assert (1, 4) == (first.lines_encoded, second.lines_parsed)
    assert first.draft.freeze() == second.draft.freeze()
