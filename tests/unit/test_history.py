"""The history of a queue: its cost in requests, races of movers, restored backups, and an outbox that cannot move."""

import asyncio
import json
import zlib

import msgspec
import pytest
from msgspec import Raw

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, JobStatus, Limits
from jqueue.domain.errors import HistoryDamagedError
from jqueue.domain.events import events_in
from jqueue.domain.history import EVENTS_PER_OBJECT, MOST_EVENTS, OUTBOX_SECONDS, START
from jqueue.domain.operations.base import ASKED_BYTES
from jqueue.domain.operations.codec import AllOrNothing, Guarded
from jqueue.operations import Cancel, Enqueue, Nack, Purge, Reschedule
from jqueue.testing.faults import FaultyObjects, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments

pytestmark = pytest.mark.virtual_time

FULL = EVENTS_PER_OBJECT + 1


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, kind=DirectQueue, **options):
    return kind(
        storage, clock=VirtualClock(), call_timeout=5, limits=Limits(hot_bytes=None, batch_size=30_000), **options
    )


async def add(queue, jobs, entrypoint="t"):
    await queue.enqueue_many([Enqueue(entrypoint, b"") for _ in range(jobs)])


async def numbers(queue):
    return [event.number async for event in queue.history()]


async def read_all(queue):
    """Return the events of a queue, and the error at their end."""
    events = []
    with pytest.raises(HistoryDamagedError) as damaged:
        async for event in queue.history():
            events.append(event)
    return events, damaged.value


async def header(queue):
    return (await queue.read_state()).history


def calls(storage, name):
    return [suffix for called, suffix in storage.object_calls if called == name]


async def test_a_thousand_events_cost_one_more_request(storage):
    async with queue_on(storage, BrokerQueue) as queue:
        await queue.configure(history=3600)
        for _ in range(20):
            await asyncio.gather(*(queue.enqueue("t", b"") for _ in range(50)))
            await queue.ack_many(await queue.dequeue(batch_size=50))
        writes, last = storage.writes, (await header(queue)).last
    assert 3_001 == last
    assert 61 == writes
    assert 2 <= len(calls(storage, "create_object")) <= 3
    assert len(calls(storage, "list_beside")) <= 2
    assert {"create_object", "list_beside"} == {name for name, _ in storage.object_calls}
    assert list(range(last, 0, -1)) == await numbers(queue_on(storage))


async def test_old_events_are_moved_by_the_next_commit_and_never_by_one_of_their_own(storage):
    queue = queue_on(storage)
    assert None is await header(queue)
    await queue.configure(history=3600)
    await asyncio.sleep(2 * OUTBOX_SECONDS)
    assert (1, [("list_beside", ".")]) == (storage.writes, storage.object_calls)  # as every commit that creates a queue
    storage.latency = 1.0
    await queue.enqueue("t", b"")
    await queue.aclose()
    assert 1 == len(calls(storage, "create_object"))
    assert 2 == storage.writes
    assert [2, 1] == await numbers(queue_on(storage))


@pytest.mark.parametrize("again", [1, 4 * FULL])
async def test_after_a_restored_backup_the_history_goes_on_behind_the_highest_number(storage, again, caplog):
    """Three objects were written after the backup was made."""
    queue = queue_on(storage)
    await queue.configure(history=3600)
    await add(queue, FULL)
    await asyncio.sleep(1)
    await add(queue, 10)
    backup, _ = await storage.read()
    for _ in range(3):
        await add(queue, FULL, "forgotten")
        await asyncio.sleep(1)
    before = [event async for event in queue.history()]
    await storage.write(backup, (await storage.read())[1])

    queue = queue_on(storage)
    await add(queue, again, "again")
    for number in range(4):
        await asyncio.sleep(2 * OUTBOX_SECONDS)
        await queue.pause(f"t{number}")  # a commit without an event
    after, history = [event async for event in queue.history()], await header(queue)
    new = len(after) - len(before)
    assert list(range(history.last, 0, -1)) == [event.number for event in after]
    assert (again, before) == (new, after[new:])
    assert {"again"} >= {event.entrypoint for event in after[:new]}
    assert "the history goes on behind event 4015" in caplog.text
    contents = [await storage.read_object(each.suffix) for each in await storage.list_beside(".history/")]
    numbers = [json.loads(line)["number"] for content in contents for line in content.splitlines()]
    assert list(range(1, history.last + 1)) == numbers


