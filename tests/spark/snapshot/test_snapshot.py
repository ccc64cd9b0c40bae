"""The snapshot, called like Spark calls it: one read of each blob, and partitions that carry its lines."""

import asyncio
import logging
import pickle
import re
from collections import Counter
from urllib.parse import quote

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from jqueue import DirectQueue, InMemoryStorage, Limits, LocalFileSystemStorage, StorageError, connect
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, InvalidJobError, InvalidURLError, StorageFatalError
from jqueue.operations import Enqueue
from jqueue.spark.fleet import FleetQueue
from jqueue.spark.rows import FLEET_SCHEMA, SNAPSHOT_SCHEMA
from jqueue.spark.snapshot import contents, segment_rows
from jqueue.spark.snapshot.reader import LARGEST, SMALLEST, BlobLines, SnapshotReader, cut
from tests.tiny_segments import spilled, tiny_queue

JOBS = 50


def call(url, work):
    async def run():
        async with connect(url, DirectQueue) as queue:
            return await work(queue)

    return asyncio.run(run())


def fill(url, jobs=JOBS, entrypoint="resize"):
    async def work(queue):
        names = [f"{entrypoint} {number}" for number in range(jobs)]
        await queue.apply(*(Enqueue(entrypoint, name.encode(), job_id=name) for name in names))
        return await queue.dequeue(entrypoint, batch_size=2)

    return call(url, work)


def rows_of(reader):
    """The rows of all partitions. The reader and each partition are pickled, as between processes."""
    there = pickle.loads(pickle.dumps(reader))
    return [
        row
        for part in reader.partitions()
        for batch in there.read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ]


def reader_of(path, schema=SNAPSHOT_SCHEMA, **options):
    return SnapshotReader({"path": str(path), **options}, schema)


@pytest.fixture(params=["file", pytest.param("seaweedfs", marks=pytest.mark.full)])
def url(request, tmp_path):
    """A URL with a placeholder for the name of a queue."""
    if request.param == "file":
        return f"file://{tmp_path}/{{}}"
    server = request.getfixturevalue("seaweedfs")
    options = f"?endpoint_url={server.endpoint_url}&region_name={server.region}"
    place = f"s3://{server.access_key}:{quote(server.secret_key)}@{server.bucket}/{quote(tmp_path.name)}"
    return f"{place}/{{}}{options}"


def test_the_rows_of_a_snapshot_match_the_jobs_of_the_queue(url):
    queue = url.format("queue.json")
    fill(queue)
    jobs = call(queue, DirectQueue.read_state).jobs
    rows = rows_of(reader_of(queue, numPartitions="8"))
    assert [(job.id, job.status, job.attempt, job.created_at, job.payload, job.sequence) for job in jobs] == [
        tuple(row[name] for name in ("id", "status", "attempt", "created_at", "payload", "sequence")) for row in rows
    ]


def test_jobs_in_segments_are_rows_of_the_snapshot_as_those_of_the_object_are(tmp_path):
    path = tmp_path / "queue.json"

    async def work():
        async with tiny_queue(LocalFileSystemStorage(path)) as queue:
            await queue.enqueue_many([Enqueue("resize", b"%d" % each, headers={"n": f"{each}"}) for each in range(9)])
            await queue.enqueue_many([Enqueue("mail", b"", priority=each) for each in range(5)])
            await spilled(queue)
            await queue.dequeue("resize", batch_size=2)
            return [job async for job in queue.iterate_jobs()], list((await queue.read_state()).segments)

    jobs, [segment, _] = asyncio.run(work())

    def found(**options):
        rows = rows_of(reader_of(path, numPartitions="3", **options))
        return sorted((row["id"], row["status"], row["sequence"], row["payload"]) for row in rows)

    def expected(chosen):
        return sorted((job.id, job.status, job.sequence, job.payload) for job in chosen)

    assert expected(jobs) == found()
    assert 5 == len(found(entrypoint="mail"))
    assert 2 == len(found(status="in_progress"))
    (path.parent / "queue.json.segments" / segment).unlink()
    with pytest.raises(StorageFatalError, match=rf"queue\.json: segment \.segments/{segment} does not exist\. A table"):
        found()
    assert 5 == len(found(entrypoint="mail"))


