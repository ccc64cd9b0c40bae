"""A TextQueue as a queue: what is written where, and what is left alone."""

import asyncio
import os
import pickle
from collections import Counter

import pytest

from jqueue import Job, JobNotFoundError, JobStatus, StorageError
from jqueue.adapters.formats._text_view import TextView
from jqueue.adapters.formats.textqueue import TextQueueFile
from jqueue.core.store_queue import StoreQueue
from jqueue.domain.errors import BlobMissingError, ClaimLostError, StorageFatalError
from tests.unit.formats.text_files import LATER, messages, on

PERSONS = b"# my list\n\n-one\n two\n\\state=new\n!old\n?what\n  lost\n=done\r\n-three"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


def queue_on(path, **options) -> StoreQueue:
    return StoreQueue(TextQueueFile(path, **{"fsync": False, "settle": 0.0, **options}))


def journal_of(path):
    return path.with_name(f".{path.name}.jq")


async def test_a_message_is_appended_whole_behind_what_is_there(path):
    path.write_bytes(PERSONS)
    os.utime(path, (0, 0))
    async with queue_on(path) as queue:
        await queue.enqueue("mail", b"line one\nline two\n", job_id="the-id", headers={"k": "v"}, max_attempts=3)
    head, _, rest = path.read_bytes().removeprefix(PERSONS).partition(b"\n-")
    assert head.startswith(b'\n#jq {"id":"the-id","ep":"mail","t":')
    assert head.endswith(b',"n":18,"h":{"k": "v"},"max":3}')
    assert rest == b"line one\n line two\n \n\n"


@pytest.mark.parametrize("payload", [b"", b"\n", b" a", b"-", b"#jq {", b"\x00", "grüß\u2028".encode(), b"a\n\n b\n"])
async def test_what_is_text_is_written_as_it_is(path, payload):
    async with queue_on(path) as queue:
        await queue.enqueue("work", payload)
        [job] = await queue.dequeue()
        assert payload == job.payload
    assert path.read_bytes().partition(b"\n")[2] == b"-" + payload.replace(b"\n", b"\n ") + b"\n\n"


@pytest.mark.parametrize("payload", [b"\r", b"a\r\nb", b"\xff", b"\xed\xa0\x80", bytes(range(256))])
async def test_what_is_no_text_is_written_in_base64(path, payload):
    async with queue_on(path) as queue:
        await queue.enqueue("work", payload)
        [job] = await queue.dequeue()
        assert payload == job.payload
    content = path.read_bytes()
    assert b'"enc":"b64"' in content
    assert content.isascii()
    assert b"\r" not in content


async def test_lines_may_be_kept_single_for_older_readers(path):
    async with queue_on(path, single_lines=True) as queue:
        await queue.enqueue("work", b"one\ntwo")
        await queue.enqueue("work", b"three")
        assert [b"one\ntwo", b"three"] == [job.payload for job in await queue.dequeue(batch_size=2)]
    assert b"\n " not in path.read_bytes()


async def test_one_byte_says_what_became_of_a_message(path):
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


async def test_a_message_that_would_become_a_note_is_not_cancelled_into_one(path):
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
            assert path.read_bytes() == b"-a\n!b\n=c\n", "the other one does not hide"


async def test_what_an_older_reader_has_finished_is_finished(path):
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


async def test_what_somebody_queues_again_by_hand_is_done_again_by_a_new_attempt(path):
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


async def test_an_editor_may_put_another_file_in_its_place(path):
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


