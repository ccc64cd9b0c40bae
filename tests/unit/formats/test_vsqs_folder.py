"""A folder of vsqs as a queue: its messages, their names, and the files that are never touched."""

import asyncio
import os
import shutil
import stat

import pytest

from jqueue import ClaimLostError, InvalidJobError, JobStatus, QueueFullError, StorageError
from jqueue.domain.errors import BlobMissingError
from jqueue.domain.operations import Enqueue
from jqueue.formats.files.notes import HAS_ATTRIBUTES, read_note
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.folder_reader import FolderReader
from jqueue.formats.vsqs.names import Unit
from jqueue.formats.vsqs.numbers import Numbers
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.fake_clock import FakeClock
from tests.unit.formats.folders import NOW, filled, names, queue_on
from tests.unit.until_deadline import run_until_deadline

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


async def test_names_are_in_milliseconds_if_the_unit_is_set(tmp_path):
    queue = queue_on(tmp_path, FakeClock(), unit="ms")
    await queue.enqueue("work", b"1")
    await queue.enqueue("work", b"2", delay=60)
    milliseconds = NOW // 1000
    assert [f"{milliseconds}", f"{milliseconds + 1}.{milliseconds + 60_000}"] == names(tmp_path)
    [job] = await queue.dequeue(claim_timeout=10)
    assert f"{milliseconds}.{milliseconds + 10_000}" == names(tmp_path)[0]
    await queue.ack(job)


async def test_messages_are_served_by_their_times_in_any_unit(tmp_path):
    plain = {str(NOW - 5): b"3", "1415776871123": b"2", "99": b"1", str(NOW - 4): b"4"}
    folder = filled(tmp_path / "mixed", plain)
    queue = queue_on(folder, FakeClock())
    jobs = await queue.dequeue(batch_size=9)
    assert [b"1", b"2", b"3", b"4"] == [job.payload for job in jobs]
    assert ["99", "1415776871123", str(NOW - 5), str(NOW - 4)] == [job.id for job in jobs]
    assert {"mixed"} == {job.entrypoint for job in jobs}
    assert 2014 == jobs[1].created_at.year


async def test_the_entrypoint_of_foreign_messages_can_be_given(tmp_path):
    queue = queue_on(filled(tmp_path, {"5": b""}), entrypoint="resize")
    assert [] == await queue.dequeue("work")
    [job] = await queue.dequeue("resize")
    assert ("resize", b"", 1) == (job.entrypoint, job.payload, job.attempt)


async def test_files_that_are_no_messages_are_neither_served_nor_touched(tmp_path):
    folder = filled(tmp_path, dict.fromkeys(ODD, b"odd"))
    (folder / "6").mkdir()
    (folder / "6" / "7").write_bytes(b"in a folder")
    (folder / "8").symlink_to(folder / "nowhere")
    (folder / "9").symlink_to(folder / "README")
    os.mkfifo(folder / "10")
    before = sorted(os.walk(folder))
    queue = queue_on(folder)
    assert [] == await queue.dequeue(batch_size=9)
    assert () == (await queue.read_state()).jobs
    job = await queue.enqueue("work", b"one")
    [claimed] = await queue.dequeue(batch_size=9)
    await queue.ack(claimed)
    assert job.id == claimed.id
    assert [(path, folders, [name for name in files if name != ".jqueue-acked"]) for path, folders, files in
            sorted(os.walk(folder))] == before  # fmt: skip


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


async def test_two_dead_messages_with_one_number_are_both_kept(tmp_path):
    queue = queue_on(filled(tmp_path, {"300": b"ready", f"300.{NOW - 1}": b"expired"}), FakeClock())
    jobs = await queue.dequeue(batch_size=9)
    for job in jobs:
        await queue.nack(job, dead=True)
    assert [JobStatus.DEAD] * 2 == [job.status for job in (await queue.read_state()).jobs]
    assert {b"ready", b"expired"} == {job.payload for job in (await queue.read_state()).jobs}


@pytest.mark.parametrize("name", ["{}", f"{{}}.{NOW + 99}", f"{{}}.{NOW - 99}", "{}.new"])
async def test_a_number_that_is_taken_is_not_used_again(tmp_path, name):
    taken = name.format(NOW)
    queue = queue_on(filled(tmp_path, {taken: b"first"}), FakeClock())
    await queue.enqueue("work", b"second")
    assert str(NOW + 1) in names(tmp_path)
    assert {b"first", b"second"} == {(tmp_path / name).read_bytes() for name in names(tmp_path)}


async def test_new_messages_come_behind_all_others_except_numbers_that_are_no_time(tmp_path):
    queue = queue_on(filled(tmp_path, {str(NOW + 1000): b"", "9" * 20: b""}), FakeClock())
    await queue.enqueue("work", b"")
    assert [str(NOW + 1000), str(NOW + 1001), "9" * 20] == names(tmp_path)
    assert 3 == len(await queue.dequeue(batch_size=9))


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


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
async def test_a_message_file_has_the_mode_of_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        await queue_on(tmp_path / "queue").enqueue("work", b"")
    finally:
        os.umask(before)
    [name] = names(tmp_path / "queue")
    assert mode == stat.S_IMODE((tmp_path / "queue" / name).stat().st_mode)