@pytest.mark.parametrize(("returned", "claimed"), [(20, 2), (1, 6)])
def test_rows_that_the_manifest_changes_are_read_as_the_queue_has_them(tmp_path, returned, claimed):
    """Rows of a bulk enqueue, of a claimed range, and of a range that came back; some are taken."""
    path = tmp_path / "queue.json"

    async def work():
        async with tiny_queue(LocalFileSystemStorage(path), Limits(batch_size=10)) as queue:
            await queue.enqueue("mail", b"")
            await queue.enqueue_many(Enqueue("resize", b"%d" % each, max_attempts=9) for each in range(60))
            await spilled(queue)
            back = await queue.claim_range("resize", returned)
            assert back is not None
            await queue.end_range(back, nothing_done=True)
            await queue.dequeue("resize", batch_size=claimed)
            assert await queue.claim_range("resize", 1, holder="me") is not None
            return [job async for job in queue.iterate_jobs()], await queue.read_state()

    jobs, state = asyncio.run(work())
    assert any(segment.offset for segment in state.segments.values())
    assert any(segment.tried for segment in state.segments.values())
    columns = StructType([field for field in SNAPSHOT_SCHEMA if field.name not in {"headers", "result"}])
    for options in ({"numPartitions": "8"}, {"status": "in_progress"}, {"status": "queued"}):
        rows = rows_of(reader_of(path, columns, **options))
        expected = [job for job in jobs if job.status == options.get("status", job.status)]
        named = {job.id: tuple(getattr(job, name) for name in columns.names) for job in expected}
        assert named == {row["id"]: tuple(row.values()) for row in rows}
        assert len(expected) == len(rows)


def deep_queue(path):
    """Create a queue with segments of 60 and of 20 jobs, whose first rows have all kinds of histories."""

    async def work():
        async with tiny_queue(LocalFileSystemStorage(path), Limits(batch_size=10)) as queue:
            await queue.enqueue_many(Enqueue("resize", b"%d" % each) for each in range(60))
            await queue.enqueue_many(Enqueue("mail", b"") for _ in range(20))
            await spilled(queue)
            back = await queue.claim_range("resize", 4)
            assert back is not None
            await queue.end_range(back, nothing_done=True)
            await queue.dequeue("resize", batch_size=6)
            assert await queue.claim_range("resize", 12) is not None
            return [job async for job in queue.iterate_jobs()]

    return asyncio.run(work())


@pytest.mark.parametrize("options", [{}, {"status": "in_progress"}, {"status": "queued"}, {"entrypoint": "mail"}])
def test_entrypoints_and_statuses_are_counted_without_a_segment(tmp_path, options):
    jobs = deep_queue(tmp_path / "queue.json")
    for segment in (tmp_path / "queue.json.segments").iterdir():
        segment.unlink()
    columns = StructType([SNAPSHOT_SCHEMA["status"], SNAPSHOT_SCHEMA["entrypoint"]])
    rows = rows_of(reader_of(tmp_path / "queue.json", columns, numPartitions="5", **options))
    wanted = [vars(job) for job in jobs]
    wanted = [job for job in wanted if all(job[name] == value for name, value in options.items())]
    assert Counter((job["status"], job["entrypoint"]) for job in wanted) == Counter(tuple(row.values()) for row in rows)


def test_segments_and_chunks_without_wanted_jobs_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "queue.json"
    jobs = deep_queue(path)
    read: list[int] = []

    class Counting(LocalFileSystemStorage):
        async def read_object(self, suffix, start=0, stop=None):
            found = await super().read_object(suffix, start, stop)
            read.append(len(re.findall(rb"\x01[A-Za-z0-9+/=]*\x02", found)))
            return found

    monkeypatch.setattr(segment_rows, "connect_storage", lambda url: Counting(path))

    def lines_read(**options):
        read.clear()
        found = {row["id"] for row in rows_of(reader_of(path, **options))}
        assert {job.id for job in jobs if job.status == options.get("status", job.status)} == found
        return sum(read)

    everything = lines_read()
    assert 0 == lines_read(status="dead") == len(read)
    assert 12 <= lines_read(status="in_progress") < everything / 2
    assert lines_read(status="queued") < everything
    assert [()] == [part.value for part in reader_of(path, status="dead").partitions()]


def test_each_row_of_a_fleet_names_its_queue(url):
    for name in ("a.json", "b.json"):
        fill(url.format(name), 3)
    rows = rows_of(reader_of(url.format("[ab].json"), FLEET_SCHEMA))
    names = [FleetQueue("", connect(url.format(name))).name for name in ("a.json", "b.json")]
    expected = [(name, f"resize {number}") for name in names for number in range(3)]
    assert expected == [(row["queue"], row["id"]) for row in rows]


