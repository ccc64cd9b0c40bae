"""A lake has each event of the history once, whatever happens to its runs. Without Spark."""

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage
from jqueue.domain.errors import BlobMissingError, InvalidURLError, StorageError, StorageFatalError
from jqueue.domain.history import HistoryHeader
from jqueue.domain.operations import Enqueue
from jqueue.ports.storage import Listed
from jqueue.spark.lake import reading
from jqueue.spark.lake.archive import Archiver
from jqueue.spark.lake.marker import QueueMark
from jqueue.spark.lake.planning import Source, plan_of
from tests.spark.lake.lake_world import (
    KilledError,
    Kills,
    archive,
    committed,
    copied,
    history_of,
    marker_of,
    some_jobs,
    visible,
    work,
)

pytestmark = pytest.mark.wide


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "queue.json"
    work(path, some_jobs)
    return path


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


def objects_of(queue):
    return sorted(Path(f"{queue}.history").glob("*/0*"))


def test_each_run_adds_what_is_new_and_an_empty_one_writes_nothing(queue, lake):
    for jobs in (0, 4, 1, 40):
        work(queue, lambda queue, jobs=jobs: some_jobs(queue, jobs))
        before = len(committed(lake)) if jobs else 0
        found = archive(lake, queue)
        expected = history_of(queue)
        assert expected == committed(lake) == visible(lake)
        assert (len(expected) - before, len(expected), 0) == (found.added, found.events, found.missing)
        kills = Kills(-1)
        again = archive(lake, queue, opening=kills)
        assert (0, []) == (again.added, kills.requests)


def test_small_files_are_merged(queue, lake):
    for _ in range(8):
        work(queue, some_jobs)
        archive(lake, queue)
        assert history_of(queue) == committed(lake) == visible(lake)
    files = [each for each in marker_of(lake).files.values() if not each.tail]
    folders = {each.folder for each in files}
    assert len(files) < 3 * len(folders)
    assert len(files) > 0


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_any_step_loses_no_event_and_doubles_none(queue, lake, tmp_path, after):
    for _ in range(2):
        archive(lake, queue)
        work(queue, some_jobs)
    copied(lake, tmp_path / "saved")
    before, expected = committed(lake), history_of(queue)
    for step in range(1000):
        copied(tmp_path / "saved", lake)
        kills = Kills(step, after=after)
        try:
            archive(lake, queue, opening=kills)
        except KilledError:
            assert committed(lake) in (before, expected)
            archive(lake, queue)
            assert expected == committed(lake) == visible(lake)
            assert marker_of(lake).run is None
        else:
            break
    assert {"commit", "write", "remove"} == set(kills.requests)
    assert kills.requests.count("commit") == 4  # claim, events, merged files, end


def test_a_first_run_killed_at_any_step_is_repeated(queue, lake):
    expected = history_of(queue)
    for step in range(1000):
        shutil.rmtree(lake, ignore_errors=True)
        try:
            archive(lake, queue, opening=Kills(step))
        except KilledError:
            archive(lake, queue)
            assert expected == committed(lake) == visible(lake)
        else:
            break
    assert step > 5


def test_a_run_whose_place_was_taken_commits_nothing(queue, lake):
    archive(lake, queue)
    work(queue, some_jobs)
    expected = history_of(queue)

    def overtaken(task, lots):
        done = [task.do(lot) for lot in lots]
        archive(lake, queue)
        return done

    with pytest.raises(StorageFatalError, match="has taken the place of this one"):
        Archiver(str(lake), overtaken).run([str(queue)])
    assert expected == committed(lake)


def test_the_histories_of_many_queues_are_in_one_lake(tmp_path, lake):
    for number in range(3):
        work(tmp_path / f"q{number}.json", lambda queue, number=number: some_jobs(queue, 4 + number))
    shutil.copy2(tmp_path / "q0.json", tmp_path / "other.txt")
    archive(lake, tmp_path / "q0.json")
    found = archive(lake, tmp_path / "q*.json")
    assert 3 == found.queues
    expected = [row for number in range(3) for row in history_of(tmp_path / f"q{number}.json")]
    assert expected == committed(lake)


