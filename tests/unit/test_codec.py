"""The wire format: written states can be read, by people too; invalid content is refused or set aside."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.core.blob.lines import encode_job
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.models import LARGEST, CommitRecord, Job, JobStatus, KeyHold, QueueState
from jqueue.domain.operations import Dequeue, Enqueue
from jqueue.domain.operations.jobs import UNPREPARED

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


def test_decoding_an_encoded_state_gives_the_same_state():
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


def test_unknown_fields_survive():
    data = codec.encode(FULL).replace(b'"a": {', b'"a": {"from the future": [1, {"x": null}], ')
    state = codec.decode(data)
    assert b'"from the future": [1, {"x": null}]' in codec.encode(state)
    moved = state.jobs[0].evolve(priority=3)
    assert b'"from the future": [1, {"x": null}]' in encode_job(moved)


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
def test_an_invalid_job_of_1_0_0_does_not_affect_the_others(odd):
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
    assert ["a (2)"] == [aside.key for aside in state.set_aside]
    assert state == codec.decode(codec.encode(state))


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
        (b'{"format": 2, "jobs": {"a": {}}, "jobs": {\n"b": {}\n}}', "'jobs' twice"),
        (b'{"format": 2, "critical": ["\\ud800"], "jobs": {\n}}', "JSON cannot hold"),
        (b'{"format": 2, "critical": ["%s"], "jobs": {\n}}' % (b"x" * 9999), "x…"),
        (b'{"format": 2, "colour": NaN, "jobs": {}}', "JSON cannot hold"),
        (b'{"format": 2, "colour": 1e999, "jobs": {\n}}', "out of range"),
        (b'{"format": 2, "colour": ' + b"[" * 300 + b"]" * 300 + b', "jobs": {\n}}', "too deep"),
        (b'{"format": 2, "holds": {"k": ["", 1.5]}, "jobs": {\n}}', "holds"),
        (b'{"format": 2, "holds": {"k": ["a", "inf"]}, "jobs": {\n}}', "holds"),
        (b'{"format": 2, "jobs": {\n"a": {}\n}, "critical": ["time travel"], "labels": {\n}}', "time travel"),
        (b'{"format": 2, "version": ' + b"9" * 5000 + b', "jobs": {}}', "not JSON"),
        (b"[" * 100_000, "too deep"),
        (codec.encode(FULL)[:200], "cut off"),
        (codec.encode(FULL)[:-4], "cut off"),
        (codec.encode(FULL)[: codec.encode(FULL).index(b'"b"')], "cut off"),
    ],
)
def test_content_that_is_no_queue_is_refused_with_a_reason(data, said):
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
        b'"bad": {"entrypoint": "t", "payload": "", "size": 1e999}',
        b'"bad": {"entrypoint": "t", "payload": "", "payload": "SECRET"}',
        b'"bad": {"entrypoint": "t", "payload": "", "headers": {"a" : "", "a" : "SECRET"}}',
        b'"bad": {"entrypoint": "t", "payload": ""}, "bad": {"entrypoint": "u", "payload": ""}',
        b'"bad": {"entrypoint": "t", "payload": "", "run_at": "SECRET"}',
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


def twins():
    """Return a blob that has the id of a job twice, and the line of the second."""
    line = b'"a": {"entrypoint": "twin", "payload": ""}'
    return codec.encode(FULL).replace(b'"b": {', line + b',\n"b": {', 1), line


def test_the_second_line_of_a_duplicated_id_does_not_become_a_job_when_the_first_ends():
    data, _ = twins()
    blob = Blob()
    blob.adopt(codec.parse_blob(data), len(data))
    blob.draft.load([], ["a"])  # as an ack does
    written = blob.encode(blob.draft.freeze())
    state = codec.decode(written)
    assert ["b", "c"] == [each.id for each in state.jobs] == [each.id for each in blob.draft.freeze().jobs]
    assert ("a (2)",) == tuple(aside.key for aside in state.set_aside)
    assert state.set_aside == blob.draft.set_aside
    assert b'"entrypoint": "twin"' in written
    assert written == codec.encode(state)


def test_deleting_the_first_of_two_lines_by_hand_makes_the_second_one_the_job():
    data, _ = twins()
    first = encode_job(FULL.jobs[0])
    mended = data.replace(first + b",\n", b"", 1)
    blob = Blob()
    for content in (data, mended):
        blob.adopt(codec.parse_blob(content), len(content))
    for state in (codec.decode(mended), blob.draft.freeze()):
        assert ["twin"] == [each.entrypoint for each in state.jobs if each.id == "a"]
    assert () == blob.draft.set_aside == codec.decode(mended).set_aside


def test_each_of_many_lines_with_one_id_gets_a_name_of_its_own():
    data, line = twins()
    data = data.replace(line, line + b",\n" + line + b',\n"a (2)": 7', 1)
    keys = sorted(aside.key for aside in codec.decode(data).set_aside)
    assert ["a (2)", "a (3)", "a (4)"] == keys
    assert keys == sorted(aside.key for aside in codec.decode(codec.encode(codec.decode(data))).set_aside)


@pytest.mark.parametrize("head", [b"{", b"".join(codec.encode_header(FULL)[:-1])], ids=["short", "ours"])
@pytest.mark.parametrize(
    "body",
    [
        b'"x": {\n"entrypoint": "t",\n"payload": ""\n}\n}}',
        b'"x": {"headers": {},\n"entrypoint": "t", "payload": "", "y": {}}\n}}',
        b'"x": {"entrypoint": "t", "payload": ""}, "y": {"entrypoint": "t", "payload": ""}\n}}',
        b'"x": {"entrypoint": "t", "payload": ""}\n}, "labels": {\n}}',
    ],
    ids=["pretty", "two lines", "two jobs", "fields behind"],
)
def test_a_blob_that_only_looks_like_one_job_per_line_is_read_whole(head, body):
    head = b'{"format": 2, ' if head == b"{" else head
    data = head + codec.JOBS_OPEN + b"\n" + body
    other = json.dumps(json.loads(data), indent=1).encode()
    blob = Blob()
    blob.adopt(codec.parse_blob(data), len(data))
    for found in (codec.decode(data), blob.draft.freeze(), blob.look(codec.parse_blob(data))):
        assert "x" in {each.id for each in found.jobs}
        for name in ("version", "extra", "finished", "set_aside"):
            assert getattr(codec.decode(other), name) == getattr(found, name)
        assert {each.id for each in codec.decode(other).jobs} == {each.id for each in found.jobs}


def test_two_invalid_lines_do_not_become_one_job():
    begun, ended = b'"x": {"entrypoint": "t"', b'"payload": ""}'  # no comma: not JSON
    data = codec.encode(FULL).replace(b'"b": {', begun + b'\n"b": {', 1).replace(b"\n}}", b",\n" + ended + b"\n}}")
    state = codec.decode(data)
    assert ["a", "b", "c"] == [each.id for each in state.jobs]
    assert state == codec.decode(codec.encode(state))


def test_many_unreadable_lines_take_few_log_records(caplog):
    lines = b",\n".join(b'"bad %d": 7' % number for number in range(100))
    data = codec.encode(QueueState()).replace(b"\n}}", lines + b"\n}}")
    blob = Blob()
    for _ in range(2):
        blob.adopt(codec.parse_blob(data), len(data))
    assert 6 == len(caplog.messages)
    assert "95 more" in caplog.messages[-1]


def test_counts_at_their_maximum_are_read_and_not_raised():
    data = codec.encode(FULL.model_copy(update={"version": LARGEST, "jobs": ()}))
    draft = Draft(codec.decode(data))
    with pytest.raises(InvalidBlobError, match="smaller version"):
        next_header(draft, CommitId("w", 1, LARGEST), "q", NOW, 0.1)
    before = CommitId("w", 1, LARGEST - 1)
    assert LARGEST == codec.decode(codec.encode(next_header(draft, before, "q", NOW, 0.1))).version
    worn = tuple(job(name, **{name: LARGEST}) for name in ("attempt", "failures"))
    draft = Draft(codec.decode(codec.encode(FULL.model_copy(update={"jobs": (*worn, job("fresh"))}))))
    assert ["fresh"] == [each.id for each in Dequeue(batch_size=9, claim_timeout=1.0).change(draft, NOW)]
    assert {"attempt", "failures", "fresh"} == {each.id for each in codec.decode(codec.encode(draft.freeze())).jobs}


def test_a_custom_job_id_is_refused_when_the_attempt_floor_is_at_its_maximum():
    draft = Draft(FULL.model_copy(update={"attempt_floor": LARGEST}))
    with pytest.raises(InvalidJobError, match="without a job_id"):
        Enqueue("t", b"", job_id="new").change(draft, NOW)
    drawing = replace(UNPREPARED, new_id=lambda: "drawn")
    assert 0 == Enqueue("t", b"").prepared(drawing).change(draft, NOW).attempt


def test_sequence_numbers_that_are_too_large_are_renumbered_in_order():
    places = {"a": 2**62, "b": 7, "c": 2**62, "d": 2**52 + 1}
    state = QueueState(jobs=tuple(job(name, sequence=place) for name, place in places.items()))
    data = codec.encode(state).replace(b"\n}}", b',\n"last": {"entrypoint": "t", "payload": ""}\n}}')
    blob = Blob()
    blob.adopt(codec.parse_blob(data), len(data))
    for found in (codec.decode(data), blob.draft.freeze(), codec.decode(blob.encode(blob.draft.freeze()))):
        assert {"a": 3, "b": 1, "c": 3, "d": 2, "last": 4} == {each.id: each.sequence for each in found.jobs}
    assert 5 == blob.draft.next_sequence()


def test_jobs_added_by_hand_need_few_fields_and_come_last():
    data = codec.encode(FULL).replace(b'"b": {', b'"by hand": {"entrypoint": "t", "payload": ""},\n"b": {', 1)
    assert 4 == {each.id: each.sequence for each in codec.decode(data).jobs}["by hand"]


def test_a_sequence_out_of_range_does_not_affect_other_jobs():
    data = codec.encode(FULL).replace(b'"sequence": 2', b'"sequence": 9007199254740999')
    assert [1, 3, 2] == [each.sequence for each in codec.decode(data).jobs]


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


def test_a_truncated_blob_is_never_taken_for_a_queue():
    """A cut behind the headers of a job is refused too, although they end in two braces as the blob does."""
    jobs = [job(f"job {number}", headers={"trace": "{}"}, nested={"a": {"b": {}}}) for number in range(5)]
    data = codec.encode(QueueState(jobs=tuple(jobs), queue="q", extra={"labels": {"x": {}}}))
    whole = len(data.rstrip())
    for end in range(1, whole):
        with pytest.raises(InvalidBlobError):
            codec.decode(data[:end])
    assert jobs == list(codec.decode(data[:whole]).jobs)


def test_a_duplicated_name_is_found_despite_a_space_before_its_colon():
    line = b'"a": {"entrypoint": "t", "payload" : "", "payload": "eA=="}'
    [aside] = codec.decode(b'{"format": 2, "jobs": {\n' + line + b"\n}}\n").set_aside
    assert "twice" in aside.reason


def test_an_invalid_line_does_not_make_every_read_parse_the_whole_blob(monkeypatch):
    """The form in which such a line is written back shows that the whole blob is no JSON either."""
    state = codec.decode(b'{"format": 2, "queue": "q", "jobs": {\n"bad" 7,\n' + encode_job(job("a")) + b"\n}}\n")
    data = codec.encode(state)
    monkeypatch.setattr(codec, "load_json", lambda _: pytest.fail("the whole was parsed"))
    assert state == codec.decode(data)


def entries_of(texts, finished):
    return list(json.loads(b"{%b}" % texts.encode(finished)).items())


@pytest.mark.parametrize("as_another_object", [True, False])
def test_the_text_of_finished_jobs_is_right_after_any_change_of_the_table(as_another_object):
    texts, finished = codec.FinishedTexts(), {}
    changes = [
        lambda: finished.update({f"{number} é": number for number in range(200)}),
        lambda: [finished.pop(f"{number} é") for number in range(45)],  # the oldest are dropped
        lambda: finished.update({"a": 1}),
        lambda: finished.update({"100 é": 7}),  # acked again
        lambda: finished.pop("150 é"),
        lambda: [finished.pop("a"), finished.update({"b": 1})],  # undone, and another one instead
        finished.clear,
    ]
    for change in changes:
        change()
        if not as_another_object:
            texts.doubt()
        assert list(finished.items()) == entries_of(texts, dict(finished) if as_another_object else finished)


def test_known_finished_jobs_are_not_compared_while_their_table_only_grows():
    texts, finished = codec.FinishedTexts(), {str(number): 1 for number in range(1000)}
    entries_of(texts, finished)
    for number in range(1000, 1300):
        if number % 3:
            finished.update({f"{number} {place}": number for place in range(number % 7)})
        assert list(finished.items()) == entries_of(texts, finished)
    assert len(finished) == texts.encoded
    assert 0 == texts.compared
    assert list(finished.items()) == entries_of(texts, dict(finished))
    assert len(finished) == texts.encoded == texts.compared


def test_a_commit_encodes_the_new_finished_jobs_and_those_of_one_run():
    texts, finished = codec.FinishedTexts(), {str(number): 1 for number in range(1000)}
    texts.encode(finished)
    for number in range(1000, 2000):
        finished[str(number)] = 1
        del finished[str(number - 1000)]
        texts.doubt()
        before = texts.encoded
        texts.encode(finished)
        assert texts.encoded - before <= 1 + codec.FINISHED_RUN