def test_a_snapshot_can_be_limited_to_entrypoints_and_statuses(url):
    queue = url.format("queue.json")
    fill(queue, 6)
    fill(queue, 3, "mail")
    assert {"mail"} == {row["entrypoint"] for row in rows_of(reader_of(queue, entrypoint="mail"))}
    assert 4 == len(rows_of(reader_of(queue, status="in_progress, dead")))
    assert 5 == len(rows_of(reader_of(queue, status="queued")))
    assert 1 == len(rows_of(reader_of(queue, entrypoint="mail,other", status="QUEUED")))


def test_a_snapshot_can_be_limited_to_columns(tmp_path):
    fill(tmp_path / "queue.json", 1)
    schema = StructType([SNAPSHOT_SCHEMA["attempt"], SNAPSHOT_SCHEMA["id"]])
    assert [{"attempt": 1, "id": "resize 0"}] == rows_of(reader_of(tmp_path / "queue.json", schema))


def test_planning_reads_each_blob_once_and_tasks_read_none(tmp_path, monkeypatch):
    """Otherwise tasks that start at different times would read different versions."""
    fill(tmp_path / "queue.json")
    reads, read = [], LocalFileSystemStorage.read

    async def counted(storage):
        reads.append(storage.path)
        return await read(storage)

    monkeypatch.setattr(LocalFileSystemStorage, "read", counted)
    assert JOBS == len(rows_of(reader_of(tmp_path / "queue.json", numPartitions="8")))
    assert [tmp_path / "queue.json"] == reads


def test_tasks_run_even_if_the_queue_has_been_removed(tmp_path):
    fill(tmp_path / "queue.json")
    reader = reader_of(tmp_path / "queue.json")
    parts = reader.partitions()
    (tmp_path / "queue.json").unlink()
    assert JOBS == sum(batch.num_rows for part in parts for batch in reader.read(part))


def test_a_queue_without_jobs_gives_no_rows(tmp_path):
    queue = tmp_path / "queue.json"
    [job] = fill(queue, 1)
    for options in ({"entrypoint": "other"}, {"numPartitions": "8"}):
        assert 1 == len(reader_of(queue, **options).partitions())
    assert [] == rows_of(reader_of(queue, entrypoint="other"))
    call(queue, lambda queue: queue.ack(job))
    assert [] == rows_of(reader_of(queue, numPartitions="8"))


def test_unreadable_lines_are_left_out_and_counted_in_the_log(tmp_path, caplog):
    fill(tmp_path / "queue.json", 4)
    content = (tmp_path / "queue.json").read_bytes().replace(b'"attempt": 1', b'"attempt": -1')
    for damaged in (content, content.replace(b",\n", b" ,\n")):
        (tmp_path / "queue.json").write_bytes(damaged)
        with caplog.at_level(logging.WARNING, "jqueue"):
            rows = rows_of(reader_of(tmp_path / "queue.json", numPartitions="1"))
        assert ["resize 2", "resize 3"] == [row["id"] for row in rows]
    said = f"{tmp_path / 'queue.json'}: 2 lines were left out: not readable as jobs"
    assert [said, said] == caplog.messages


@pytest.mark.parametrize("url", ["file"], indirect=True)
def test_a_missing_queue_is_an_error_that_names_it(url):
    queue = url.format("queue.json")
    with pytest.raises(
        BlobMissingError, match=r"there is no queue at .*/queue.json: check the URL; the first enqueue creates a queue"
    ):
        reader_of(queue).partitions()
    fill(url.format("other.json"))
    with pytest.raises(BlobMissingError, match=r"there is no queue at .*/queue.json: check"):
        reader_of(f"{url.format('other.json')},{queue}", FLEET_SCHEMA).partitions()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 3, "version": 1, "jobs": {\n}}\n'])
