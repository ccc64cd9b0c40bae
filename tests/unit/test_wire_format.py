"""The wire format: written queues can be read, by people too; invalid content is refused or set aside."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jqueue import ClaimLostError, DirectQueue, InMemoryStorage, JobStatus
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.models import LARGEST, CommitRecord, Job, KeyHold, QueueState
from jqueue.operations import Enqueue
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
    commits={"writer": CommitRecord(4, 17, 1.5, 0.25)},
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


async def committed(data):
    """Return the bytes behind a commit that changes no job."""
    queue, storage = queue_of(data)
    await queue.pause("nothing")
    return (await storage.read())[0]


def before_b(line, data=WHOLE):
    """Return a queue with one more line."""
    return data.replace(b'"b": {', line + b',\n"b": {', 1)


async def test_every_field_is_read_and_a_commit_writes_it_back():
    assert STATE == await state_of(WHOLE)
    data = await committed(WHOLE)
    assert WHOLE.splitlines()[1:] == data.splitlines()[1:], "one job on each line, as it was"
    after = await state_of(data)
    fields = ("jobs", "evicted_through", "finished", "attempt_floor", "extra", "queue")
    assert [getattr(STATE, name) for name in fields] == [getattr(after, name) for name in fields]
    assert (18, STATE.commits["writer"]) == (after.version, after.commits["writer"])


@pytest.mark.parametrize(
    "layout",
    [
        lambda data: json.dumps(json.loads(data)).encode(),
        lambda data: json.dumps(json.loads(data), indent=2).encode(),
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\n\n"),
    ],
    ids=["one line", "indented", "of Windows", "empty lines"],
)
async def test_any_layout_of_the_same_json_is_read(layout):
    assert STATE == await state_of(layout(WHOLE))


async def test_unknown_fields_survive_a_change_of_their_job():
    field = b'"from the future": [1, {"x": null}]'
    queue, storage = queue_of(WHOLE.replace(b'"a": {', b'"a": {' + field + b", "))
    await queue.reprioritise("a", 3)
    content, _ = await storage.read()
    assert field in content
    assert b'"priority": 3' in content


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
    (b"\0\0", "not JSON"),
    (b"not json", "not JSON at line 1"),
    (b"[]", 'no "jobs"'),
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
    (b'{"format": 2, "holds": {"k": ["a", "inf"]}, "jobs": {\n}}', "holds"),
    (b'{"format": 2, "jobs": {\n"a": {}\n}, "critical": ["time travel"], "labels": {\n}}', "time travel"),
    (b'{"format": 2, "version": ' + b"9" * 5000 + b', "jobs": {}}', "not JSON"),
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
    b'"bad": {"entrypoint": "t"}',
    b'"bad": {"entrypoint": "t", "payload": "SECRET!"}',
    b'"bad": {"entrypoint": "t", "payload": "", "priority": 99999999999999999999}',
    b'"bad": {"entrypoint": "t", "payload": "", "status": "completed"}',
    b'"bad": {"entrypoint": "t", "payload": "", "created_at": "0001-01-01T00:00:00+10:00"}',
    b'"bad": {"entrypoint": "t", "payload": "", "attempt": 9223372036854775807}',
    b'"bad": {"entrypoint": "\\ud800", "payload": ""}',
    b'"bad": {"entrypoint": "t", "payload": "", "headers": ["SECRET"]}',
    b'"bad": {"entrypoint": "t", "payload": "", "run_at": "SECRET"}',
    b'"bad": "SECRET"',
    b'"bad": {"entrypoint": "t", "payl',
    b'"": {"entrypoint": "t", "payload": ""}',
    b'"bad": {"entrypoint": "t", "payload": "", "size": 1e999}',
    b'"bad": {"entrypoint": "t", "payload" : "", "payload": "SECRET"}',
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


async def test_two_invalid_lines_do_not_become_one_job():
    begun, ended = b'"x": {"entrypoint": "t"', b'"payload": ""}'  # no comma: not JSON
    data = WHOLE.replace(b'"b": {', begun + b'\n"b": {', 1).replace(b"\n}}", b",\n" + ended + b"\n}}")
    state = await state_of(data)
    assert ["a", "b", "c"] == [each.id for each in state.jobs]
    assert state.set_aside == (await state_of(await committed(data))).set_aside


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
    assert b'"entrypoint": "twin"' in content
    _, etag = await storage.read()
    first = next(line for line in WHOLE.splitlines(keepends=True) if line.startswith(b'"a"'))
    await storage.write(before_b(TWIN).replace(first, b""), etag)
    [twin] = await queue.dequeue()
    assert ("a", "twin") == (twin.id, twin.entrypoint), "the first was deleted by hand"


async def test_each_of_many_lines_with_one_id_gets_a_name_of_its_own():
    data = before_b(TWIN + b",\n" + TWIN + b',\n"a (2)": 7')
    for content in (data, await committed(data)):
        assert ["a (2)", "a (3)", "a (4)"] == sorted(aside.key for aside in (await state_of(content)).set_aside)


@pytest.mark.parametrize(
    "head",
    [b'{"format": 2, "commits": {"w": [1, 1, 1.5, 0]}, "jobs": {', WHOLE.partition(b"\n")[0]],
    ids=["short", "ours"],
)
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
async def test_a_blob_that_only_looks_like_one_job_per_line_is_read_whole(head, body):
    data = head + b"\n" + body
    other = await state_of(json.dumps(json.loads(data), indent=1).encode())
    assert other == await state_of(data)
    queue, _ = queue_of(data)
    assert {"x"} <= {each.id for each in await queue.dequeue(batch_size=9)}


# Numbers at their ends


async def test_counts_at_their_maximum_are_read_and_not_raised():
    queue, _ = queue_of(WHOLE.replace(b'"version": 17', b'"version": %d' % LARGEST))
    with pytest.raises(InvalidBlobError, match="smaller version"):
        await queue.enqueue("t")
    last, storage = queue_of(WHOLE.replace(b'"version": 17', b'"version": %d' % (LARGEST - 1)))
    await last.pause("nothing")
    assert LARGEST == (await state_of((await storage.read())[0])).version
    worn = b'"worn %d": {"entrypoint": "worn", "payload": "", "%b": %d}'
    lines = [worn % (place, name, LARGEST) for place, name in enumerate((b"attempt", b"failures"))]
    queue, _ = queue_of(before_b(b",\n".join(lines)))
    fresh = await queue.enqueue("worn")
    assert [fresh.id] == [each.id for each in await queue.dequeue("worn", batch_size=9)]
    assert 5 == len((await queue.read_state()).jobs) - 1


async def test_an_id_of_the_callers_choice_is_refused_when_the_attempt_floor_is_at_its_maximum():
    queue, _ = queue_of(WHOLE.replace(b'"attempt_floor": 4', b'"attempt_floor": %d' % LARGEST))
    with pytest.raises(InvalidJobError, match="without a job_id"):
        await queue.enqueue("t", b"", job_id="new")
    assert 0 == (await queue.enqueue("t")).attempt


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
    too_large = await state_of(WHOLE.replace(b'"sequence": 2', b'"sequence": 9007199254740999'))
    assert [1, 3, 2] == [each.sequence for each in too_large.jobs]


# Acked jobs


async def test_the_last_acked_jobs_are_written_in_their_order_whoever_acked_them():
    queue, storage = queue_of(b'{"format": 2, "finished": {"ack 1": 5, "gone": 1}, "jobs": {\n}}\n')
    other = DirectQueue(storage, clock=storage.clock)
    await queue.apply(*(Enqueue("t", job_id=f"{number} é") for number in range(6)))
    jobs = await queue.dequeue("t", batch_size=6)
    for acked, claims in ((queue, jobs[:1]), (other, jobs[1:3]), (queue, jobs[3:4]), (queue, jobs[4:])):
        await acked.ack_many(claims)
        content, _ = await storage.read()
        finished = json.loads(content)["finished"]
        assert list(finished.items()) == list((await queue.read_state()).finished.items())
        assert list(finished)[-len(claims) :] == [each.id for each in claims]
    assert ["ack 1", "gone", *(f"{number} é" for number in range(6))] == list(finished)
    with pytest.raises(ClaimLostError):
        await queue.nack(jobs[0])


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
    await storage.write(content.replace(b'jobs": {\n', b'jobs": {\n' + line), etag)
    for skew in (0, -5000, 5000):
        assert time == (await a_queue(skew).find("by hand")).created_at
        assert time == (await a_queue(skew).read_state()).find("by hand").created_at
    await a_queue(5000).pause("another")
    [written] = [each for each in (await storage.read())[0].splitlines() if each.startswith(b'"by hand"')]
    assert b'"created_at": "%b"' % time.isoformat().encode() in written, "so that it stays"
