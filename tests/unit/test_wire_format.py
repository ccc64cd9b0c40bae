"""The wire format: written queues can be read, by people too; invalid content is refused or set aside."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobStatus
from jqueue.core.blob.codec import Blob, decode, parse_blob
from jqueue.core.codec import encode
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.header import CommitRecord, KeyHold
from jqueue.domain.models import Job, QueueState, job_of
from jqueue.domain.slices import exhaust
from jqueue.testing import FakeClock
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
WHOLE = (Path(__file__).parents[1] / "vectors" / "whole.json").read_bytes()


def job(name, **fields):
    return Job(**{"id": name, "entrypoint": "t", "payload": b"x", "created_at": NOW, "sequence": 1, **fields})


STATE = QueueState(
    version=17,
    queue="the queue",
    jobs=(
        job("a", payload=bytes(range(256)), headers={"name": 'té\n"xt'}, unique_key="k", unique_for=3.5, sequence=1),
        job("b", status="in_progress", heartbeat_at=NOW, claim_timeout=9.5, attempt=3, failures=2, sequence=2),
        job("c", status="dead", dead_at=NOW, error="boom", max_attempts=2, run_at=NOW, expires_at=NOW, sequence=3),
    ),
    commits={"writer": CommitRecord(4, 17, 1.5, 0.25, "token")},
    evicted_through=3,
    finished={"z": 9},
    holds={"kept": KeyHold("z", 5.5)},
    attempt_floor=4,
    last_sequence=3,
    extra={"from the future": {"deep": [1, 2.5, None]}},
)
"""The queue in the file `whole.json`."""


def queue_of(data):
    """Return a queue on these bytes, at a fixed time, and its storage."""
    storage = InMemoryStorage(data, clock=FakeClock(NOW))
    return DirectQueue(storage, clock=storage.clock), storage


async def state_of(data):
    queue, _ = queue_of(data)
    return await queue.read_state()


def test_the_version_is_written_even_if_it_is_0_as_by_1_0_0():
    assert 0 == json.loads(encode(QueueState()))["version"]


async def committed(data):
    """Return the bytes behind a commit that changes no job."""
    queue, storage = queue_of(data)
    await queue.pause("nothing")
    return (await storage.read())[0]


def before_b(line, data=WHOLE):
    """Return a queue with one more line."""
    assert b'\n"b":{' in data
    return data.replace(b'"b":{', line + b',\n"b":{', 1)


async def test_every_field_is_read_in_any_layout_and_a_commit_writes_it_back():
    lines = WHOLE.replace(b"\n", b"\r\n"), WHOLE.replace(b"\n", b"\n\n")
    for data in (WHOLE, *lines, *(json.dumps(json.loads(WHOLE), indent=indent).encode() for indent in (None, 2))):
        assert STATE == await state_of(data)
    data = await committed(WHOLE)
    assert WHOLE.splitlines()[1:] == data.splitlines()[1:], "one job on each line, as it was"
    after = await state_of(data)
    fields = ("jobs", "evicted_through", "finished", "attempt_floor", "extra", "queue")
    assert [getattr(STATE, name) for name in fields] == [getattr(after, name) for name in fields]
    assert (18, STATE.commits["writer"]) == (after.version, after.commits["writer"])


SEGMENT = {"entrypoint": "e", "rows": 5, "bytes": 9, "index": 1, "crc": 1, "head": [0, 1, 1.5], "taken": [[0, 4]]}

ROWS: dict[str, dict[str, Any]] = {
    "commits": {"w": {"sequence": 1, "version": 17, "at": 1.5, "cycle": 0.25, "token": "t"}},
    "entrypoints": {"e": {"max_running": 3}, "": {"paused": True}, "no rule": {}},
    "schedules": {"s": {"name": "s", "cron": "0 3 * * *", "entrypoint": "e", "next_at": "2026-02-01T03:00:00Z"}},
    "workers": {"r": {"name": "w", "at": NOW.timestamp()}},
    "segments": {"g": SEGMENT},
}


async def test_unknown_fields_of_the_header_and_of_every_row_are_written_back():
    more = {"from the future": {"deep": [1, 2**70, 2.5, None]}, "": "ü"}
    header: dict[str, Any] = {name: {key: row | more for key, row in rows.items()} for name, rows in ROWS.items()}
    header |= {"settings": {"blob_bytes": 10**9, **more}, "history": {"last": 1, "stopped": True, **more}, **more}
    blob = json.dumps({"format": 2, "queue": "q", "version": 17, **header, "jobs": {}})
    for data in (blob, blob.replace('"jobs": {}}', '"jobs": {\n}}')):
        written = json.loads(await committed(await committed(data.encode())))
        for name in ("settings", "history"):
            assert more == {key: written[name][key] for key in more}
        for name, rows in ROWS.items():
            assert all(more.items() <= written[name][key].items() for key in rows), name
        assert more == {key: written[key] for key in more}


async def test_a_header_that_was_edited_by_hand_is_read_in_linear_time_and_keeps_its_history():
    queue, storage = queue_of(b"")
    await queue.configure(history=3600)
    await queue.enqueue("t", job_id="jöb")
    content, etag = await storage.read()
    spaces = b" " * 2**20  # a search that begins anew at each of them takes half an hour
    edited = content.replace(b'"version"', b'"later":1,%b"version"' % spaces, 1).replace(b',"jobs"', b' , "jobs" ')
    await storage.write(edited, etag)
    assert ["enqueue"] == [event.verb async for event in queue.history(job_id="jöb")]
    await queue.pause("nothing")
    assert "jöb" in (await storage.read())[0].decode().partition("\n")[0]
    assert ["enqueue"] == [event.verb async for event in queue.history(job_id="jöb")]


def test_a_state_takes_any_mapping_as_a_table():
    assert QueueState(commits=STATE.commits) == QueueState(commits=MappingProxyType(STATE.commits))


@pytest.mark.parametrize("time", ["2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05", "2026-01-02T03:04:05Z"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
async def test_names_and_times_of_rows_are_the_same_in_any_layout(time, separators):
    """A cron entry is called as its key says, and every time is in UTC."""
    schedule = ROWS["schedules"]["s"] | {"name": "another", "next_at": time, "fired": [[time, time]]}
    lease = {"claims": 1, "claim_timeout": 1e9, "heartbeat_at": time, "claimed_at": time}
    tables = {"schedules": {"s": schedule}, "segments": {"g~c": ROWS["segments"]["g"] | lease}}
    head = json.dumps({"format": 2, "version": 17, "queue": "q", **tables, "jobs": 0}, separators=separators)
    state = await queue_of(head.encode().replace(b"0}", b"{\n}}\n"))[0].read_state(hot=True)
    entry, held = state.schedules["s"], state.segments["g~c"]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert ("s", at, at, at) == (entry.name, entry.next_at, held.heartbeat_at, held.claimed_at)
    assert ((at, at),) == entry.fired
    assert {UTC} == {
        each and each.tzinfo for each in (entry.next_at, *entry.fired[0], held.heartbeat_at, held.claimed_at)
    }


async def test_the_shape_of_1_0_0_is_read_in_its_order_and_its_double_jobs_become_one():
    first = {"id": "b", "entrypoint": "t", "payload": "eA==", "created_at": "2024-01-01T12:00:00Z"}
    second = {"id": "a", "entrypoint": "t", "payload": "", "status": "in_progress", "priority": 5}
    second |= {"created_at": "2024-01-01T11:00:00", "heartbeat_at": "2024-01-01T12:00:45+02:00"}
    twice = [{**first, "status": "in_progress"}, {**first, "payload": "eQ=="}]
    state = await state_of(json.dumps({"version": 3, "jobs": [first, second, *twice]}).encode())
    assert 3 == state.version
    assert [("b", 1), ("a", 2)] == [(each.id, each.sequence) for each in state.jobs]
    assert {JobStatus.IN_PROGRESS} == {each.status for each in state.jobs}
    assert datetime(2024, 1, 1, 11, tzinfo=UTC) == state.jobs[1].created_at
    assert datetime(2024, 1, 1, 10, 0, 45, tzinfo=UTC) == state.jobs[1].heartbeat_at
    assert ["b (2)"] == [aside.key for aside in state.set_aside]


@pytest.mark.parametrize("odd", ['"\\ud800"', "NaN", "1e999"])
async def test_an_invalid_job_of_1_0_0_does_not_affect_the_others(odd):
    good, bad = '{"id": "a", "entrypoint": "t", "payload": ""}', f'{{"id": "b", "entrypoint": "t", "odd": {odd}}}'
    data = f'{{"version": 1, "jobs": [{good}, {bad}]}}'.encode()
    for content in (data, await committed(data)):
        state = await state_of(content)
        assert (["a"], 1) == ([each.id for each in state.jobs], len(state.set_aside))


REFUSED = [
    (b" ", "empty"),
    (b"not json", "not JSON at line 1"),
    (b"[]", 'no "jobs"'),
    (b'{"jobs": 3}', 'no "jobs"'),
    (b'{"format": 2, "jobs": []}', "format 2"),
    (b'{"format": 3, "jobs": {}}', "upgrade"),
    (b'{"jobs": {}}', "format None"),
    (b'{"format": 2, "critical": ["time travel"], "jobs": {}}', "time travel"),
    (b'{"format":2,"queue":"q","ranges":{},"jobs":{\n}}', "prerelease"),
    (json.dumps({"format": 2, "segments": {"g": SEGMENT | {"tried": []}}, "jobs": {}}).encode(), "prerelease"),
    (b'{"format": 2, "version": 9007199254740993, "jobs": {}}', "version"),
    (b'{"format": 2, "jobs": {"a": {}, "a": {}}}', "'a' twice"),
    (b'{"format":2,"version":1,"queue":"q","version":2,"jobs":{\n}}', "'version' twice"),
    (b'{"format":2,"queue":"q","holds":{"k":["a",1.0],"k":["b",1.0]},"jobs":{\n}}', "'k' twice"),
    (
        b'{"format":2,"queue":"q","entrypoints":{"a":{},"b":{"rate":1}},"jobs":{\n}}',
        r"together - at .\$.entrypoints\['b'\]",
    ),
    (b'{"format":2,"queue":"q","history":{"batches":[[1,"x"]]},"jobs":{\n}}', "batch that cannot be read"),
    *(
        (b'{"format":2,"queue":"q","schedules":{"s":{"name":"s",%b}},"jobs":{\n}}' % fields, "1 to 9999")
        for fields in (
            b'"cron":"* * * * *","entrypoint":"e","next_at":"0001-01-01T00:00:00+14:00"',
            b'"cron":"* * * * *","entrypoint":"e","next_at":"2026-01-02T03:04:05Z",'
            b'"fired":[["2026-01-02T03:04:05Z","9999-12-31T23:59:59-14:00"]]',
        )
    ),
    (b'{"format": 2, "jobs": {"a": {}}, "jobs": {\n"b": {}\n}}', "'jobs' twice"),
    (b'{"format": 2, "critical": ["\\ud800"], "jobs": {\n}}', "JSON cannot hold"),
    (b'{"format": 2, "colour": NaN, "jobs": {}}', "JSON cannot hold"),
    (b'{"format": 2, "colour": ' + b"[" * 50_000 + b"]" * 50_000 + b', "jobs": {\n}}', "too deep"),
    (b'{"format": 2, "holds": {"k": ["a", "inf"]}, "jobs": {\n}}', "holds"),
    (b'{"format": 2, "jobs": {\n"a": {}\n}, "critical": ["time travel"], "labels": {\n}}', "time travel"),
    (b"[" * 100_000, "too deep"),
    (WHOLE[:-4], "cut off"),
    (WHOLE[: WHOLE.index(b'"b"')], "cut off"),
]


@pytest.mark.parametrize(("data", "reason"), REFUSED)
async def test_content_that_is_no_queue_is_refused_with_a_reason_and_left_alone(data, reason):
    queue, storage = queue_of(data)
    for call in (queue.read_state, queue.dequeue):
        with pytest.raises(InvalidBlobError, match=reason):
            await call()
    assert data == (await storage.read())[0]


async def test_a_truncated_blob_is_never_taken_for_a_queue():
    """A cut behind the headers of a job is refused too, although they end in two braces as the blob does."""
    line = b'"%d": {"entrypoint": "t", "payload": "", "headers": {"trace": "{}"}, "nested": {"a": {"b": {}}}}'
    data = b'{"format": 2, "labels": {"x": {}}, "jobs": {\n' + b",\n".join(line % n for n in range(2)) + b"\n}}"
    for end in range(1, len(data)):
        with pytest.raises(InvalidBlobError):
            await state_of(data[:end])
    assert 2 == len((await state_of(data)).jobs)


UNREADABLE = [
    b'"bad": {"entrypoint": 7, "payload": "SECRET"}',
    b'"bad": {"entrypoint": "t", "payload": "SECRET!"}',
    b'"bad": {"entrypoint": "t", "payload": "", "priority": 99999999999999999999}',
    b'"bad": {"entrypoint": "t", "payload": "", "status": "completed"}',
    b'"bad": {"entrypoint": "t", "payload": "", "attempt": 9223372036854775807}',
    b'"bad": {"entrypoint": "\\ud800", "payload": ""}',
    b'"bad": {"entrypoint": "t", "payload": "", "headers": ["SECRET"]}',
    b'"bad": {"entrypoint": "t", "payload": "", "errors": [[-1, "2026-01-02T03:04:05Z", "SECRET"]]}',
    b'"bad": {"entrypoint": "t", "payload": "", "errors": [[9223372036854775808, "2026-01-02T03:04:05Z", "SECRET"]]}',
    b'"bad": {"entrypoint": "t", "payl',
    b'"": {"entrypoint": "t", "payload": ""}',
    b'"bad": {"entrypoint": "t", "payload": "", "size": 1e999}',
    b'"bad": {"entrypoint": "t", "payload": "", "headers": {"a" : "", "a" : "SECRET"}}',
    b'"bad": {"entrypoint": "t", "payload": ""}, "bad": {"entrypoint": "u", "payload": ""}',
]


@pytest.mark.parametrize("line", UNREADABLE)
async def test_a_line_that_cannot_be_read_is_set_aside_and_written_back_as_it_was(line, caplog):
    data = before_b(line)
    for content in (data, await committed(data)):
        state = await state_of(content)
        assert ["a", "b", "c"] == [each.id for each in state.jobs]
        assert [line] == [aside.line for aside in state.set_aside]
        assert "SECRET" not in caplog.text + state.set_aside[0].reason + repr(state)


@pytest.mark.parametrize(
    "fields",
    [
        '"payload_object":[".payloads/a",0,"%s"]' % ("a" * 64),
        '"payload_object":[".segments/a",0,"%s"]' % ("a" * 64),
        '"payload_object":[".payloads/a\\n",0,"%s"]' % ("a" * 64),
        '"payload_object":[".payloads/a",-5,"%s"]' % ("a" * 64),
        '"result_object":[".results/a",1,"a"]',
        '"errors":[[1,"2026-01-02T03:04:05","boom"]]',
        '"errors":[[1,"2026-01-02T03:04:05+02:00","boom"]]',
        '"errors":[[1,"2026-01-02T03:04:05Z","boom"]]',
        '"errors":[[-7,"2026-01-02T03:04:05Z","boom"]]',
        '"errors":[[18446744073709551616,"2026-01-02T03:04:05Z","boom"]]',
        '"errors":[[1,1700000000,"boom"]]',
        '"run_at":"2026-01-02T03:04:05"',
        '"run_at":1700000000',
        '"priority":true',
        '"claim_timeout":-1',
    ],
)
async def test_a_line_means_the_same_in_any_layout(fields):
    """The record's own decoder and the careful reader accept and refuse the same values."""
    line = '"new":{"entrypoint":"t","payload":"","status":"queued","sequence":4,"created_at":"2026-01-02T03:04:05Z",%s}'
    compact = (line % fields).encode()
    states = [await state_of(before_b(each)) for each in (compact, compact.replace(b'":', b'": '))]
    jobs, aside = ([getattr(state, name) for state in states] for name in ("jobs", "set_aside"))
    assert jobs[0] == jobs[1]
    assert len(aside[0]) == len(aside[1])
    assert all(error.at.utcoffset() == timedelta() for each in jobs[0] for error in each.errors)


