"""The journal beside a TextQueue: truncated, lost, damaged or long, it never loses a message."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import JobStatus
from jqueue.domain.errors import ClaimLostError
from jqueue.formats.port import Change, JobChangedError
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue import journal as journal_module
from jqueue.formats.textqueue.journal import Journal, MessageState
from jqueue.formats.textqueue.store import TextQueueFile
from tests.unit.formats.text_files import LATER, messages, queue_on


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


@pytest.fixture
def journal(path):
    return path.with_name(f".{path.name}.jq")


async def finished_by(path, job) -> bool:
    """Return True if a new queue object knows that this very claim has finished the job."""
    async with queue_on(path) as fresh:
        await fresh.ack(job)
        return True


EVERYTHING = {
    "a": MessageState(),
    "b": MessageState(attempt=1, failures=1, heartbeat=1795313466137003, timeout=300.5),
    "c": MessageState(attempt=3, failures=2, order=4096, error="it\nbröke"),
    "d": MessageState(attempt=1, failures=1, dead_at=5, error=""),
    "e": MessageState(attempt=9, finished=True),
    "f\x00ü": MessageState(attempt=1, heartbeat=0, timeout=0.0, hidden=True),
}


def test_the_journal_reads_back_every_state(journal):
    writer, reader = Journal(str(journal)), Journal(str(journal))
    writer.write(EVERYTHING, durable=True)
    reader.refresh()
    assert EVERYTHING == reader.states == writer.states
    assert reader.last_order == writer.last_order == 4096
    assert not reader.may_have_changed()
    writer.write({"a": MessageState(attempt=1), "b": MessageState(attempt=2)}, durable=False)
    assert reader.may_have_changed()
    reader.refresh()
    assert reader.states == writer.states == {**EVERYTHING, "a": MessageState(attempt=1), "b": MessageState(attempt=2)}
    assert list(reader.states)[-2:] == ["a", "b"]


def test_a_truncated_line_is_skipped_and_does_not_damage_the_next(journal):
    first, second, third = (
        {"a": MessageState(attempt=1)},
        {"b": MessageState(attempt=2)},
        {"c": MessageState(attempt=3)},
    )
    writer = Journal(str(journal))
    writer.write(first, durable=False)
    begin = journal.stat().st_size
    writer.write(second, durable=False)
    content = journal.read_bytes()
    for length in range(begin, len(content) + 1):
        journal.write_bytes(content[:length])
        reader, next_writer = Journal(str(journal)), Journal(str(journal))
        reader.refresh()
        assert reader.states == ({**first, **second} if length == len(content) else first)
        next_writer.refresh(locked=True)
        whole = length >= len(content) - 1
        assert next_writer.states == ({**first, **second} if whole else first)
        next_writer.write(third, durable=False)
        late = Journal(str(journal))
        for one in (reader, late):
            one.refresh()
            assert one.states == {**next_writer.states}
            assert one.states["c"] == MessageState(attempt=3)


SPOILT = [
    b"",
    b"\0" * 512,
    b"[1]",
    b"5",
    b"null",
    b'{"i":5,"a":1}',
    b'{"i":"a"}',
    b'{"i":"a","a":-1}',
    b'{"i":"a","a":true}',
    b'{"i":"a","a":1e999}',
    b'{"i":"a","a":1,"c":5}',
    b'{"i":"a","a":1,"c":[1]}',
    b'{"i":"a","a":1,"c":[1,null]}',
    b'{"i":"a","a":1,"c":[1,NaN]}',
    b'{"i":"a","a":1,"c":[1,1e300]}',
    b'{"i":"a","a":1,"c":["x",1]}',
    b'{"i":"a","a":1,"o":"x"}',
    b'{"i":"a","a":1,"d":99999999999999999999999}',
    b"\xff\xfe",
    b"[" * 100_000,
]


@pytest.mark.parametrize("line", SPOILT, ids=range(len(SPOILT)))
def test_an_invalid_line_is_skipped(journal, line):
    journal.write_bytes(b'{"i":"a","a":7}\n' + line + b'\n{"i":"b","a":8}\n')
    reader = Journal(str(journal))
    reader.refresh()
    assert reader.states == {"a": MessageState(attempt=7), "b": MessageState(attempt=8)}


def test_a_replaced_or_truncated_journal_is_read_anew(journal):
    reader = Journal(str(journal))
    journal.write_bytes(b'{"i":"a","a":1}\n{"i":"b","a":2}\n')
    reader.refresh()
    journal.write_bytes(b'{"i":"b","a":2}\n')
    reader.refresh()
    assert reader.states == {"b": MessageState(attempt=2)}
    other = journal.with_name("other")
    other.write_bytes(b'{"i":"c","a":3}\n{"i":"d","a":4}\n')
    other.replace(journal)
    assert reader.may_have_changed()
    reader.refresh()
    assert reader.states == {"c": MessageState(attempt=3), "d": MessageState(attempt=4)}


async def test_every_message_is_there_and_unclaimed_without_the_journal(path, journal):
    path.write_bytes(b"-a\n=b\n!c\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        journal.unlink()
        async with queue_on(path) as fresh:
            assert {b"a": JobStatus.QUEUED, b"c": JobStatus.DEAD} == {
                job.payload: job.status for job in (await fresh.read_state()).jobs
            }
        await queue.heartbeat(a)
        assert journal.exists(), "a queue object that knows its content writes it again"
        async with queue_on(path) as fresh:
            assert await fresh.dequeue() == []
        await queue.ack(a)
    assert path.read_bytes() == b"=a\n=b\n!c\n"


async def test_a_crash_between_the_journal_line_and_the_mark_hides_no_message_for_good(path, journal):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path, hide=True) as queue:
        a, b = await queue.dequeue(batch_size=2)
        path.write_bytes(b"-a\n=b\n")
        async with queue_on(path) as other:
            assert {(a.id, JobStatus.IN_PROGRESS), (b.id, JobStatus.IN_PROGRESS)} == {
                (job.id, job.status) for job in (await other.read_state()).jobs
            }
            assert await other.requeue_stale(0) == 2
        assert path.read_bytes() == b"-a\n-b\n"


async def test_every_queue_object_sees_the_states_in_the_journal(path):
    path.write_bytes(b"-a\n-b\n-c\n")
    async with queue_on(path) as queue, queue_on(path) as other:
        [a] = await queue.dequeue()
        b, c = await other.dequeue(batch_size=9)
        await queue.nack(b, error="broken")
        assert {(a.id, 1, None), (b.id, 1, "broken"), (c.id, 1, None)} == {
            (job.id, job.attempt, job.error) for job in (await other.read_state()).jobs
        }
        with pytest.raises(ClaimLostError):
            await other.ack(b)
        [again] = await other.dequeue()
        assert (b.id, 2) == again.claim
        with pytest.raises(ClaimLostError):
            await other.ack(b)
        await queue.ack(again)
        await other.ack(again)


def test_a_claim_extended_by_an_unseen_heartbeat_is_not_revoked(path):
    """The second process has not read the heartbeat yet."""
    path.write_bytes(b"-a\n")
    one, other = TextQueueFile(path), TextQueueFile(path)

    def carried_out(store, changed, **changes):
        [outcome] = store.carry_out([Change(changed, changed.evolve(**changes), "")], LATER)
        return outcome

    claim = {"attempt": 1, "failures": 1, "heartbeat_at": LATER, "claim_timeout": 1.0}
    [seen] = one.scan(LATER)
    claimed = carried_out(one, seen.job, status=JobStatus.IN_PROGRESS, **claim)
    [seen] = other.scan(LATER)
    prolonged = carried_out(one, claimed.job, heartbeat_at=LATER + timedelta(seconds=1))
    back = {"status": JobStatus.QUEUED, "heartbeat_at": None, "claim_timeout": None, "sequence": 10**9}
    assert isinstance(carried_out(other, seen.job, **back), JobChangedError)
    [seen] = other.scan(LATER)
    assert (seen.job.status, seen.job.heartbeat_at) == (JobStatus.IN_PROGRESS, prolonged.job.heartbeat_at)
    assert not isinstance(carried_out(other, seen.job, **back), JobChangedError)


async def test_the_claims_of_a_dead_process_are_handed_out_again(path):
    path.write_bytes(b"-a\n\n")
    async with queue_on(path) as dead, queue_on(path) as queue:
        [lost] = await dead.dequeue(claim_timeout=0.2)
        [job] = await queue.dequeue(wait=20)
        assert (lost.id, 2) == job.claim
        with pytest.raises(ClaimLostError):
            await dead.ack(lost)
        await queue.ack(job)


async def test_a_new_process_revokes_a_claim_of_an_hour_ago(path, journal):
    """All processes on the file use the clock of one machine."""
    path.write_bytes(b"-a\n\n")
    [seen] = TextQueueFile(path).scan(LATER)
    ago = int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1e6)
    journal.write_text(json.dumps({"i": seen.job.id, "a": 1, "f": 1, "c": [ago, 6.0]}) + "\n")
    async with queue_on(path) as queue:
        [job] = await queue.dequeue(wait=5)
        assert job.attempt == 2


async def test_a_long_journal_is_rewritten_with_the_states_that_still_count(path, journal, monkeypatch):
    monkeypatch.setattr(journal_module, "_COMPACT_BYTES", 2000)
    monkeypatch.setattr(journal_module, "KEPT_FINISHED", 5)
    monkeypatch.setattr("jqueue.formats.textqueue.changes.KEPT_FINISHED", 5)
    path.write_bytes(b"-mine\n-bad\n")
    inodes: set[int] = set()
    async with queue_on(path) as queue, queue_on(path) as other:
        mine, bad = await queue.dequeue(batch_size=2)
        await queue.nack(bad, error="broken", dead=True)
        for number in range(100):
            await queue.enqueue("work", b"%d" % number)
            [job] = await other.dequeue()
            await queue.ack(job)
            if journal.stat().st_ino not in inodes:  # the journal has just been rewritten
                await other.ack(job)
                assert await finished_by(path, job)
            inodes.add(journal.stat().st_ino)
            await other.heartbeat(mine)
        reader = Journal(str(journal))
        reader.refresh()
        assert len(inodes) > 1
        assert len(reader.states) < 60, "states that no longer count are dropped"
        assert (1, True) == (reader.states[mine.id].attempt, reader.states[mine.id].heartbeat is not None)
        assert reader.states[bad.id].error == "broken"
        await other.ack(job)
        await queue.ack(mine)
        assert await other.redrive() == 1
        assert [bad.id] == [job.id for job in await queue.dequeue(batch_size=9)]
    assert not journal.with_name(f"{journal.name}.part").exists()
    for line in journal.read_bytes().splitlines():
        json.loads(line)


async def test_a_leftover_of_an_unfinished_journal_does_no_harm(path, journal):
    path.write_bytes(b"-a\n")
    journal.with_name(f"{journal.name}.part").write_bytes(b"half a li")
    async with queue_on(path) as queue:
        await queue.ack((await queue.dequeue())[0])
    assert messages(path) == []


async def test_concurrent_claims_and_acks_of_many_queue_objects_are_each_done_once(path):
    queues = [queue_on(path) for _ in range(4)]
    done: list[bytes] = []

    async def work(queue: StoreQueue) -> None:
        while jobs := await queue.dequeue(batch_size=3):
            done.extend(job.payload for job in jobs)
            await asyncio.gather(*(queue.ack(job) for job in jobs))

    await asyncio.gather(*(queues[n % 4].enqueue("work", b"%d" % n) for n in range(60)))
    await asyncio.gather(*map(work, queues))
    assert sorted(b"%d" % n for n in range(60)) == sorted(done)
    for queue in queues:
        await queue.aclose()
    assert TextQueueFile(path).scan(LATER) == []
