"""`archive` on an imitation of a session: a lake has each event of the history once, whatever happens to its runs."""

import asyncio
import io
import json
import shutil
import threading
from contextvars import ContextVar
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from jqueue import DirectQueue, Limits, LocalFileSystemStorage
from jqueue.domain.errors import BlobMissingError, InvalidURLError, StorageError, StorageFatalError
from jqueue.operations import Enqueue
from jqueue.spark import lake as lakes
from jqueue.testing.fake_clock import FakeClock
from tests.spark.imitated_session import Session
from tests.spark.spark_calls import call, enqueue, fill_segments
from tests.spark.step_stores import Fault, MemorySteps, told

COLUMNS: tuple[str, ...] = (
    "queue_id",
    "number",
    "at",
    "verb",
    "before",
    "after",
    "job_id",
    "jobs",
    "attempt",
    "holder",
    "wait_seconds",
)
COLUMNS += ("run_seconds", "created_at", "error", "payload", "rows")


def archive(urls, lake, session=None):
    given: object = session or Session()
    return lakes.archive(given, urls, str(lake))  # type: ignore[arg-type]


async def work(queue, number=12, entrypoint="mail"):
    """Make about three events for each of some jobs, in several commits."""
    if (await queue.read_state()).history is None:
        await queue.configure(history=1e9, history_payloads=True)
    for _ in range(0, number, 4):
        await queue.enqueue_many([Enqueue(entrypoint, b"\0payload")] * 4)
        [*jobs, last] = await queue.dequeue(entrypoint, batch_size=4)
        await queue.ack_many(jobs)
        await queue.nack(last, error=ValueError("no"))


async def work_at(clock, url, entrypoint="mail"):
    """Do some work at the time of a clock. Events of more than five minutes before move into an object."""

    class Storage(LocalFileSystemStorage):
        def store_time(self):
            return clock.now()

    async with DirectQueue(Storage(url), clock=clock) as queue:
        await work(queue, 4, entrypoint)


async def work_beyond_the_outbox(queue):
    """Make enough events that some move into an object of the history."""
    await work(queue)
    for _ in range(9):
        await queue.enqueue_many([Enqueue("mail", b"")] * 400)
        await queue.ack_many(await queue.dequeue("mail", batch_size=400))
        await work(queue)


@pytest.fixture
def queue(url):
    call(url, work)
    return url


@pytest.fixture
def lake(tmp_path):
    return tmp_path / "lake"


def history_of(url):
    """The events of a queue, the oldest first, by their entrypoint and day."""

    async def read(queue):
        state = await queue.read_state()
        return [
            (
                *(event.entrypoint, event.at.date().isoformat(), state.queue),
                *(getattr(event, name) for name in COLUMNS[1:-1]),
                [
                    {"segment": segment, "spans": [{"first": first, "last": last} for first, last in spans]}
                    for segment, spans in event.rows
                ]
                or None,
            )
            async for event in queue.history()
        ]

    return call(url, read)[::-1]


def events_in(names_and_contents):
    """The events in the files of a lake, in the order of queues and numbers."""
    found = []
    for name, content in names_and_contents:
        day, entrypoint = (part.partition("=")[2] for part in name.split("/")[-3:-1])
        entrypoint = None if entrypoint == "__HIVE_DEFAULT_PARTITION__" else unquote(entrypoint)
        rows = pq.read_table(io.BytesIO(content), partitioning=None).to_pylist()
        found += [(row["queue"], (entrypoint, day, *(row[column] for column in COLUMNS))) for row in rows]
    return [event for _, event in sorted(found, key=lambda each: (each[0], each[1][3]))]


def seen_in(lake):
    """The events in all files, as a program sees them that does not know the marker."""
    return events_in((str(path), path.read_bytes()) for path in Path(lake).glob("day=*/*/[!.]*"))


def test_each_run_adds_what_is_new_and_one_that_finds_nothing_writes_nothing(queue, lake):
    for jobs in (0, 4, 40):
        call(queue, lambda queue, jobs=jobs: work(queue, jobs))
        before = len(seen_in(lake))
        done = archive(queue, lake)
        expected = history_of(queue)
        assert expected == seen_in(lake)
        assert (len(expected) - before, len(expected), 0) == (done.added, done.events, done.missing)
        content = {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}
        assert 0 == archive(queue, lake, Session(lambda number: pytest.fail("Spark was asked"))).added
        assert content == {path: path.stat().st_mtime_ns for path in lake.rglob("*") if path.is_file()}