async def test_many_unreadable_lines_take_few_log_records(caplog):
    queue, _ = queue_of(before_b(b",\n".join(b'"bad %d": 7' % number for number in range(100))))
    for _ in range(2):
        await queue.dequeue("nobody")
    assert 6 == len(caplog.messages)
    assert "95 more" in caplog.messages[-1]


TWIN = b'"a": {"entrypoint": "twin", "payload": ""}'


async def test_the_second_line_with_an_id_does_not_become_a_job_when_the_first_ends():
    queue, storage = queue_of(before_b(TWIN))
    await queue.cancel("a")
    content, _ = await storage.read()
    for state in (await state_of(content), await queue.read_state()):
        assert ["b", "c"] == [each.id for each in state.jobs]
        assert ["a (2)"] == [aside.key for aside in state.set_aside]
    assert b'"entrypoint":"twin"' in content
    _, etag = await storage.read()
    first = next(line for line in WHOLE.splitlines(keepends=True) if line.startswith(b'"a"'))
    await storage.write(before_b(TWIN).replace(first, b""), etag)
    [twin] = await queue.dequeue()
    assert ("a", "twin") == (twin.id, twin.entrypoint), "the first was deleted by hand"


# Numbers at their ends


async def test_sequence_numbers_that_are_too_large_are_renumbered_in_order_and_jobs_without_come_last():
    numbers = {"a": 2**62, "b": 7, "c": 2**62, "d": 2**52 + 1}
    line = b'"%b": {"entrypoint": "t", "payload": "", "sequence": %d}'
    lines = [line % (name.encode(), number) for name, number in numbers.items()]
    lines.append(b'"by hand": {"entrypoint": "t", "payload": ""}')
    data = b'{"format": 2, "version": 1, "jobs": {\n' + b",\n".join(lines) + b"\n}}\n"
    for content in (data, await committed(data)):
        found = {each.id: each.sequence for each in (await state_of(content)).jobs}
        assert {"a": 3, "b": 1, "c": 3, "d": 2, "by hand": 4} == found
    queue, _ = queue_of(data)
    assert 5 == (await queue.enqueue("t")).sequence
    too_large = await state_of(WHOLE.replace(b'"sequence":2', b'"sequence":9007199254740999'))
    assert [1, 3, 2] == [each.sequence for each in too_large.jobs]


