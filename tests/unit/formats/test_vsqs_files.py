"""A folder of vsqs as a queue: its messages, their names, and the files that are never touched."""

import os
import shutil

import pytest

from jqueue import ClaimLostError, JobStatus, JQueueError
from jqueue.domain.errors import BlobMissingError
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.formats.journal import Journal
from jqueue.testing.fake_clock import FakeClock
from tests.unit.formats.places import filled, names
from tests.unit.formats.places import open_vsqs as queue_on

NOW = 1_767_225_600_000_000
"""Time of a new FakeClock, in microseconds since 1970."""

ODD = ("+7", "1_5", "0100", "5.-1", "5.123.jq", "5.", "README", "abc", "17.new", "5.123.456.7")


async def test_the_name_is_the_time_and_the_content_the_payload(tmp_path):
    clock = FakeClock()
    queue = queue_on(tmp_path / "a" / "b", clock)
    job = await queue.enqueue("work", b"\x00\r\npayload")
    assert [str(NOW)] == names(tmp_path / "a" / "b")
    assert b"\x00\r\npayload" == (tmp_path / "a" / "b" / str(NOW)).read_bytes()
    [claimed] = await queue.dequeue(claim_timeout=10)
    assert (job.id, b"\x00\r\npayload") == (claimed.id, claimed.payload)
    assert [f"{NOW}.{NOW + 10_000_000}"] == names(tmp_path / "a" / "b")
    clock.advance(1)
    await queue.heartbeat(claimed)
    assert [f"{NOW}.{NOW + 11_000_000}"] == names(tmp_path / "a" / "b")
    await queue.ack(claimed)
    assert [] == names(tmp_path / "a" / "b")


async def test_messages_are_served_by_their_times_in_any_unit(tmp_path):
    plain = {str(NOW - 5): b"3", "1415776871123": b"2", "99": b"1", str(NOW - 4): b"4"}
    folder = filled(tmp_path / "mixed", plain)
    queue = queue_on(folder, FakeClock())
    jobs = await queue.dequeue(batch_size=9)
    assert [b"1", b"2", b"3", b"4"] == [job.payload for job in jobs]
    assert ["99", "1415776871123", str(NOW - 5), str(NOW - 4)] == [job.id for job in jobs]
    assert {"mixed"} == {job.entrypoint for job in jobs}
    assert 2014 == jobs[1].created_at.year


def contents(folder):
    """Return the folders and files below a folder, without those of jqueue."""
    walked = sorted(os.walk(folder))
    return [(path, *(sorted(name for name in names if name[:8] != ".jqueue-") for names in lists))
            for path, *lists in walked]  # fmt: skip


async def test_files_that_are_no_messages_are_neither_served_nor_touched(tmp_path):
    folder = filled(tmp_path, dict.fromkeys(ODD, b"odd"))
    (folder / "6").mkdir()
    (folder / "6" / "7").write_bytes(b"in a folder")
    (folder / "8").symlink_to(folder / "nowhere")
    (folder / "9").symlink_to(folder / "README")
    os.mkfifo(folder / "10")
    before = contents(folder)
    queue = queue_on(folder)
    assert [] == await queue.dequeue(batch_size=9)
    assert () == (await queue.read_state()).jobs
    job = await queue.enqueue("work", b"one")
    [claimed] = await queue.dequeue(batch_size=9)
    await queue.ack(claimed)
    assert job.id == claimed.id
    assert before == contents(folder)


async def test_expired_claims_of_other_programs_are_served_before_younger_messages(tmp_path):
    files = {f"5.{NOW - 1}": b"oldest", f"6.{NOW - 1}.0": b"float", "7": b"young", f"8.{NOW + 5_000_000}": b"held"}
    clock = FakeClock()
    queue = queue_on(filled(tmp_path, files), clock)
    jobs = await queue.dequeue(batch_size=9, claim_timeout=1)
    assert [b"oldest", b"float", b"young"] == [job.payload for job in jobs]
    assert [2, 2, 1] == [job.attempt for job in jobs], "a claim of vsqs counts as an attempt"
    state = await queue.read_state()
    assert [JobStatus.IN_PROGRESS] * 4 == [job.status for job in state.jobs]
    clock.advance(5)
    assert [b"oldest", b"float", b"young", b"held"] == [job.payload for job in await queue.dequeue(batch_size=9)]


async def test_an_expired_claim_keeps_its_place_and_a_nacked_job_does_not(tmp_path):
    clock = FakeClock()
    queue = queue_on(filled(tmp_path, {"5": b"1", "6": b"2"}), clock)
    [first] = await queue.dequeue(claim_timeout=5)
    clock.advance(5)
    [again] = await queue.dequeue(claim_timeout=5)
    assert (first.id, 2) == (again.id, again.attempt)
    await queue.nack(again)
    assert [b"2", b"1"] == [job.payload for job in await queue.dequeue(batch_size=2)]