@pytest.mark.wide
def test_a_run_that_dies_at_any_request_loses_no_event_and_doubles_none(queue):
    archive(queue, "steps-memory://story/lake")
    for number in range(200):
        call(queue, lambda queue: work(queue, 4))
        requests = Fault("", "refused", times=0)

        def die(name, request, number=number, requests=requests):
            if len(requests.names) == number:
                requests.left = 10**9
            return requests(name, request)

        with told(die):
            try:
                archive(queue, "steps-memory://story/lake")
            except StorageError:
                is_dead = True
            else:
                is_dead = requests.left > 0
        archive(queue, "steps-memory://story/lake")
        assert history_of(queue) == seen_in_memory("story/lake")
        if not is_dead:
            break
    assert 8 < number < 199


def seen_in_memory(name):
    async def read():
        storage = MemorySteps.stores[name]
        names = [each.suffix for each in await storage.list_beside("/day=")]
        return [(each, (await storage.beside(each).read())[0]) for each in names]

    return events_in(asyncio.run(read()))


def test_a_run_that_another_has_overtaken_commits_nothing(queue, lake):
    archive(queue, lake)
    call(queue, work)
    with pytest.raises(StorageFatalError, match="has taken the place of this one"):
        archive(queue, lake, Session(lambda number: archive(queue, lake)))
    call(queue, work)
    archive(queue, lake)
    assert history_of(queue) == seen_in(lake)


def test_a_run_removes_no_file_of_a_later_run(queue):
    lake = "steps-memory://overtaken/lake"
    archive(queue, lake)
    call(queue, work)
    written, swept, marks = threading.Event(), threading.Event(), []

    def do_later():
        is_later.set(True)
        call(queue, work)
        archive(queue, lake)

    later, is_later = threading.Thread(target=do_later), ContextVar("is_later", default=False)

    def step(name, request):
        marks.extend([is_later.get()] * (name == "write overtaken/lake/_jqueue.json"))
        if not is_later.get() and marks == [False, False] and name.startswith("list_beside"):
            later.start()
            return asyncio.to_thread(written.wait, 60)
        if is_later.get() and marks == [False, False, True, True]:
            written.set()
            return asyncio.to_thread(swept.wait, 60)
        return None

    with told(step):
        with pytest.raises(StorageFatalError, match="has taken the place of this one"):
            archive(queue, lake)
        swept.set()
        later.join()
    assert history_of(queue) == seen_in_memory("overtaken/lake")


def test_small_files_of_past_days_become_one_and_those_of_the_latest_day_are_few(url, lake):
    clock = FakeClock()
    for _ in range(24):
        asyncio.run(work_at(clock, url))
        archive(url, lake)
        clock.advance(5 * 3600)
    assert history_of(url) == seen_in(lake)
    sizes = [len(list(folder.iterdir())) for folder in sorted(lake.glob("day=*/entrypoint=mail"))]
    assert [1, 1, 1] == sizes[:3]
    assert 9 >= max(sizes)


def test_an_object_store_is_read_by_tasks(queue):
    lake = "steps-memory://read/lake"
    session: Any = Session()
    call(queue, lambda queue: work(queue, entrypoint="e/" * 200))
    fill_segments(queue, range(300))
    archive(queue, lake)
    columns = ["entrypoint", "number", "day", "rows"]
    rows = [tuple(vars(row).values()) for row in lakes.read_lake(session, lake, columns).collect()]
    expected = [(event[0], event[3], date.fromisoformat(event[1]), event[-1]) for event in history_of(queue)]
    assert expected == sorted(rows, key=lambda row: row[1])
    assert any(event[-1] for event in expected)


def test_a_dataframe_whose_files_a_later_run_has_replaced_says_to_read_the_lake_again(queue):
    session: Any = Session()
    archive(queue, "steps-memory://old/lake")
    events = lakes.read_lake(session, "steps-memory://old/lake", ["number"])
    call(queue, work)
    archive(queue, "steps-memory://old/lake")
    with pytest.raises(
        StorageFatalError, match=r"parquet of the lake .* is gone: if a later run has replaced it, read"
    ):
        events.collect()


def test_an_entrypoint_may_end_like_the_name_of_a_lock(url, lake):
    for _ in range(2):
        call(url, lambda queue: work(queue, 4, "deploy.lock"))
        archive(url, lake)
        assert history_of(url) == seen_in(lake)


def test_histories_of_several_queues_are_in_one_lake_and_queues_without_one_are_left_out(tmp_path, lake):
    for number in range(3):
        call(f"{tmp_path}/q{number}.json", lambda queue, number=number: work(queue, 4 + 4 * number))
    enqueue(f"{tmp_path}/q3.json", [Enqueue("mail", b"")])
    archive(f"{tmp_path}/q0.json", lake)
    assert 3 == archive(f"{tmp_path}/q*.json", lake).queues
    assert [event for number in range(3) for event in history_of(f"{tmp_path}/q{number}.json")] == seen_in(lake)


