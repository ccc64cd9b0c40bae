"""Staged objects are found by their commit, are never mixed up, and are removed when no commit can need them."""

import asyncio
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import LocalFileSystemStorage
from jqueue.domain.errors import InvalidURLError, StorageError
from jqueue.spark.staging import Staging, absolute, open_store, url_in_folder
from tests.spark.enqueue.bulk import STORES, Rough, staged_at, url_on

DAY = 86400.0


@pytest.fixture(params=STORES)
def url(request, tmp_path):
    return url_on(request, tmp_path, request.param)


class Later:
    """A clock that is some seconds ahead."""

    def __init__(self, seconds):
        self.ahead = timedelta(seconds=seconds)

    def now(self):
        return datetime.now(UTC) + self.ahead

    def monotonic(self):
        return 0.0


def staging(url, **settings):
    return Staging(url, **{"retention": 7 * DAY, "deadline": 5.0} | settings)


def call(there, method, *args):
    """Make one call on the staged objects of a place, like a separate process."""

    async def one():
        async with there.opened() as staged:
            return await getattr(staged, method)(*args)

    return asyncio.run(one())


def stage(url, *names):
    for name in names:
        call(staging(url), "write", name, b"staged")


def test_staged_objects_are_read_in_the_requested_order_with_none_for_missing_ones(url):
    there = staging(url)
    names = [there.name("w", partition, 7) for partition in range(20)]
    stage(url, ".staged-other-0-0-a")
    for number, name in enumerate(names):
        call(there, "write", name, b"%d" % number)
    assert [b"19", None, b"0"] == call(there, "read", [names[19], ".staged-nobody", names[0]])
    assert sorted(names) == sorted(call(there, "of_write", "w"))


def test_each_run_of_an_attempt_has_a_different_name(tmp_path):
    there = staging(str(tmp_path / "queue.json"))
    assert 4 == len({there.name("w", 0, 0), there.name("w", 0, 1), there.name("w", 0, 1), there.name("w", 1, 0)})


def test_cleaning_removes_only_the_objects_of_the_given_write(url):
    stage(url, ".staged-mine-0-0-a", ".staged-mine-1-5-b", ".staged-mine2-0-0-c", ".staged-yours-0-0-d")
    call(staging(url), "clean", "mine")
    assert [".staged-mine2-0-0-c", ".staged-yours-0-0-d"] == staged_at(url)


def test_objects_of_other_writes_are_removed_by_age(tmp_path):
    url = str(tmp_path / "queue.json")
    stage(url, ".staged-old-0-0-a")

    def clean(retention):
        call(staging(url, retention=retention), "clean", "mine")
        return staged_at(url)

    assert [".staged-old-0-0-a"] == clean(3600)
    assert [] == clean(0)


def test_age_is_measured_by_the_store_or_else_by_the_clock(tmp_path):
    url = str(tmp_path / "queue.json")
    stage(url, ".staged-old-0-0-a")
    store = Rough(LocalFileSystemStorage(url))
    ahead = staging(url, clock=Later(8 * DAY))
    call(ahead, "clean", "mine")
    assert [".staged-old-0-0-a"] == staged_at(url)
    call(replace(ahead, open_storage=store), "clean", "mine")
    assert [] == staged_at(url)


def test_cleaning_leaves_the_queue_and_other_files(tmp_path):
    url = str(tmp_path / "queue.json")
    others = [tmp_path / name for name in ("queue.json", "queue.json.backup", "queue.json.staged.txt")]
    for other in others:
        other.write_text("not ours")
    stage(url, ".staged-mine-0-0-a")
    call(staging(url, retention=0), "clean", "mine")
    assert sorted(others) == sorted(tmp_path.iterdir())


def test_cleaning_in_a_store_without_listing_removes_only_known_objects(tmp_path):
    url = str(tmp_path / "queue.json")
    stage(url, ".staged-mine-0-0-a", ".staged-mine-0-1-b")
    blind = staging(url, retention=0, open_storage=Rough(LocalFileSystemStorage(url), lists=False))
    assert call(blind, "of_write", "mine") is None
    call(blind, "clean", "mine", [".staged-mine-0-0-a"])
    assert [".staged-mine-0-1-b"] == staged_at(url)


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
def test_a_failed_request_is_repeated(tmp_path, fault):
    url = str(tmp_path / "queue.json")
    told = {kind: [fault] for kind in ("write beside", "read beside", "remove beside", "list")}
    rough = staging(url, open_storage=Rough(LocalFileSystemStorage(url), told=told))
    call(rough, "write", ".staged-mine-0-0-a", b"staged")
    assert [b"staged"] == call(rough, "read", [".staged-mine-0-0-a"])
    assert [".staged-mine-0-0-a"] == call(rough, "of_write", "mine")
    call(rough, "clean", "mine")
    assert [] == staged_at(url)
    assert {kind: [] for kind in told} == told


def test_a_store_that_fails_until_the_deadline_fails_a_task_but_not_the_cleaning(tmp_path, caplog):
    url = str(tmp_path / "queue.json")
    stage(url, ".staged-mine-0-0-a")
    told = {kind: ["lost"] * 99 for kind in ("write beside", "remove beside", "list")}
    away = staging(url, deadline=0.0, open_storage=Rough(LocalFileSystemStorage(url), told=told))
    with pytest.raises(StorageError, match="the connection was reset"):
        call(away, "write", ".staged-mine-0-1-b", b"staged")
    call(away, "clean", "mine", [".staged-mine-0-0-a"])
    assert [".staged-mine-0-0-a"] == staged_at(url)
    assert ["Staged jobs could not be listed", "Staged jobs could not be removed"] == [
        message.partition(";")[0] for message in caplog.messages
    ]


def test_staging_can_be_pickled_and_its_repr_shows_no_secret():
    there = staging("s3://key:secret@bucket/queue.json")
    assert there.url == pickle.loads(pickle.dumps(there)).url
    assert "secret" not in repr(there)


def test_a_queue_in_memory_is_refused_for_spark():
    with pytest.raises(InvalidURLError, match=r"a queue in memory:// is in one process, and Spark has many"):
        open_store("memory://jobs")


def test_a_path_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "queue.json") == absolute("queue.json")
    assert "s3://bucket/queue.json" == absolute("s3://bucket/queue.json")


@pytest.mark.parametrize(
    ("folder", "begin", "end"),
    [
        ("/data/staging", "/data/staging/jqueue-", ""),
        ("/data/staging/", "/data/staging/jqueue-", ""),
        ("/what?/ever", "/what?/ever/jqueue-", ""),
        ("s3://bucket/staging", "s3://bucket/staging/jqueue-", ""),
        ("s3://bucket", "s3://bucket/jqueue-", ""),
        ("s3://k:s@bucket/a/?timeout=5&region_name=x", "s3://k:s@bucket/a/jqueue-", "?timeout=5&region_name=x"),
    ],
)
def test_a_folder_for_staged_objects_has_a_place_for_each_queue(folder, begin, end):
    one, other = (url_in_folder(folder, f"s3://bucket/{name}.json") for name in "ab")
    assert one != other
    for url in (one, other):
        assert url.startswith(begin)
        assert url.endswith(end)
        assert len(begin) + 16 + len(end) == len(url)


def test_the_place_of_a_queue_stays_the_same_with_other_keys_and_options():
    urls = ["s3://id:old@bucket/q.json", "s3://id:new@bucket/q.json?timeout=5"]
    assert 1 == len({url_in_folder("/staging", url) for url in urls})
