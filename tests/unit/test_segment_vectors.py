"""The queues in tests/vectors, whose segments another program may read: we decode, encode and refuse the same bytes.

docs/reference/wire-format.md describes them.
"""

import json
from contextlib import nullcontext
from datetime import timedelta, timezone
from pathlib import Path
from random import Random

import pytest

from jqueue import InMemoryStorage, JobStatus
from jqueue.core.blob import codec
from jqueue.core.blob.segment_object import decode_chunk, encoding_segment
from jqueue.domain.errors import InvalidBlobError, JobsUnreadableError, SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import ENTRIES_PER_SLICE, HashTable, KeyTable
from jqueue.domain.slices import exhaust
from jqueue.testing.virtual_time import EPOCH
from tests.tiny_segments import spilled, tiny_queue

VECTORS = Path(__file__).parents[1] / "vectors"
ELSEWHERE = EPOCH.astimezone(timezone(timedelta(hours=2)))
SPILLED = [("deep", "ready"), ("deep", "later")]
FIELDS = ("rows", "bytes", "index", "crc", "chunk_rows", "scheduled", "oldest", "keys", "objects")
"""What a manifest says of a segment whoever has named it, and whatever was taken since."""


def _header(queue):
    text = (VECTORS / f"{queue}.json").read_text(encoding="utf-8")
    return json.loads(text)


def _content(queue, name):
    return (VECTORS / f"{queue}.json.segments" / name).read_bytes()


def _lines(queue, name):
    """The rows of a segment, as lines of the queue's object."""
    *rows, _ = _content(queue, name).splitlines()
    return [row.replace(b'{"id":', b"", 1).replace(b",", b":{", 1) for row in rows]


async def _stored(queue, **changed):
    """A store with a queue of the vectors, whose segments may have other contents."""
    storage = InMemoryStorage((VECTORS / f"{queue}.json").read_bytes())
    for path in sorted((VECTORS / f"{queue}.json.segments").iterdir()):
        content = changed.get(path.name, path.read_bytes())
        if content is not None:
            await storage.create_object(f".segments/{path.name}", content)
    return storage


async def _ids(jobs):
    return [job.id async for job in jobs]


@pytest.mark.parametrize(("queue", "name"), SPILLED)
async def test_a_queue_spills_the_same_jobs_as_the_same_bytes(queue, name):
    header = _header(queue)
    lines = b",\n".join(sorted(_lines(queue, name)))
    blob = b'{"format": 2, "version": 1, "queue": "%b", "jobs": {\n%b\n}}\n'
    storage = InMemoryStorage(blob % (header["queue"].encode(), lines))
    await spilled(tiny_queue(storage, chunk_rows=2))
    [(spilled_name, entry)] = codec.decode((await storage.read())[0]).segments.items()
    assert _content(queue, name) == await storage.read_object(f".segments/{spilled_name}")
    expected = codec.decode((VECTORS / f"{queue}.json").read_bytes()).segments[name]
    assert [getattr(expected, field) for field in FIELDS] == [getattr(entry, field) for field in FIELDS]


@pytest.mark.parametrize("queue", ["deep", "bulk", "whole"])
def test_the_objects_of_the_vectors_are_as_jqueue_writes_them(queue):
    blob = (VECTORS / f"{queue}.json").read_bytes()
    assert blob == codec.encode(codec.decode(blob))


async def test_fields_of_a_newer_version_survive_a_segment():
    more = b'"colour":"blue","parts":{"of":[1,"\xc3\xbc"]}'
    job = b'"entrypoint":"paint","payload":"","status":"queued","sequence":%d,"created_at":"2026-01-01T00:00:00Z",%b'
    lines = [b'"%d":{%b}' % (number, job % (number, more)) for number in range(1, 4)]
    storage = InMemoryStorage(b'{"format":2,"version":1,"queue":"q","jobs":{\n%b\n}}\n' % b",\n".join(lines))
    await spilled(tiny_queue(storage))
    [segment] = await storage.list_beside(".segments/")
    assert 3 == (await storage.read_object(segment.suffix)).count(b"," + more + b"}\n")
    assert ["1", "2"] == [job.id for job in await tiny_queue(storage, hot_bytes=None).dequeue(batch_size=2)]
    blob, _ = await storage.read()
    assert 2 == blob.count(more)


async def test_rows_are_served_by_their_keys_with_what_the_manifest_adds():
    queue = tiny_queue(await _stored("deep"), hot_bytes=None)
    attempts = {job.id: job.attempt async for job in queue.iterate_jobs()}
    assert {"kept": 2, "film": 1, "größe": 1} == {job_id: number for job_id, number in attempts.items() if number}
    found = [job for _ in range(4) for job in await queue.dequeue()]
    assert [("a", 11, 1, 1), ("größe", 12, 2, 2), ("new", 16, 1, 1)] == [
        (job.id, job.sequence, job.attempt, job.failures) for job in found
    ]
    assert ["new year", "soon after", "spring"] == await _ids(queue.iterate_jobs(JobStatus.QUEUED))
    assert "new year" == (await queue.cancel("new year")).id