@pytest.mark.parametrize("are_final", [False, True])
def test_after_a_restored_backup_the_lake_follows_the_history(queue, lake, tmp_path, are_final):
    archive(queue, lake)
    shutil.copy2(queue, tmp_path / "backup")
    clock = FakeClock(datetime.now(UTC))
    for _ in range(3):
        asyncio.run(work_at(clock, queue, "forgotten"))
        clock.advance(3600 * are_final)
    archive(queue, lake)
    shutil.copy2(tmp_path / "backup", queue)
    archive(queue, lake)
    assert history_of(queue) == seen_in(lake)
    call(queue, lambda queue: work(queue, entrypoint="again"))
    archive(queue, lake)
    assert history_of(queue) == seen_in(lake)
    assert {None, "mail", "again"} == {event[0] for event in seen_in(lake)}


@pytest.mark.wide
def test_events_that_the_history_has_lost_are_counted_and_damaged_ones_are_named(url, lake, tmp_path):
    call(url, work_beyond_the_outbox, limits=Limits(batch_size=1000))
    [*objects] = sorted(Path(f"{url}.history").glob("*/0*"))
    assert objects
    content = objects[0].read_bytes()
    objects[0].write_bytes(content[:-9])
    with pytest.raises(StorageFatalError, match=rf"{objects[0].name}: its checksum does not match: .*Restore it"):
        archive(url, lake)
    assert [] == seen_in(lake)
    objects[0].write_bytes(content)
    whole = history_of(url)
    archive(url, tmp_path / "whole")
    assert whole == seen_in(tmp_path / "whole")
    objects[0].unlink()
    missing = archive(url, lake).missing
    assert 0 < missing == len(whole) - len(seen_in(lake))
    assert 0 == archive(url, tmp_path / "whole").missing
    assert whole == seen_in(tmp_path / "whole")


def test_a_lake_that_lacks_files_or_is_of_another_queue_is_refused_in_one_line(queue, lake, tmp_path):
    archive(queue, lake)
    call(queue, work)
    lost = next(lake.glob("day=*/*/*.parquet"))
    for path, words in (
        (lost, f"^the lake {lake} has lost {lost.relative_to(lake)}: restore it from a copy, or archive into a new"),
        (lake / "_jqueue.json", rf"^the lake {lake} has \d+ files of events, but no marker _jqueue.json: restore it"),
    ):
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(StorageFatalError, match=words):
            archive(queue, lake)
        (tmp_path / "elsewhere").rename(path)
    for path in [*Path(queue).parent.glob("queue.json*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    call(queue, work)
    with pytest.raises(StorageFatalError, match=r"history of another queue that was at .*queue\.json"):
        archive(queue, lake)


def test_foreign_files_are_never_removed_and_the_marker_names_all_files(queue, lake):
    archive(queue, lake)
    foreign = [lake / "notes.txt", lake / "day=1" / "entrypoint=x" / "part-0.parquet"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    call(queue, work)
    archive(queue, lake)
    assert all(path.exists() for path in foreign)
    marker = json.dumps(json.loads((lake / "_jqueue.json").read_bytes()))
    assert all(path.name in marker for path in lake.glob("day=*/entrypoint=mail/*"))


def test_wrong_calls_are_refused_in_one_line(queue, lake, tmp_path):
    enqueue(f"{tmp_path}/plain.json", [Enqueue("mail", b"")])
    with pytest.raises(InvalidURLError, match=r"plain.json keeps no history: switch it on"):
        archive(f"{tmp_path}/plain.json", lake)
    with pytest.raises(BlobMissingError, match="there is no queue at"):
        archive(f"{tmp_path}/nothing.json", lake)
    with pytest.raises(InvalidURLError, match="is a file, and a lake is a folder"):
        archive(queue, queue)
    with pytest.raises(InvalidURLError, match="a URL is empty"):
        archive([], lake)
    with pytest.raises(InvalidURLError, match="the lake has no name"):
        archive(queue, "")


def test_relative_paths_are_those_of_the_program_and_not_of_its_tasks(queue, lake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    archive("queue.json", "lake", Session(lambda number: monkeypatch.chdir(tmp_path / "elsewhere")))
    assert [] == list((tmp_path / "elsewhere").iterdir())
    assert history_of(queue) == seen_in(lake)