async def test_an_object_is_lines_of_json_with_plain_names_and_a_checksum(storage):
    async with queue_on(storage) as queue:
        await queue.configure(history=3600, history_payloads=True)
        await queue.enqueue("mail", b"\0", job_id="a", priority=3)
        [job] = await queue.dequeue("mail", holder="w")
        await queue.nack(job, error=ValueError("no"))
        await queue.apply(Cancel("a", asked_by="eve"))
        await queue.configure(history=None)  # moves the rest of the outbox
        await asyncio.sleep(1)
        every = [event async for event in queue.history()][::-1]
    [listed] = await storage.list_beside(".history/")
    assert ".history/0000000000000001.jsonl" == listed.suffix
    content = await storage.read_object(listed.suffix)
    lines = list(map(json.loads, content.splitlines()))
    assert (5, 5) == (len(lines), lines[0].pop("last"))
    crc = lines[0].pop("crc")
    queue_id = (await queue.read_state()).queue
    assert crc == zlib.crc32(content.replace(b',"crc":%d' % crc, b""), zlib.crc32(queue_id.encode()))
    assert every == [msgspec.convert(line, type(every[0])) for line in lines]
    times = {line.pop("at")[:4] for line in lines} | {lines[4].pop("created_at")[:4]}
    seconds = [lines[2].pop("wait_seconds"), lines[3].pop("run_seconds")]
    assert ({"2026"}, [0.0, 0.0]) == (times, seconds)
    about = {"job_id": "a", "entrypoint": "mail", "jobs": 1}
    assert lines == [
        {"number": 1, "verb": "start", "attempt": 0, "jobs": 1},
        {"number": 2, "verb": "enqueue", "after": "queued", "attempt": 0, "payload": "AA==", **about},
        {"number": 3, "verb": "dequeue", "before": "queued", "after": "in_progress", "attempt": 1, "holder": "w",
         **about},
        {"number": 4, "verb": "nack", "before": "in_progress", "after": "queued", "attempt": 1, "holder": "w",
         "error": "ValueError: no", **about},
        {"number": 5, "verb": "cancel", "before": "queued", "attempt": 1, "asked_by": "eve", **about},
    ]  # fmt: skip


async def test_switching_the_history_off_moves_all_events_behind_an_object_that_is_there_already():
    memory = InMemoryStorage(clock=VirtualClock())
    async with queue_on(memory) as queue:
        await queue.configure(history=3600)
        await add(queue, FULL)  # an object is created, and no commit follows that drops its events
    await add(queue_on(FaultyStorage(memory)), 2)  # which cannot create objects
    async with queue_on(memory) as queue:
        await queue.configure(history=None)
    first, second = [await memory.read_object(each.suffix) for each in await memory.list_beside(".history/")]
    assert (FULL + 1, 2) == (first.count(b"\n"), second.count(b"\n"))
    async with queue_on(memory) as queue:
        await queue.configure(history=3600)
        assert [START, "enqueue"] == [event.verb async for event in queue.history()][:2]
        assert list(range(FULL + 4, 0, -1)) == await numbers(queue)


@pytest.mark.wide
async def test_an_outbox_that_nobody_can_move_loses_its_oldest_events_and_says_so():
    memory = InMemoryStorage(clock=VirtualClock())
    await queue_on(memory).configure(history=3600)
    other = queue_on(FaultyStorage(memory))
    for jobs in (MOST_EVENTS, 1000):
        await add(other, jobs)
    history = await header(other)
    assert (1, 21_001, 2) == (history.lost, history.last, history.first)
    assert MOST_EVENTS + 1000 == history.last + 1 - history.first
    async with queue_on(memory) as able:
        await add(able, 1)
    await add(able := queue_on(memory), 1)
    with pytest.raises(InvalidJobError, match="history"):
        other.history()
    events, error = await read_all(able)
    assert list(range(21_003, 1, -1)) == [event.number for event in events]
    assert (1, ((1, 1),)) == (error.lost, error.gaps)
    assert "events 1 to 1 are missing; 1 event was dropped" in str(error)