async def test_a_message_does_not_replace_another_with_the_same_number(tmp_path):
    clock = FakeClock()
    queue = queue_on(filled(tmp_path, {"300": b"ready", f"300.{NOW - 1}": b"expired"}), clock)
    jobs = await queue.dequeue(batch_size=9, claim_timeout=5)
    assert [b"ready", b"expired"] == sorted((job.payload for job in jobs), reverse=True)
    assert 2 == len({job.id for job in jobs})
    clock.advance(5)
    again = await queue.dequeue(batch_size=9, claim_timeout=5)
    assert {b"ready", b"expired"} == {job.payload for job in again}
    for job in again:
        await queue.nack(job, charge=False)
    assert {b"ready", b"expired"} == {job.payload for job in await queue.dequeue(batch_size=9)}


@pytest.mark.parametrize("name", ["{}", f"{{}}.{NOW + 99}", f"{{}}.{NOW - 99}", "{}.new"])
async def test_a_number_that_is_taken_is_not_used_again(tmp_path, name):
    taken = name.format(NOW)
    queue = queue_on(filled(tmp_path, {taken: b"first"}), FakeClock())
    await queue.enqueue("work", b"second")
    assert str(NOW + 1) in names(tmp_path)
    assert {b"first", b"second"} == {(tmp_path / name).read_bytes() for name in names(tmp_path)}


async def test_only_unfinished_files_older_than_an_hour_are_removed(tmp_path):
    clock = FakeClock()
    filled(tmp_path, {"1.new": b"old", "2.new": b"young"})
    os.utime(tmp_path / "1.new", (NOW / 1e6 - 3601,) * 2)
    os.utime(tmp_path / "2.new", (NOW / 1e6 - 3500,) * 2)
    queue = queue_on(tmp_path, clock)
    assert [] == await queue.dequeue()
    assert ["1.new", "2.new"] == names(tmp_path), "reading changes nothing"
    await queue.enqueue("work", b"")
    assert [str(NOW), "2.new"] == names(tmp_path)


async def test_a_claim_that_another_program_took_over_cannot_be_ended(tmp_path):
    queue = queue_on(filled(tmp_path, {"5": b""}))
    [job] = await queue.dequeue()
    [name] = names(tmp_path)
    os.rename(tmp_path / name, tmp_path / "5")  # another program finds it expired, by its clock
    os.rename(tmp_path / "5", tmp_path / f"5.{2 * NOW}")  # and claims it
    for call in (queue.ack, queue.nack, queue.heartbeat):
        with pytest.raises(ClaimLostError):
            await call(job)
    assert [f"5.{2 * NOW}"] == names(tmp_path)


async def test_a_claim_that_is_seen_before_its_line_in_the_journal_is_read_again(tmp_path, monkeypatch):
    clock = FakeClock()
    queue, other = queue_on(filled(tmp_path, {"5": b""}), clock), queue_on(tmp_path, clock)
    await queue.read_state()
    write, other_reads = Journal.write, [other.store.scan]

    def late(*arguments, **options):
        if other_reads:
            [seen] = other_reads.pop()(clock.now())
            assert 10 == seen.job.claim_timeout, "the default of vsqs"
        write(*arguments, **options)

    monkeypatch.setattr(Journal, "write", late)
    await queue.dequeue(claim_timeout=3600)
    [seen] = other.store.scan(clock.now())
    assert 3600 == seen.job.claim_timeout


@pytest.mark.parametrize("end", [{"dead": True}, {"charge": False}])
async def test_a_folder_that_has_disappeared_is_not_made_again_by_the_end_of_a_claim(end, tmp_path):
    queue = queue_on(tmp_path / "queue")
    await queue.enqueue("work", b"")
    [job] = await queue.dequeue()
    shutil.rmtree(tmp_path / "queue")
    with pytest.raises(BlobMissingError):
        await queue.nack(job, **end)
    assert not (tmp_path / "queue").exists()


async def test_a_message_whose_claim_cannot_be_noted_stays_ready(tmp_path):
    (tmp_path / ".jqueue-journal.lock").mkdir()
    async with queue_on(filled(tmp_path, {"5": b""})) as queue:
        with pytest.raises(JQueueError):
            await queue.apply_each(Dequeue(), deadline=0.1)
    assert ["5"] == names(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
async def test_a_message_that_cannot_be_read_holds_up_no_other_one(tmp_path):
    queue = queue_on(filled(tmp_path, {"5": b"secret", "6": b"payload"}))
    (tmp_path / "5").chmod(0)
    assert [b"payload"] == [job.payload for job in await queue.dequeue(batch_size=9)]


async def test_a_new_message_of_the_number_of_a_finished_one_has_no_attempts(tmp_path):
    queue = queue_on(tmp_path)
    for payload in (b"first", b"second"):
        filled(tmp_path, {"5": payload})
        [job] = await queue.dequeue()
        assert (payload, 1) == (job.payload, job.attempt)
        await queue.ack(job)