def test_unusual_entrypoints_payloads_and_events_of_many_jobs_are_kept(tmp_path, lake):
    path = tmp_path / "queue.json"
    names = ["a/b", "日本", "x=y%20", "__HIVE_DEFAULT_PARTITION__", "{*}[?]", "2026-01-01", ".", "e" * 180]

    async def do(queue):
        await queue.configure(history_payloads=True)
        for name in names:
            await queue.enqueue(name, b"\x00payload")
        await queue.enqueue_many([Enqueue("many", b"x" * 100)] * 50)
        while (claim := await queue.claim_range("many", 20)) is None:
            await queue._engine.finish(10)
            await queue.pause("other")
            await queue.ack((await queue.dequeue("many"))[0])
        await queue.end_range(claim)

    work(path, do, kind=BrokerQueue, hot_bytes=1)
    archive(lake, path)
    assert history_of(path) == committed(lake)
    of_ranges = [row for row in committed(lake) if row[6] > 1]
    assert ["dequeue", "ack"] == [row[4] for row in of_ranges]
    assert all(row[6] == sum(each["last"] - each["first"] for each in row[-3][0]["spans"]) for row in of_ranges)
    assert set(names) < {row[-1] for row in committed(lake)}


def test_after_a_restored_backup_the_lake_follows_the_history(queue, lake, tmp_path):
    archive(lake, queue)
    shutil.copy2(queue, tmp_path / "backup")
    for _ in range(2):
        work(queue, lambda queue: some_jobs(queue, entrypoint="forgotten"))
        archive(lake, queue)
    shutil.copy2(tmp_path / "backup", queue)
    archive(lake, queue)
    assert history_of(queue) == committed(lake) == visible(lake)
    for _ in range(4):
        work(queue, lambda queue: some_jobs(queue, entrypoint="again"))
        archive(lake, queue)
        assert history_of(queue) == committed(lake) == visible(lake)
    assert {None, "mail", "again"} == {row[-1] for row in committed(lake)}


def test_a_history_that_was_switched_off_and_on_goes_on(queue, lake):
    archive(lake, queue)

    async def off_and_on(queue):
        await queue.configure(history=None)
        await queue.enqueue("unseen", b"")
        await queue.configure(history=1e9)
        await some_jobs(queue)

    work(queue, off_and_on)
    archive(lake, queue)
    assert history_of(queue) == committed(lake)


def test_events_removed_from_the_history_stay_in_the_lake(queue, lake):
    archive(lake, queue)
    expected = history_of(queue)
    for path in objects_of(queue):
        path.unlink()
    work(queue, some_jobs)
    assert 0 == archive(lake, queue).missing
    assert expected == committed(lake)[: len(expected)]


def test_events_that_were_gone_before_they_were_archived_are_counted(queue, lake):
    archive(lake, queue)
    work(queue, lambda queue: some_jobs(queue, 40))
    expected = history_of(queue)
    removed, following = objects_of(queue)[-3:-1]
    removed.unlink()
    first, last = int(removed.name), int(following.name)
    assert last - first == archive(lake, queue).missing
    assert 0 == archive(lake, queue).missing
    assert [row for row in expected if not first <= row[2] < last] == committed(lake)


def test_a_damaged_object_is_named_and_nothing_is_added(queue, lake):
    archive(lake, queue)
    before = committed(lake)
    work(queue, some_jobs)
    damaged = objects_of(queue)[-2]
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-9])
    with pytest.raises(StorageFatalError, match=rf"^{damaged}: its checksum does not match: .*Restore it"):
        archive(lake, queue)
    assert before == committed(lake)
    damaged.write_bytes(content)
    archive(lake, queue)
    assert history_of(queue) == committed(lake) == visible(lake)


def test_a_full_disk_is_named_at_once_and_the_lake_stays_as_it_was(queue, lake, monkeypatch):
    archive(lake, queue)
    before = committed(lake)
    work(queue, some_jobs)

    class Full(Kills):
        async def step(self, what, request):
            if what == "write":
                request.close()
                raise StorageFatalError("Could not write the file: the disk is full; free some space")
            return await request

    with pytest.raises(StorageFatalError, match="the disk is full"):
        archive(lake, queue, opening=Full(0))
    assert before == committed(lake)
    archive(lake, queue)
    assert history_of(queue) == committed(lake) == visible(lake)