# Lines without a time


@in_virtual_time
async def test_a_line_without_a_time_is_dated_by_the_last_commit_before_it_for_all_readers():
    def a_queue(skew):
        clock = VirtualClock()
        clock.skew = timedelta(seconds=skew)
        return DirectQueue(storage, clock=clock)

    line = b'"by hand": {"entrypoint": "t", "payload": "", "headers": {"note": "\\"created_at\\""}},\n'
    storage = InMemoryStorage(clock=VirtualClock())
    await a_queue(0).enqueue("t", b"")
    time = VirtualClock().now()
    await asyncio.sleep(60)
    content, etag = await storage.read()
    await storage.write(content.replace(b'jobs":{\n', b'jobs":{\n' + line), etag)
    for skew in (0, -5000, 5000):
        assert time == (await a_queue(skew).find("by hand")).created_at
        assert time == (await a_queue(skew).read_state()).find("by hand").created_at
    await a_queue(5000).pause("another")
    [written] = [each for each in (await storage.read())[0].splitlines() if each.startswith(b'"by hand"')]
    assert b'"created_at":"2026-01-01T00:00:00Z"' in written, "so that it stays"


def test_a_look_beside_a_commit_that_takes_over_a_large_blob_sees_the_version_that_it_has_read():
    """The two take turns between their slices. A look begins and ends at any of them."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    jobs = [Job(id=f"{n}", entrypoint="work", payload=b"", created_at=at, sequence=n) for n in range(1, 401)]
    changed = [job.model_copy(update={"priority": 1}) for job in jobs[:300]]
    contents = [encode(QueueState(jobs=tuple(each))) for each in (jobs[100:], jobs, changed)]
    blob, looks = Blob(), []
    for content in contents:
        for _ in blob.adopting(parse_blob(content), len(content)):
            for read in contents:
                looks.append((read, blob.looking(parse_blob(read))))
                next(looks[-1][1])
                assert decode(read).jobs == tuple(map(job_of, exhaust(blob.looking(parse_blob(read)))[0].values()))
    assert len(looks) > 10
    for read, look in looks:
        assert decode(read).jobs == tuple(map(job_of, exhaust(look)[0].values()))
