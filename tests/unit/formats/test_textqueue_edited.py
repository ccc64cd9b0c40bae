"""Messages that people edit in the file while a queue object knows them are served in their edited form."""

import errno
from pathlib import Path

import pytest

from jqueue import ClaimLostError, Job, JobStatus
from jqueue.formats.queue import StoreQueue
from tests.file_faults import failing
from tests.unit.formats.text_files import queue_on


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.tq"


@pytest.fixture
def queue(path: Path) -> StoreQueue:
    return queue_on(path)


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert 1 == content.count(old)
    path.write_bytes(content.replace(old, new))


async def test_a_claim_gets_the_text_that_the_file_has_at_that_moment(path: Path, queue: StoreQueue) -> None:
    await queue.enqueue("work", b"one")
    edit(path, b"-one", b"-two")
    [job] = await queue.dequeue("work")
    assert b"two" == job.payload
    await queue.nack(job)
    edit(path, b"-two", b"-three\n and more")
    assert [] == await queue.dequeue("other")
    [job] = await queue.dequeue("work")
    assert b"three\nand more" == job.payload


async def test_a_claim_gets_the_note_that_the_file_has_at_that_moment(path: Path, queue: StoreQueue) -> None:
    await queue.enqueue("work", b"one", headers={"to": "Ada"}, max_attempts=3)
    edit(path, b"Ada", b"Bob")
    edit(path, b'"max":3', b'"max":9')
    [job] = await queue.dequeue("work")
    assert ({"to": "Bob"}, 9) == (dict(job.headers), job.max_attempts)


@pytest.mark.parametrize("looked", [True, False])
async def test_a_message_edited_to_another_entrypoint_belongs_to_it(
    path: Path, queue: StoreQueue, looked: bool
) -> None:
    job = await queue.enqueue("work", b"one")
    if looked:
        assert [] == await queue.dequeue("other")
    edit(path, b'"ep":"work"', b'"ep":"other"')
    assert [] == await queue.dequeue("work")
    [claimed] = await queue.dequeue("other")
    assert (job.id, "other") == (claimed.id, claimed.entrypoint)


@pytest.fixture(params=["ours", "theirs"])
async def claimed(request: pytest.FixtureRequest, path: Path, queue: StoreQueue) -> Job:
    """Return a claimed message that we or another program wrote."""
    if request.param == "ours":
        await queue.enqueue("work", b"one")
    else:
        path.write_bytes(b"-one\n\n")
    [job] = await queue.dequeue()
    return job


@pytest.mark.parametrize("who", ["its worker", "an operator"])
@pytest.mark.parametrize("mark", [b"!", b"=", b"#"])
async def test_a_message_marked_under_our_claim_and_queued_again_by_hand_is_served_at_once(
    path: Path, queue: StoreQueue, claimed: Job, mark: bytes, who: str
) -> None:
    edit(path, b"-one", mark + b"one")
    if who == "its worker":
        with pytest.raises(ClaimLostError):
            await queue.heartbeat(claimed)
    else:
        assert 0 == (await queue_on(path).stats()).in_progress
    edit(path, mark + b"one", b"-one")
    for reader in (queue_on(path), queue):
        assert [JobStatus.QUEUED] == [job.status for job in (await reader.read_state()).jobs]
    [again] = await queue.dequeue()
    assert (claimed.id, b"one", 2) == (again.id, again.payload, again.attempt)
    with pytest.raises(ClaimLostError):
        await queue.nack(claimed)
    await queue.ack(again)


async def test_a_message_that_failed_by_hand_under_our_claim_is_redriven_at_once(
    path: Path, queue: StoreQueue, claimed: Job
) -> None:
    edit(path, b"-one", b"!one")
    assert 1 == await queue.redrive()
    [again] = await queue.dequeue()
    assert (claimed.id, 2, 1) == (again.id, again.attempt, again.failures)


async def test_a_hidden_message_that_failed_by_hand_is_no_longer_claimed(path: Path) -> None:
    queue = queue_on(path, hide=True)
    await queue.enqueue("work", b"one")
    [job] = await queue.dequeue()
    edit(path, b"=one", b"!one")
    assert (0, 1) == ((stats := await queue_on(path).stats()).in_progress, stats.dead)
    edit(path, b"!one", b"-one")
    [again] = await queue.dequeue()
    assert (job.id, 2) == (again.id, again.attempt)


async def test_the_end_of_a_claim_is_known_although_the_journal_cannot_be_written(
    path: Path, queue: StoreQueue, claimed: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(path, b"-one", b"!one")
    monkeypatch.setattr("jqueue.formats.textqueue.journal.write_all", failing(errno.ENOSPC))
    assert (0, 1) == ((stats := await queue.stats()).in_progress, stats.dead)