async def test_a_message_that_was_edited_while_it_was_claimed_is_another(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        path.write_bytes(b"-A\n-b\n")
        with pytest.raises(ClaimLostError):
            await queue.ack(a)
        assert path.read_bytes() == b"-A\n-b\n"


async def test_a_file_that_is_gone_is_an_error_until_it_is_back(path):
    async with queue_on(path) as queue:
        assert await queue.dequeue() == []
        assert not path.exists(), "looking makes nothing"
        assert not journal_of(path).exists()
        await queue.enqueue("work", b"a")
        path.unlink()
        for call in (queue.dequeue, queue.read_state, lambda: queue.enqueue("work", b"b")):
            with pytest.raises(BlobMissingError):
                await call()
        path.touch()
        assert await queue.dequeue() == []


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
async def test_what_is_no_file_is_refused(path, kind):
    {
        "folder": lambda: path.mkdir(),
        "link": lambda: path.symlink_to("elsewhere"),
        "pipe": lambda: os.mkfifo(path),
    }[kind]()
    async with queue_on(path) as queue:
        for call in (queue.dequeue, lambda: queue.enqueue("work", b"a")):
            with pytest.raises(StorageFatalError):
                await call()


async def test_the_file_has_the_mode_that_whoever_appends_would_give_it(path):
    before = os.umask(0o022)
    try:
        async with queue_on(path) as queue:
            await queue.enqueue("work", b"a")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works on the files of others")
async def test_root_leaves_a_user_the_files_beside(path):
    path.write_bytes(b"-a\n")
    os.chown(path, 12345, 12345)
    async with queue_on(path) as queue:
        await queue.ack((await queue.dequeue())[0])
    assert {12345} == {os.stat(other).st_uid for other in path.parent.iterdir()}
    assert len(list(path.parent.iterdir())) == 3


# What others are still writing


async def seen(path, age: float, **options) -> list[bytes]:
    """The payloads that are handed out when the file was last changed so many seconds ago."""
    now = LATER.timestamp()
    os.utime(path, (now - age, now - age))
    store = TextQueueFile(path, **options)
    ready = [kept for kept in store.scan(LATER) if kept.job.run_at is None or kept.job.run_at <= LATER]
    return [job.payload for job in store.payloads(ready)]


@pytest.mark.parametrize(
    ("content", "age", "expected"),
    [
        (b"-a\n-b\n", 0.1, [b"a"]),
        (b"-a\n-b\n", 0.3, [b"a", b"b"]),
        (b"-a\n-b\n\n", 0.0, [b"a", b"b"]),
        (b"-a\n-b\n#c\n", 0.0, [b"a", b"b"]),
        (b"-a\n-b", 0.9, [b"a"]),
        (b"-a\n-b", 1.1, [b"a", b"b"]),
        (b"-a\n-b\n more", 0.9, [b"a"]),
        (b"-a\n-b\n", -30.0, [b"a"]),
        (b"-a\n-b\n", -1e9, [b"a"]),
    ],
)
async def test_the_last_message_of_others_waits_until_it_is_whole(path, content, age, expected):
    path.write_bytes(content)
    assert expected == await seen(path, age)


async def test_a_queue_finds_the_last_message_when_it_has_settled_though_nothing_changes(path):
    async with queue_on(path, settle=0.05) as queue:
        path.write_bytes(b"-a\n")
        [job] = await queue.dequeue(wait=20)
        assert job.payload == b"a"


async def test_marks_of_others_do_not_keep_the_last_message_waiting(path):
    path.write_bytes(b"-a\n-b\n")
    now = LATER.timestamp()
    os.utime(path, (now - 10, now - 10))
    store = TextQueueFile(path)
    before = {kept.job.id: kept.job.run_at for kept in store.scan(LATER)}
    path.write_bytes(b"=a\n-b\n")
    os.utime(path, (now, now))
    [kept] = store.scan(LATER)
    assert before[kept.job.id] == kept.job.run_at


async def test_nothing_is_appended_behind_a_line_that_another_program_is_writing(path):
    path.write_bytes(b"-a\n-par")
    async with queue_on(path) as queue:
        adding = asyncio.create_task(queue.enqueue("work", b"ours"))
        with open(path, "ab") as file:
            for _ in range(1000):
                await asyncio.sleep(0)
            file.write(b"tial\n")
        await adding
        assert path.read_bytes().startswith(b"-a\n-partial\n#jq {")
        assert [b"a", b"partial", b"ours"] == [job.payload for job in await queue.dequeue(batch_size=9)]


TORN = b'#jq {"id":"torn","ep":"work","t":1,"n":9}\n-123456789\n\n'


@pytest.mark.parametrize("length", range(len(TORN) + 1))
async def test_a_message_of_ours_that_was_cut_anywhere_is_none(path, length):
    path.write_bytes(b"-a\n" + TORN[:length])
    os.utime(path, (0, 0))
    whole = length >= len(TORN) - 2
    async with queue_on(path) as queue:
        before = [job.payload for job in (await queue.read_state()).jobs]
        await queue.enqueue("work", b"ours", job_id="ours")
        payloads = [job.payload for job in await queue.dequeue(batch_size=9)]
        again = await queue.enqueue("work", b"123456789", job_id="torn")
        assert again.status is (JobStatus.IN_PROGRESS if whole else JobStatus.QUEUED)
    with open(path, "ab") as file:
        file.write(b"-theirs\n more\n")
    expected = [b"a", b"123456789"] if whole else [b"a"]
    assert (expected, [*expected, b"ours"]) == (before, payloads)
    assert {b"a", b"123456789", b"ours", b"theirs\nmore"} == {payload for _, payload in messages(path)}


async def test_a_line_of_others_behind_a_note_without_its_message_is_not_taken_for_it(path):
    path.write_bytes(TORN[: TORN.index(b"-")])
    async with queue_on(path) as queue:
        await queue.enqueue("work", b"ours", job_id="ours")
    assert b"\n\n#jq" in path.read_bytes()


async def test_a_file_that_is_replaced_while_it_is_changed_is_changed_again(path, monkeypatch):
    """By an editor that puts a new file in the place of the old one between our look and our write."""
    path.write_bytes(b"-a\n-b\n")
    real_pwrite = os.pwrite

    def pwrite_too_late(descriptor, content, offset):
        monkeypatch.undo()
        edited = path.with_name("edited")
        edited.write_bytes(b"-a\n-b\n-c\n")
        os.replace(edited, path)
        return real_pwrite(descriptor, content, offset)

    async with queue_on(path) as queue:
        a, _ = await queue.dequeue(batch_size=2)
        monkeypatch.setattr("jqueue.adapters.formats._text_changes.os.pwrite", pwrite_too_late)
        await queue.ack(a)
    assert path.read_bytes() == b"=a\n-b\n-c\n"


def test_a_store_is_pickled_without_what_it_has_read(path):
    path.write_bytes(b"-a\n")
    store = TextQueueFile(path, entrypoint="work", settle=0.5)
    store.scan(LATER)
    again = pickle.loads(pickle.dumps(store))
    assert [job.entrypoint for job, _ in again.scan(LATER)] == ["work"]
    path.unlink()
    for one in (store, again):
        with pytest.raises(StorageError):
            one.scan(LATER)


async def test_what_was_cancelled_can_be_enqueued_again_by_its_id(path):
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

    assert on(path, add) == on(path, look)


async def test_a_file_from_the_future_is_whole_in_a_moment(path):
    path.write_bytes(b"-a\n")
    os.utime(path, (4e9, 4e9))
    async with queue_on(path, settle=0.05) as queue:
        assert [b"a"] == [job.payload for job in await queue.dequeue(wait=20)]


# What a change costs, and what it looks at


def edit_before_the_change(monkeypatch, path, content: bytes) -> None:
    """Have somebody edit the file in place after we have read it for a change, and before we make it."""
    real_read = TextView.read

    def read_and_edit(view, now, *, locked=False):
        real_read(view, now, locked=locked)
        if locked:
            monkeypatch.setattr(TextView, "read", real_read)
            path.write_bytes(content)

    monkeypatch.setattr(TextView, "read", read_and_edit)


async def test_a_message_that_has_moved_in_this_very_moment_is_found_where_it_is(path, monkeypatch):
    path.write_bytes(b"-one\n-two\n-three\n")
    async with queue_on(path) as queue:
        one, two = await queue.dequeue(batch_size=2)
        edit_before_the_change(monkeypatch, path, b"# here are\n-one\n-two\n-three\n")
        await queue.ack(one)
        assert path.read_bytes() == b"# here are\n=one\n-two\n-three\n"
        edit_before_the_change(monkeypatch, path, b"-two\n-three\n=one\n")
        [three] = await queue.dequeue()
        assert three.payload == b"three"
        edit_before_the_change(monkeypatch, path, b"-TWO\n-three\n=one\n")
        with pytest.raises(ClaimLostError):
            await queue.ack(two)
        assert path.read_bytes() == b"-TWO\n-three\n=one\n"


async def test_a_message_that_somebody_finishes_in_this_very_moment_is_not_handed_out(path, monkeypatch):
    path.write_bytes(b"-one\n-two\n")
    async with queue_on(path) as queue:
        edit_before_the_change(monkeypatch, path, b"=one\n-two\n")
        assert [b"two"] == [job.payload for job in await queue.dequeue()]


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """How often files were written to and flushed."""
    counted: Counter[str] = Counter()
    for name in ("write", "pwrite", "fsync"):

        def call(descriptor, *arguments, name=name, real=getattr(os, name)):  # noqa: B008 - each its own
            where = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
            counted[f"{name} {where}"] += 1
            return real(descriptor, *arguments)

        monkeypatch.setattr(os, name, call)
    return counted


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="only Linux tells which file is written to")
async def test_what_is_done_together_is_written_together(path, calls):
    path.write_bytes(b"-before\n")
    async with queue_on(path, fsync=True) as queue:
        await queue.ack((await queue.dequeue())[0])

        async def costs(*work) -> dict[str, int]:
            calls.clear()
            await asyncio.gather(*work)
            return dict(calls)

        adding = [queue.enqueue("work", b"%d" % number) for number in range(5)]
        assert await costs(*adding) == {"write queue.tq": 1, "fsync queue.tq": 1}
        jobs: list[Job] = []

        async def claim() -> None:
            jobs.extend(await queue.dequeue(batch_size=5))

        assert await costs(claim()) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        assert await costs(queue.heartbeat_many(jobs)) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        giving_back = [queue.nack(job) for job in jobs[3:]]
        assert await costs(*giving_back) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        finishing = [queue.ack(job) for job in jobs[:3]]
        assert await costs(*finishing) == {"pwrite queue.tq": 3, "fsync queue.tq": 1, "write .queue.tq.jq": 1}
        assert await costs(queue.dequeue("other"), queue.read_state()) == {}


async def test_without_fsync_nothing_is_flushed(path, calls):
    async with queue_on(path) as queue:
        await queue.enqueue("work", b"a")
        await queue.ack((await queue.dequeue())[0])
        await queue.enqueue("work", b"b")
        [job] = await queue.dequeue()
        calls.clear()
        await queue.ack(job)
    assert not [name for name in calls if name.startswith("fsync")]