def test_an_unreadable_queue_of_a_fleet_is_an_error_that_names_it(tmp_path, content):
    fill(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(content)
    with pytest.raises(InvalidBlobError) as caught:
        reader_of(f"{tmp_path}/*.json", FLEET_SCHEMA).partitions()
    assert str(caught.value).startswith(f"{tmp_path}/b.json: the queue's object ")
    assert "\n" not in str(caught.value)


def test_a_queue_in_memory_is_refused():
    with pytest.raises(InvalidURLError, match="only to its own process"):
        reader_of("memory://name/queue").partitions()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batchSize": "7"}, "there is no option 'batchSize': the options are entrypoint, numPartitions, status"),
        ({"status": "scheduled"}, "option status takes some of queued, in_progress, dead, completed"),
        ({"status": ""}, "option status takes"),
        ({"entrypoint": "a,,b"}, "option entrypoint takes names"),
        ({"numPartitions": "0"}, "option numPartitions takes a whole number from 1"),
        ({"numpartitions": "many"}, "option numPartitions takes"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_before_any_read(options, words):
    with pytest.raises(InvalidJobError, match=words) as caught:
        reader_of("queue.json", **options)
    assert "\n" not in str(caught.value)


def test_filters_are_left_to_spark():
    """Spark would use the partitions of one filter for other queries, and refuses `pushFilters` if push-down is off."""
    assert "pushFilters" not in vars(SnapshotReader)


def test_a_partition_shows_no_payload(tmp_path):
    fill(tmp_path / "queue.json", 1)
    [part] = reader_of(tmp_path / "queue.json").partitions()
    assert "SnapshotPartition(" in repr(part)
    assert "payload" not in repr(part)


class Failing(InMemoryStorage):
    """A storage whose first reads raise the given errors."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    async def read(self):
        if self.errors:
            raise self.errors.pop(0)
        return b"content", "etag"


async def test_a_failed_read_is_retried():
    storage = Failing(StorageError("away"), TimeoutError(), ConnectionResetError())
    assert (b"content", "etag") == await contents._read_with_retries(FleetQueue("", storage))


async def test_a_refused_read_is_not_retried():
    storage = Failing(StorageFatalError("no"), StorageError("never seen"))
    with pytest.raises(StorageFatalError, match="no"):
        await contents._read_with_retries(FleetQueue("", storage))


async def test_a_read_that_fails_until_the_deadline_reports_its_last_error(monkeypatch):
    monkeypatch.setattr(contents, "DEADLINE", 0.2)
    storage = Failing(*[StorageError("the store is away")] * 100)
    with pytest.raises(StorageError, match=r"could not be read in time: the store is away"):
        await contents._read_with_retries(FleetQueue("", storage))


def joined(pieces):
    return b",\n".join(text for piece in pieces for text, *_ in piece.lines())


def lines(*sizes):
    return b",\n".join(b"x" * size for size in sizes)


@pytest.mark.parametrize(
    ("runs", "count", "expected"),
    [
        ([], None, [[]]),
        ([("a", b"")], 3, [[]]),
        ([("a", lines(5))], 3, [[5]]),
        ([("a", lines(*[5] * 8))], 8, [[5]] * 8),
        ([("a", lines(*[5] * 8))], 3, [[5] * 3] * 2 + [[5] * 2]),
        ([("a", lines(100, 1, 1, 1))], 4, [[100], [1], [1], [1]]),
        ([("a", lines(1, 1, 1, 100))], 4, [[1, 1, 1, 100]]),
        ([("a", lines(5, 5)), ("b", lines(5, 5))], 2, [[5, 5], [5, 5]]),
        ([("a", lines(5)), ("b", lines(5)), ("c", lines(5)), ("d", lines(5))], 2, [[5, 5], [5, 5]]),
        ([("a", b""), ("b", lines(5)), ("c", b"")], None, [[5]]),
    ],
)
def test_lines_are_cut_into_parts_of_about_the_same_size(runs, count, expected):
    pieces = [BlobLines(*run) for run in runs]
    parts = cut(pieces, count)
    assert expected == [[len(line) for line in joined(part).split(b",\n") if part] for part in parts]
    assert joined(piece for part in parts for piece in part) == joined(piece for piece in pieces if piece.text)


@pytest.mark.parametrize(
    ("size", "count"),
    [(1000, 1), (SMALLEST, 1), (3 * SMALLEST + 1000, 3), (16 * SMALLEST, 4), (4 * LARGEST, 4), (5 * LARGEST, 5)],
)
def test_the_default_number_of_parts_follows_from_the_size(size, count):
    parts = cut([BlobLines("a", b",\n".join([b"x" * 998] * (size // 1000)))], None)
    assert count == len(parts)
    assert max(piece.size for part in parts for piece in part) <= LARGEST + 1000