def test_a_lake_that_was_moved_in_part_is_refused_in_one_line(queue, lake, tmp_path):
    archive(lake, queue)
    work(queue, some_jobs)
    lost = next(lake.glob("day=*/*/*.parquet"))
    lost.rename(tmp_path / "elsewhere")
    with pytest.raises(
        StorageFatalError, match=f"^the lake {lake} has lost {lost.relative_to(lake)}: restore it from a copy"
    ):
        archive(lake, queue)
    (tmp_path / "elsewhere").rename(lost)
    (lake / "_jqueue.json").rename(tmp_path / "elsewhere")
    with pytest.raises(StorageFatalError, match=rf"^the lake {lake} has \d+ files of events, but no marker"):
        archive(lake, queue)
    with pytest.raises(StorageFatalError, match=rf"^the lake {lake} has \d+ files of events, but no marker"):
        reading.marker_of(str(lake))
    (lake / "_jqueue.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match=f"^{lake}/_jqueue.json is damaged, or not the marker of a lake"):
        archive(lake, queue)
    (tmp_path / "elsewhere").rename(lake / "_jqueue.json")
    archive(lake, queue)
    assert history_of(queue) == committed(lake)


def test_a_lake_of_another_queue_at_this_place_is_refused(queue, lake):
    archive(lake, queue)
    for path in queue.parent.glob("queue.json*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    work(queue, some_jobs)
    with pytest.raises(StorageFatalError, match=r"history of another queue that was at .*queue\.json"):
        archive(lake, queue)


def test_a_queue_that_was_moved_goes_on_in_its_lake(queue, lake, tmp_path):
    archive(lake, queue)
    before = len(committed(lake))
    moved = tmp_path / "moved.json"
    copied(queue, moved)
    with pytest.raises(StorageFatalError, match="copies of one queue"):
        archive(lake, queue, moved)
    work(moved, some_jobs)
    archive(lake, moved)
    expected = history_of(moved)
    assert [row[1:] for row in expected] == sorted([row[1:] for row in committed(lake)], key=lambda row: row[1])
    assert before < len(expected)


def test_foreign_files_in_the_folder_are_never_removed(queue, lake):
    archive(lake, queue)
    foreign = [lake / "notes.txt", lake / "day=1" / "entrypoint=x" / "part-0.parquet"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    work(queue, some_jobs)
    archive(lake, queue)
    assert all(path.exists() for path in foreign)


def test_queues_without_a_history_are_left_out_and_a_lake_needs_one(tmp_path, queue, lake):
    asyncio.run(DirectQueue(LocalFileSystemStorage(tmp_path / "plain.json")).enqueue("mail", b""))
    with pytest.raises(InvalidURLError, match=r"plain.json keeps no history: switch it on"):
        archive(lake, tmp_path / "plain.json")
    assert 1 == archive(lake, tmp_path / "*.json").queues
    with pytest.raises(BlobMissingError, match="there is no queue at"):
        archive(lake, tmp_path / "nothing.json")
    with pytest.raises(InvalidURLError, match="is a file, and a lake is a folder"):
        archive(queue, queue)


def test_of_two_objects_with_the_same_events_the_later_one_is_read():
    def listed(first):
        return Listed(f".history/s/{first:016d}", datetime.now(UTC), 100)

    history = HistoryHeader(series="s", last=14, batches=("[11, 4, 0.0, [], []]",))
    before = QueueMark("q", "s", 2)
    found = plan_of(Source("q", "q", "id"), before, history, [listed(1), listed(5), listed(9)])
    assert [(1, 3, 4), (5, 5, 8), (9, 9, 10)] == [each[1:4] for each in found.windows]
    assert (10, 0, 2) == (found.after.through, found.after.missing, before.through)


@pytest.mark.parametrize(("removed", "missing"), [(0, 4), (4, 0)])
def test_events_of_a_lost_oldest_object_are_counted_as_missing_and_removed_ones_are_not(removed, missing):
    there = [Listed(f".history/s/{5:016d}", datetime.now(UTC), 100)]
    history = HistoryHeader(series="s", last=10, removed=removed)
    assert missing == plan_of(Source("q", "q", "id"), None, history, there).after.missing