async def test_a_store_without_objects_refuses_to_keep_a_history():
    queue = queue_on(FaultyStorage(InMemoryStorage()))
    with pytest.raises(InvalidJobError, match="FaultyStorage can only read and write the queue's own"):
        await queue.configure(history=3600)
    assert not queue.capabilities.history
    assert None is (await queue.configure(history=None)).history


async def test_the_oldest_objects_are_removed_and_no_other_files(storage):
    await storage.create_object(".history/notes", b"")
    queue = queue_on(storage)
    await queue.configure(history=3600)
    for _ in range(10):
        await add(queue, FULL)
        await asyncio.sleep(2000)
    await queue.aclose()
    there = {each.suffix: each.size for each in await storage.list_beside(".history/")}
    assert 0 == there.pop(".history/notes")
    assert 2 <= len(there) <= 7
    found = await numbers(queue_on(storage))
    assert found == list(range(10 * FULL + 1, 10 * FULL + 1 - len(found), -1))


@pytest.mark.parametrize(
    "text",
    [
        b'[1,1,0,[[null,"start"]],[[1]]]',
        b'[1,1,0,[[null,"start"]],[[-1]]]',
        b'[1,2,0,[[null,"start"]],[[0]]]',
        b'[1,1,1e12,[[null,"start"]],[[0]]]',
        b'[1,1,0,[["work","ack","done"]],[[0]]]',
        b'[1,1,0,[["work","ack"]],[[0,"a",1,0.5,1e12]]]',
        b'[1,1,0,[["work","ack"]],[[0,"a",9223372036854775808]]]',
        b'[1,1,0,[["work","ack"]],[[0,"a",1,null,null,null,null,9223372036854775808]]]',
        b'[9223372036854775808,1,0,[["work","ack"]],[[0,"a"]]]',
    ],
)
def test_a_batch_whose_events_cannot_be_true_is_refused(text):
    with pytest.raises(ValueError, match=r"should have 2|not a batch of events|age that is out of range"):
        events_in(Raw(text))


async def test_events_name_who_asked_for_them_and_the_others_of_the_commit_do_not(storage):
    queue = queue_on(storage)
    await queue.configure(history=3600)
    for name in "abcdef":
        await queue.enqueue("t", b"", job_id=name)
    [claimed] = await queue.dequeue("t")
    liar = "\x1b[31m" + "é" * 200
    both = AllOrNothing((Cancel("b", asked_by="eve"), Enqueue("t", b"", job_id="g")))
    orders = Cancel("a", running=True, asked_by=liar), Guarded(both), Reschedule("c", delay=9, asked_by="bob")
    await queue.apply_each(
        *orders, Nack(claimed, dead=True, error="no"), Cancel("d"), Purge(JobStatus.QUEUED, "t", asked_by="eve")
    )
    asked = {(event.job_id, event.verb): event.asked_by async for event in queue.history() if event.asked_by}
    cut = asked.pop(("a", "cancel"))
    assert cut.startswith("\\x1b[31mé")
    assert len(cut.encode()) <= ASKED_BYTES
    purged = {(each, "purge"): "eve" for each in "cefg"}
    assert {("b", "cancel"): "eve", ("c", "reschedule"): "bob", **purged} == asked


async def test_events_name_the_group_of_their_jobs_also_of_many_at_once(storage):
    queue = in_segments(DirectQueue(storage, clock=VirtualClock()), bulk_jobs=0, fewest_rows=3)
    await queue.configure(history=3600)
    async with queue.group("album") as group:
        await queue.enqueue_many([Enqueue("t", b"", group="album")] * 20)
        await group.enqueue("t", b"", job_id="one")
    await queue.enqueue("t", b"", job_id="other")
    await queue.apply(Cancel("one", asked_by="eve"))
    await queue.cancel("other")
    events = [event async for event in queue.history()][::-1]
    assert [START, "enqueue", "enqueue", "enqueue", "cancel", "cancel"] == [event.verb for event in events]
    assert [None, "album", "album", None, "album", None] == [event.group for event in events]
    assert (20, "eve") == (events[1].jobs, events[4].asked_by)
    await queue.configure(history=None)  # as lines of JSON
    assert events == [event async for event in queue.history()][::-1]