# Capacity


async def test_a_full_queue_refuses_jobs_and_counts_hidden_ones(tmp_path):
    queue = queue_on(tmp_path, capacity=3)
    await queue.enqueue("work", b"1")
    await queue.enqueue("work", b"2", delay=60)
    [job] = await queue.dequeue()
    await queue.enqueue("work", b"3")
    with pytest.raises(QueueFullError, match="no room"):
        await queue.enqueue("work", b"4")
    assert 3 == len(names(tmp_path)), "the reserved space is given back"
    await queue.ack(job)
    await queue.enqueue("work", b"4")


async def test_the_first_enqueues_get_the_free_space(tmp_path):
    queue = queue_on(tmp_path, capacity=3)
    answers = await asyncio.gather(*(queue.enqueue("work", b"%d" % n) for n in range(5)), return_exceptions=True)
    assert [b"0", b"1", b"2"] == [answer.payload for answer in answers[:3] if not isinstance(answer, BaseException)]
    assert [QueueFullError] * 2 == [type(answer) for answer in answers[3:]]
    results = await queue.apply_each(*[Enqueue("work", b"")] * 2)
    assert [QueueFullError] * 2 == [type(result) for result in results]
    assert 3 == len(names(tmp_path))


async def test_an_enqueue_waits_for_free_space_if_when_full_is_wait(tmp_path):
    queue = queue_on(tmp_path, capacity=1, when_full="wait")
    await queue.enqueue("work", b"1")
    with pytest.raises(QueueFullError, match="no room"):
        await run_until_deadline(queue, queue.enqueue("work", b"2"))
    waiting = asyncio.create_task(queue.enqueue("work", b"3"))
    [job] = await queue.dequeue()
    await queue.ack(job)
    assert b"3" == (await waiting).payload
    assert 1 == len(names(tmp_path))


async def test_an_enqueue_on_a_full_queue_changes_nothing_in_the_folder(tmp_path):
    """Otherwise enqueues that wait for space would wake themselves and each other all the time."""
    queue = queue_on(tmp_path, capacity=1)
    await queue.enqueue("work", b"1")
    os.utime(tmp_path, (0, 0))
    with pytest.raises(QueueFullError):
        await queue.enqueue("work", b"2")
    assert 0 == tmp_path.stat().st_mtime


async def test_unfinished_files_count_against_the_capacity_until_they_are_old(tmp_path):
    filled(tmp_path, {"1.new": b"old", "2.new": b"young"})
    os.utime(tmp_path / "1.new", (NOW / 1e6 - 3601,) * 2)
    os.utime(tmp_path / "2.new", (NOW / 1e6 - 1,) * 2)
    queue = queue_on(tmp_path, FakeClock(), capacity=2)
    await queue.enqueue("work", b"")
    with pytest.raises(QueueFullError):
        await queue.enqueue("work", b"")


def test_only_one_of_two_concurrent_reservations_gets_the_last_space(tmp_path):
    now = FakeClock().now()
    one, other = (Numbers(str(tmp_path), Unit.MICROSECONDS, 1) for _ in range(2))
    first = one.reserve(1, now)
    second = other.reserve(1, now)
    assert (1, 0) == (first.free, second.free)
    assert first.numbers < second.numbers


def test_a_reservation_under_a_capacity_takes_a_larger_number_than_it_sees(tmp_path):
    now = FakeClock().now()
    filled(tmp_path, {f"{NOW + 5}.new": b""})
    os.utime(tmp_path / f"{NOW + 5}.new", (NOW / 1e6,) * 2)
    assert [NOW + 6] == Numbers(str(tmp_path), Unit.MICROSECONDS, 2).reserve(1, now).numbers
    assert [NOW] == Numbers(str(tmp_path), Unit.MICROSECONDS, None).reserve(1, now).numbers


@pytest.mark.parametrize("wrong", [{"unit": "s"}, {"capacity": 0}, {"when_full": "drop"}])
def test_wrong_options_are_refused(tmp_path, wrong):
    with pytest.raises(InvalidJobError):
        VsqsFolder(tmp_path, **wrong)


# Missing folders


async def test_a_folder_that_vanished_is_not_an_empty_queue(tmp_path):
    folder = tmp_path / "queue"
    queue = queue_on(folder)
    assert [] == await queue.dequeue(), "it was never there"
    await queue.enqueue("work", b"")
    [job] = await queue.dequeue()
    shutil.rmtree(folder)
    for call in (queue.dequeue, queue.read_state, lambda: queue.enqueue("work", b"")):
        with pytest.raises(BlobMissingError, match="has disappeared"):
            await call()
    assert not folder.exists(), "an enqueue must not begin a new one in its place"
    folder.mkdir()
    assert [] == await queue.dequeue()
    with pytest.raises(ClaimLostError):
        await queue.ack(job)