async def test_a_job_is_found_by_the_id_that_jqueue_made_for_it():
    queue = tiny_queue(await _stored("bulk"), hot_bytes=None)
    assert b"two" == (await queue.cancel("3c6ef362-1b7c-4e52-a8f3-90b6d2e7f415")).payload
    assert 3 == (await queue.enqueue("resize", b"again", unique_key="third")).sequence
    assert [b"one", b"three", b"four"] == [job.payload for _ in range(3) for job in await queue.dequeue()]


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: None,
        lambda content: content[:-1],
        lambda content: content[: content.index(b'{"rows"')],
        lambda content: content[:-4] + bytes(4),
        lambda content: content.replace(b'"queued"', b'"dead"'),
        lambda content: _content("deep", "later"),
    ],
    ids=["missing", "shorter", "no index", "table", "status", "another"],
)
async def test_a_damaged_segment_is_refused_and_all_other_jobs_go_on(damaged):
    storage = await _stored("deep", ready=damaged(_content("deep", "ready")))
    queue = tiny_queue(storage, hot_bytes=None)
    assert ["new"] == [job.id for job in await queue.dequeue()]
    assert [] == await queue.dequeue()
    with pytest.raises(SegmentDamagedError, match="ready"):
        await queue.cancel("a")
    assert "spring" == (await queue.cancel("spring")).id
    with pytest.raises(JobsUnreadableError, match="ready"):
        await _ids(queue.iterate_jobs())


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": JobStatus.DEAD},
        {"id": ""},
        {"created_at": ELSEWHERE, "run_at": EPOCH},
        {"run_at": ELSEWHERE},
        {"expires_at": ELSEWHERE},
    ],
)
def test_a_row_that_is_no_queued_job_is_refused_although_its_checksum_is_right(wrong):
    right = JobRecord("a", "mail", b"", JobStatus.QUEUED, 1, EPOCH)
    for job, expected in (
        (right, nullcontext()),
        (right.evolve(**wrong), pytest.raises(InvalidBlobError, match="row 0")),
    ):
        content, entry, index, _ = exhaust(encoding_segment([job], scheduled=False))
        with expected:
            assert [job] == decode_chunk(content[: entry.index], 0, entry, index)
            named = entry.evolve(offset=16, floor=2)
            added = job.evolve(sequence=17, attempt=2, attempts_before=2)
            assert [added] == decode_chunk(content[: entry.index], 0, named, index)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"taken":[[0,1],[2,5]]', b'"taken":[[0,3],[2,5]]'),
        (b'"taken":[[0,1],[2,5]]', b'"taken":[[0,1],[2,5],[5,5]]'),
        (b'"later":{"entrypoint":"mail","rows":3', b'"later":{"entrypoint":"mail","rows":0'),
        (b'"crc":1805924039,', b""),
        (b'"ready":{"entry', b'"../ready":{"entry'),
        (b'"claim_timeout":300.0,"claimed_at":"2026-01-01T00:00:10Z"', b'"claimed_at":"2026-01-01T00:00:10Z"'),
        (b'"claims":1,"failures":1,"heartbeat_at"', b'"failures":1,"heartbeat_at"'),
        (b'["objects","segments"]', b'["objects","segments","tapes"]'),
    ],
)
async def test_a_manifest_that_cannot_be_true_is_refused(right, wrong):
    blob = (VECTORS / "deep.json").read_bytes()
    assert 1 == blob.count(right)
    with pytest.raises(InvalidBlobError):
        codec.decode(blob.replace(right, wrong))


@pytest.mark.parametrize("kind", [HashTable, KeyTable])
@pytest.mark.parametrize(("entries", "is_varied"), [(0, True), (1, True), (10_000, True), (5000, False)])
def test_a_hash_table_is_in_order_and_made_in_short_slices(kind, entries, is_varied):
    random, size = Random(entries), 64 * kind.WORDS
    bits = size if is_varied else 1
    hashes = [random.getrandbits(bits) << random.choice((0, size - bits)) for _ in range(entries)]
    rows = random.sample(range(entries), entries)
    table = kind(exhaust(kind.making(hashes, rows)).data)
    assert sorted(zip(hashes, rows, strict=True)) == list(table.among({*table.hashes}))
    assert sorted(row for hashed, row in zip(hashes, rows, strict=True) if hashed in hashes[:1]) == sorted(
        table.find_hash(hashes[0]) if hashes else []
    )
    assert len(list(kind.making(hashes, rows))) >= 2 * (entries // ENTRIES_PER_SLICE) - 2
