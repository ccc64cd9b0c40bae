"""A TextQueue as a queue: the bytes that are written, and the bytes that are left alone."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from contextlib import contextmanager

import pytest

from jqueue import Job, JobNotFoundError, JobStatus, StorageError
from jqueue.domain.errors import BlobMissingError, ClaimLostError, StorageFatalError
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from tests.unit.formats.text_files import LATER, queue_on, with_queue

PERSONS = b"# my list\n\n-one\n two\n\\state=new\n!old\n?what\n  lost\n=done\r\n-three"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


def journal_of(path):
    return path.with_name(f".{path.name}.jq")


async def test_a_message_is_appended_whole_behind_the_existing_content(path):
    path.write_bytes(PERSONS)
    os.utime(path, (0, 0))
    async with queue_on(path) as queue:
        await queue.enqueue("mail", b"line one\nline two\n", job_id="the-id", headers={"k": "v"}, max_attempts=3)
    head, _, rest = path.read_bytes().removeprefix(PERSONS).partition(b"\n-")
    assert head.startswith(b'\n#jq {"id":"the-id","ep":"mail","t":')
    assert head.endswith(b',"n":18,"h":{"k": "v"},"max":3}')
    assert rest == b"line one\n line two\n \n\n"


@pytest.mark.parametrize("payload", [b"", b"\n", b" a", b"-", b"#jq {", b"\x00", "grüß\u2028".encode(), b"a\n\n b\n"])
async def test_a_text_payload_is_written_unchanged(path, payload):
    async with queue_on(path) as queue:
        await queue.enqueue("work", payload)
        [job] = await queue.dequeue()
        assert payload == job.payload
    assert path.read_bytes().partition(b"\n")[2] == b"-" + payload.replace(b"\n", b"\n ") + b"\n\n"


@pytest.mark.parametrize("payload", [b"\r", b"a\r\nb", b"\xff", b"\xed\xa0\x80", bytes(range(256))])
async def test_a_binary_payload_is_written_in_base64(path, payload):
    async with queue_on(path) as queue:
        await queue.enqueue("work", payload)
        [job] = await queue.dequeue()
        assert payload == job.payload
    content = path.read_bytes()
    assert b'"enc":"b64"' in content
    assert content.isascii()
    assert b"\r" not in content


async def test_payloads_can_be_written_in_single_lines_for_older_readers(path):
    async with queue_on(path, single_lines=True) as queue:
        await queue.enqueue("work", b"one\ntwo")
        await queue.enqueue("work", b"three")
        assert [b"one\ntwo", b"three"] == [job.payload for job in await queue.dequeue(batch_size=2)]
    assert b"\n " not in path.read_bytes()


async def test_one_byte_marks_the_state_of_a_message(path):
    path.write_bytes(b"-a\n-b\n-c\n-d\n-e\n")
    async with queue_on(path) as queue:
        a, b, c, d = await queue.dequeue(batch_size=4)
        assert path.read_bytes() == b"-a\n-b\n-c\n-d\n-e\n", "a claim is in the journal"
        await queue.ack(a)
        await queue.nack(b, dead=True, error="broken")
        await queue.nack(c)
        await queue.heartbeat(d)
        [e] = [job for job in (await queue.read_state()).jobs if job.payload == b"e"]
        await queue.cancel(e.id)
        assert path.read_bytes() == b"=a\n!b\n-c\n-d\n#e\n"
        assert await queue.redrive() == 1
        assert path.read_bytes() == b"=a\n-b\n-c\n-d\n#e\n"
        assert [b"c", b"b"] == [job.payload for job in await queue.dequeue(batch_size=9)], "in the order of the journal"
        assert path.read_bytes() == b"=a\n-b\n-c\n-d\n#e\n"


async def test_cancelling_a_message_does_not_turn_it_into_a_note(path):
    path.write_bytes(b'-jq {"id":"x"}\n-b\n')
    async with queue_on(path) as queue:
        first, second = (await queue.read_state()).jobs
        await queue.cancel(first.id)
        assert path.read_bytes() == b'=jq {"id":"x"}\n-b\n'
        assert [second.id] == [job.id for job in await queue.dequeue(batch_size=9)]


async def test_a_claimed_message_may_be_hidden_from_older_readers(path):
    path.write_bytes(b"-a\n-b\n-c\n")
    async with queue_on(path, hide=True) as queue:
        a, b, c = await queue.dequeue(batch_size=3)
        assert path.read_bytes() == b"=a\n=b\n=c\n"
        await queue.nack(a)
        await queue.nack(b, dead=True)
        assert path.read_bytes() == b"-a\n!b\n=c\n"
        async with queue_on(path) as other:
            await other.heartbeat(c)
            await other.ack(c)
            await queue.ack(c)
            assert path.read_bytes() == b"-a\n!b\n=c\n"
            assert [b"a"] == [job.payload for job in await other.dequeue(batch_size=9)]
            assert path.read_bytes() == b"-a\n!b\n=c\n", "the other queue object does not hide claims"


async def test_a_message_that_an_older_reader_finished_is_finished(path):
    path.write_bytes(b"-a\n-b\n-c\n")
    async with queue_on(path) as queue, queue_on(path) as other:
        a, b, c = await queue.dequeue(batch_size=3)
        path.write_bytes(b"=a\n!b\n#c\n")
        await queue.ack(a)
        await other.ack(a)
        for job in (b, c):
            with pytest.raises(ClaimLostError):
                await queue.ack(job)
        assert path.read_bytes() == b"=a\n!b\n#c\n"
        assert [JobStatus.DEAD] == [job.status for job in (await other.read_state()).jobs]


async def test_a_message_queued_again_by_hand_is_claimed_by_a_new_attempt(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        a, b = await queue.dequeue(batch_size=2)
        await queue.ack(a)
        await queue.nack(b, dead=True)
        path.write_bytes(b"-a\n-b\n")
        again = await queue.dequeue(batch_size=2)
        assert {(a.id, 2), (b.id, 2)} == {job.claim for job in again}
        assert {1} == {job.failures for job in again if job.id == b.id}
        with pytest.raises(ClaimLostError):
            await queue.nack(a)


async def test_an_editor_may_replace_the_file(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        edited = path.with_name("edited")
        edited.write_bytes(b"# urgent\n-new\n\n-b\n-a\n")
        os.replace(edited, path)
        await queue.ack(a)
        assert path.read_bytes() == b"# urgent\n-new\n\n-b\n=a\n"
        await queue.enqueue("work", b"c", job_id="c")
        assert [b"new", b"b", b"c"] == [job.payload for job in await queue.dequeue(batch_size=9)]


async def test_a_message_edited_under_its_claim_is_another_job(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        path.write_bytes(b"-A\n-b\n")
        with pytest.raises(ClaimLostError):
            await queue.ack(a)
        assert path.read_bytes() == b"-A\n-b\n"


async def test_a_missing_file_is_an_error_until_it_is_back(path):
    async with queue_on(path) as queue:
        assert await queue.dequeue() == []
        assert not path.exists(), "reading creates no file"
        assert not journal_of(path).exists()
        await queue.enqueue("work", b"a")
        path.unlink()
        for call in (queue.dequeue, queue.read_state, lambda: queue.enqueue("work", b"b")):
            with pytest.raises(BlobMissingError):
                await call()
        path.touch()
        assert await queue.dequeue() == []


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
async def test_a_path_that_is_no_file_is_refused(path, kind):
    {
        "folder": lambda: path.mkdir(),
        "link": lambda: path.symlink_to("elsewhere"),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    async with queue_on(path) as queue:
        for call in (queue.dequeue, lambda: queue.enqueue("work", b"a")):
            with pytest.raises(StorageFatalError):
                await call()


async def test_a_new_file_has_the_mode_of_the_umask(path):
    before = os.umask(0o022)
    try:
        async with queue_on(path) as queue:
            await queue.enqueue("work", b"a")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on the files of others")
async def test_root_gives_the_files_beside_to_the_owner_of_the_queue(path):
    path.write_bytes(b"-a\n")
    os.chown(path, 12345, 12345)
    async with queue_on(path) as queue:
        await queue.ack((await queue.dequeue())[0])
    assert {12345} == {os.stat(other).st_uid for other in path.parent.iterdir()}
    assert len(list(path.parent.iterdir())) == 3


def test_a_store_is_pickled_without_its_content(path):
    path.write_bytes(b"-a\n")
    store = TextQueueFile(path, entrypoint="work", settle=0.5)
    store.scan(LATER)
    again = pickle.loads(pickle.dumps(store))
    assert [job.entrypoint for job, _ in again.scan(LATER)] == ["work"]
    path.unlink()
    for one in (store, again):
        with pytest.raises(StorageError):
            one.scan(LATER)


async def test_a_cancelled_job_can_be_enqueued_again_by_its_id(path):
    async with queue_on(path) as queue, queue_on(path) as other:
        await queue.enqueue("work", b"first", job_id="the-id")
        await queue.cancel("the-id")
        with pytest.raises(JobNotFoundError):
            await queue.cancel("the-id")
        job = await other.enqueue("work", b"second", job_id="the-id")
        assert (job.payload, job.status) == (b"second", JobStatus.QUEUED)
        await other.ack((await other.dequeue())[0])
        assert (await queue.enqueue("work", b"third", job_id="the-id")).status is JobStatus.COMPLETED
    assert b"#first" in path.read_bytes()


def test_two_processes_see_the_same_job(path):
    async def add(queue: StoreQueue) -> Job:
        return await queue.enqueue("work", b"payload", headers={"a": "ü"}, max_attempts=2)

    async def look(queue: StoreQueue) -> Job:
        [job] = (await queue.read_state()).jobs
        return job

    assert with_queue(path, add) == with_queue(path, look)


@pytest.mark.parametrize("verb", ["look", "heartbeat", "claim of another"])
async def test_messages_read_for_another_call_are_not_forgotten(path, verb):
    """Another call reads a file that changed long ago: a later dequeue still finds its messages."""
    path.write_bytes(b"-a\n\n")
    async with queue_on(path) as queue, queue_on(path) as other:
        [a] = await queue.dequeue()
        path.write_bytes(b"-a\n\n-b\n\n")
        os.utime(path, (0, 0))
        if verb == "look":
            assert len((await queue.read_state()).jobs) == 2
        elif verb == "heartbeat":
            await queue.heartbeat(a)
        else:
            [b] = await other.dequeue()
            await queue.heartbeat(a)
            await other.nack(b)
            await queue.heartbeat(a)
        assert [b"b"] == [job.payload for job in await queue.dequeue()]


async def test_one_thread_at_a_time_works_on_a_file(path):
    """Calls overlap here: one reads the state while another one carries out a change."""
    began, inside = threading.Event(), threading.Lock()

    class Watched(TextQueueFile):
        def scan(self, now):
            with alone():
                began.wait(0.2)  # gives a change the time to begin, if it can
                return super().scan(now)

        def carry_out(self, changes, now):
            began.set()
            with alone():
                return super().carry_out(changes, now)

    @contextmanager
    def alone():
        assert inside.acquire(blocking=False), "two threads at once"
        try:
            yield
        finally:
            inside.release()

    async with StoreQueue(Watched(path, fsync=False)) as queue:
        await queue.enqueue("work", b"a")
        began.clear()
        state, _ = await asyncio.gather(queue.read_state(), queue.enqueue("work", b"b"))
        assert len(state.jobs) in (1, 2)


def test_a_child_of_a_fork_reads_for_itself(path):
    store = TextQueueFile(path, fsync=False)
    path.write_bytes(b"-a\n\n")
    os.utime(path, (0, 0))
    assert len(store.scan(LATER)) == 1
    assert not store.may_have_changed()
    child = multiprocessing.get_context("fork").Process(target=_ends_well, args=(store,))
    child.start()
    child.join()
    assert child.exitcode == 0


def _ends_well(store: TextQueueFile) -> None:
    assert store.may_have_changed()
    assert len(store.scan(LATER)) == 1
    os._exit(0)