async def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "queue").write_bytes(b"")
    queue = queue_on(tmp_path / "queue", deadline=1)
    for call in (queue.dequeue, lambda: queue.enqueue("work", b"")):
        with pytest.raises(StorageError):
            await call()


# Fencing, and changes by other programs


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


async def test_no_two_claims_of_a_message_have_the_same_name(tmp_path):
    clock = FakeClock()
    queue, other = queue_on(filled(tmp_path, {"5": b""}), clock), queue_on(tmp_path, clock)
    [job] = await queue.dequeue(claim_timeout=10)
    first = names(tmp_path)
    await other.read_state()
    await queue.nack(job, charge=False)
    [again] = await other.dequeue(claim_timeout=10)
    assert first != names(tmp_path)
    with pytest.raises(ClaimLostError):
        await queue.ack(job)
    await other.ack(again)


async def test_a_change_by_another_program_is_always_seen_at_the_next_call(tmp_path):
    one, other = queue_on(tmp_path), queue_on(tmp_path)
    for number in range(50):
        job = await one.enqueue("work", b"%d" % number)
        [claimed] = await other.dequeue()
        assert job.id == claimed.id
        await other.nack(claimed, charge=False)
        [again] = await one.dequeue()
        assert 2 == again.attempt
        await one.ack(again)
        assert () == (await other.read_state()).jobs


async def test_an_invalid_note_attribute_is_ignored(tmp_path):
    filled(tmp_path, {"5": b"a", "6": b"b", "7": b"c"})
    if HAS_ATTRIBUTES:
        os.setxattr(tmp_path / "5", "user.jqueue", b"not JSON")
        os.setxattr(tmp_path / "6", "user.jqueue", b'{"attempt": "many", "headers": 7}')
        os.setxattr(tmp_path / "7", "user.jqueue", b"[1]")
    jobs = await queue_on(tmp_path).dequeue(batch_size=9)
    assert [b"a", b"b", b"c"] == [job.payload for job in jobs]


async def test_ids_stay_when_messages_move(tmp_path):
    queue = queue_on(filled(tmp_path, {"5": b""}))
    [job] = await queue.dequeue()
    await queue.nack(job)
    assert ["5"] != names(tmp_path)
    [again] = await queue.dequeue()
    assert ("5", 2) == (again.id, again.attempt)
    await queue.nack(again, dead=True)
    assert [] == names(tmp_path)
    [dead] = (await queue.read_state()).jobs
    assert ("5", JobStatus.DEAD) == (dead.id, dead.status)
    await queue.redrive("5")
    [again] = await queue_on(tmp_path).dequeue()
    assert ("5", 3) == (again.id, again.attempt)


async def test_a_note_too_large_for_an_attribute_moves_with_its_message(tmp_path):
    clock = FakeClock()
    queue = queue_on(tmp_path, clock)
    headers = {f"name-{number}": "x" * 50 for number in range(40)}
    await queue.enqueue("work", b"", headers=headers)
    for attempt in (1, 2, 3):
        [job] = await queue_on(tmp_path, clock).dequeue()
        assert (headers, attempt) == (dict(job.headers), job.attempt)
        await queue.nack(job)
        assert 1 == len(os.listdir(tmp_path / ".jqueue-notes"))
    [job] = await queue.dequeue()
    await queue.ack(job)
    assert [] == os.listdir(tmp_path / ".jqueue-notes")
    assert {} == read_note(str(tmp_path / ".jqueue-acked"))


async def test_a_message_that_moves_whenever_it_is_about_to_be_read_is_found(tmp_path):
    class Moving(FolderReader):
        moves = 0

        def note(self, place):
            if self.moves < 10:
                self.moves += 1
                (tmp_path / place).rename(tmp_path / f"{NOW}.{NOW + self.moves}")
            return super().note(place)

    filled(tmp_path, {str(NOW): b""})
    reader = Moving(str(tmp_path), "work", HAS_ATTRIBUTES)
    assert [f"{NOW}.{NOW + 10}"] == [found.place for found in reader.scan(FakeClock().now())]


@pytest.mark.parametrize("moves", [1, 7])
async def test_a_look_finds_a_message_that_moves_after_its_folder_was_listed(tmp_path, moves):
    class Moving(VsqsFolder):
        place, left = str(NOW), moves

        def payloads(self, jobs):
            if self.left:
                self.left, before, self.place = self.left - 1, self.place, f"{NOW}.{2 * NOW + self.left}"
                (tmp_path / before).rename(tmp_path / self.place)
                (tmp_path / "5").unlink(missing_ok=True)  # another message leaves the queue
            return super().payloads(jobs)

    filled(tmp_path, {"5": b"gone", str(NOW): b"moving", str(NOW + 1): b"at rest"})
    async with StoreQueue(Moving(tmp_path, fsync=False), clock=FakeClock()) as queue:
        jobs = (await queue.read_state()).jobs
    assert [b"moving", b"at rest"] == [job.payload for job in jobs]
