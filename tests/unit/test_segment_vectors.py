"""The queues in tests/vectors, whose segments another program may read: we decode, encode and refuse the same bytes.

The encoder here is written from docs/reference/wire-format.md alone, and shares no code with the one in `jqueue`.
"""

import json
import re
import zlib
from datetime import datetime
from functools import reduce
from hashlib import sha256
from pathlib import Path

import pytest

from jqueue import InMemoryStorage, JobStatus
from jqueue.core.blob import codec
from jqueue.domain.errors import InvalidBlobError, JobsUnreadableError, SegmentDamagedError
from tests.tiny_segments import spilled, tiny_queue

VECTORS = Path(__file__).parents[1] / "vectors"
SPILLED = [("deep", "ready"), ("deep", "later"), ("aged", "ready")]
SEGMENTS = [*SPILLED, ("bulk", "own")]
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
DEFAULTS = {"least": 0, "scheduled": False, "attempts": 0, "keys": 0, "objects": 0}


def _header(queue):
    text = (VECTORS / f"{queue}.json").read_text(encoding="utf-8")
    return json.loads(text)


def _content(queue, name):
    return (VECTORS / f"{queue}.json.segments" / name).read_bytes()


def _lines(queue, name):
    """The rows of a segment, with their jobs, in the order of the file."""
    lines = _content(queue, name).split(b"\n")[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith(b'"'))
    lines = [reduce(_whole, enumerate(_texts(queue, name), 1), line) for line in lines[:end]]
    return [(line, *json.loads(b"{" + line + b"}").items()) for line in lines]


def _whole(row, numbered):
    return row.replace(bytes([numbered[0]]), numbered[1])


def _texts(queue, name):
    """The texts that most rows of a segment share; none if its index has no such field."""
    head, _, _ = _content(queue, name)[_header(queue)["segments"][name]["index"] :].partition(b"\n")
    return [text.encode() for text in json.loads(head).get("texts", ())]


def _encoded(queue, name):
    """Encode a segment, and its entry in the manifest at the time when no row is taken."""
    header = _header(queue)
    aging = header.get("settings", {}).get("aging")
    rows, texts = [], _texts(queue, name)
    for line, (job_id, job) in _lines(queue, name):
        since = datetime.fromisoformat(job.get("run_at") or job["created_at"]).timestamp()
        rows.append((job.get("priority", 0), job["sequence"], since, line, job_id, job))
    if name == "later":
        rows.sort(key=lambda row: (row[2], row[0], row[1]))
    elif aging is not None:
        rows.sort(key=lambda row: (row[0] * aging + row[2], row[1]))
    else:
        rows.sort(key=lambda row: row[:2])
    entrypoint = rows[0][5]["entrypoint"]
    content = json.dumps({"segment": 1, "queue": header["queue"], "entrypoint": entrypoint}).encode() + b"\n"
    chunks = []
    for first in range(0, len(rows), 2):
        some = rows[first : first + 2]
        text = b"".join(row[3] + b"\n" for row in some)
        for number, shared in enumerate(texts, 1):
            text = text.replace(shared, bytes([number]))
        chunks.append([len(content), zlib.crc32(text), *some[0][:3], min(row[2] for row in some)])
        content += text
    keys = [(job["unique_key"], number) for number, (*_, job) in enumerate(rows) if "unique_key" in job]
    objects = [job["payload_object"][0] for *_, job in rows if "payload_object" in job]
    alone = [
        number for number, (*_, job) in enumerate(rows) if {"keep_result", "concurrency_key", "expires_at"} & {*job}
    ]
    index = {
        "rows": len(rows),
        "chunks": chunks,
        "end": len(content),
        "keys": len(keys),
        "objects": objects,
        "single": [[number, number + 1] for number in alone],
    }
    if texts:
        index["texts"] = [text.decode() for text in texts]
    if name == "later":
        index["best"] = [min(row[:2] for row in rows[first : first + 2]) for first in range(0, len(rows), 2)]
    hash_of_id = _own_hash if header["segments"][name].get("own_ids") else _digest
    ids = [(hash_of_id(job_id), number) for number, (*_, job_id, _) in enumerate(rows)]
    tables = _table(ids) + _table([(_digest(key), number) for key, number in keys])
    tail = json.dumps(index).encode() + b"\n" + tables
    entry = {
        "entrypoint": entrypoint,
        "rows": len(rows),
        "bytes": len(content) + len(tail),
        "index": len(content),
        "crc": zlib.crc32(tail),
        "head": list(rows[0][:3]),
        "chunk_rows": 2,
        "least": min(row[1] for row in rows),
        "scheduled": name == "later",
        "aging": aging,
        "oldest": min(row[2] for row in rows),
        "attempts": max(job.get("attempt", 0) for *_, job in rows),
        "spare": min(
            (job["max_attempts"] - job.get("failures", 0) for *_, job in rows if "max_attempts" in job), default=None
        ),
        "keys": len(keys),
        "objects": len(objects),
    }
    return content + tail, entry


def _digest(text):
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big")


def _own_hash(job_id):
    digits = job_id.replace("-", "")
    return int(digits[:16], 16) ^ int(digits[16:], 16) if re.fullmatch(UUID, job_id) else _digest(job_id)


def _table(pairs):
    pairs = sorted(pairs)
    hashes = b"".join(number.to_bytes(8, "little") for number, _ in pairs)
    return hashes + b"".join(row.to_bytes(4, "little") for _, row in pairs)


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


@pytest.mark.parametrize(("queue", "name"), SEGMENTS)
def test_the_vectors_are_what_the_wire_format_says(queue, name):
    content, entry = _encoded(queue, name)
    assert content == _content(queue, name)
    said = _header(queue)["segments"][name]
    offset = said.get("offset", 0)
    priority, sequence, since = entry["head"]
    expected = {**entry, "head": [priority, sequence + offset, since], "least": entry["least"] + offset}
    assert expected == {field: said.get(field, DEFAULTS.get(field)) for field in entry}


@pytest.mark.parametrize(("queue", "name"), SPILLED)
async def test_a_queue_spills_the_same_jobs_as_the_same_bytes(queue, name):
    header = _header(queue)
    settings = f', "settings": {json.dumps(header["settings"])}' if "settings" in header else ""
    lines = b",\n".join(sorted(line for line, *_ in _lines(queue, name)))
    blob = b'{"format": 2, "version": 1, "queue": "%b"%b, "jobs": {\n%b\n}}\n'
    storage = InMemoryStorage(blob % (header["queue"].encode(), settings.encode(), lines))
    await spilled(tiny_queue(storage, chunk_rows=2))
    [(spilled_name, entry)] = codec.decode((await storage.read())[0]).segments.items()
    assert _content(queue, name) == await storage.read_object(f".segments/{spilled_name}")
    fields = _encoded(queue, name)[1]
    assert fields == {field: json.loads(entry.model_dump_json())[field] for field in fields}


@pytest.mark.parametrize("queue", ["deep", "aged", "bulk", "whole"])
def test_the_objects_of_the_vectors_are_as_jqueue_writes_them(queue):
    blob = (VECTORS / f"{queue}.json").read_bytes()
    assert blob == codec.encode(codec.decode(blob))


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

    aged = tiny_queue(await _stored("aged"), hot_bytes=None)
    assert ["old", "now due", "young"] == [job.id for _ in range(3) for job in await aged.dequeue()]


async def test_a_job_is_found_by_the_id_that_jqueue_made_for_it():
    queue = tiny_queue(await _stored("bulk"), hot_bytes=None)
    assert b"two" == (await queue.cancel("3c6ef362-1b7c-4e52-a8f3-90b6d2e7f415")).payload
    assert 3 == (await queue.enqueue("resize", b"again", unique_key="third")).sequence
    assert [b"one", b"three", b"four"] == [job.payload for _ in range(3) for job in await queue.dequeue()]


@pytest.mark.parametrize("damaged", [lambda content: content[:-1], lambda content: content[:-4] + bytes(4)])
async def test_a_damaged_table_of_ids_that_jqueue_made_is_refused(damaged):
    queue = tiny_queue(await _stored("bulk", own=damaged(_content("bulk", "own"))), hot_bytes=None)
    with pytest.raises(SegmentDamagedError, match="own"):
        await queue.cancel("3c6ef362-1b7c-4e52-a8f3-90b6d2e7f415")


@pytest.mark.parametrize(
    "damaged",
    [
        lambda content: None,
        lambda content: content[:-1],
        lambda content: content[: content.index(b'{"rows"')],
        lambda content: content.replace(b'"rows": 5', b'"rows": 4'),
        lambda content: content[:-4] + bytes(4),
        lambda content: content.replace(b"YQ==", b"YQ="),
        lambda content: content.replace(b"\2", b'", "status": "dead", "sequence": '),
        lambda content: _content("deep", "later"),
    ],
    ids=["missing", "shorter", "no index", "rows", "table", "length", "status", "another"],
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


async def test_a_damaged_chunk_holds_up_its_own_rows_alone():
    content = _content("deep", "ready").replace(b'"a\1', b'"b\1')
    queue = tiny_queue(await _stored("deep", ready=content), hot_bytes=None)
    assert ["größe", "new"] == [job.id for _ in range(3) for job in await queue.dequeue()]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"next": 1, "taken": [[3, 5]]', b'"next": 4, "taken": [[3, 5]]'),
        (b'"taken": [[3, 5]]', b'"taken": [[3, 5], [5, 5]]'),
        (b'"taken": [[3, 5]]', b'"taken": [[3, 6]]'),
        (b'"rows": 5', b'"rows": 0'),
        (b'"crc": 4257499456, ', b""),
        (b'"chunk_rows": 2, "next"', b'"chunk_rows": 0, "next"'),
        (b'"ready": {"entry', b'"../ready": {"entry'),
        (b'"claims": 1', b'"claims": 0'),
        (b'"first": 4, "last": 5', b'"first": 4, "last": 6'),
        (b'"first": 4, "last": 5', b'"first": 4, "last": 4'),
        (b'["objects", "segments"]', b'["objects", "segments", "tapes"]'),
    ],
)
async def test_a_manifest_that_cannot_be_true_is_refused(right, wrong):
    blob = (VECTORS / "deep.json").read_bytes()
    assert 1 == blob.count(right)
    with pytest.raises(InvalidBlobError):
        codec.decode(blob.replace(right, wrong))


async def test_a_range_of_a_segment_that_was_given_up_is_dropped_with_it():
    blob = (VECTORS / "deep.json").read_bytes()
    start, end = blob.index(b'"ready": {'), blob.index(b'"later": {')
    queue = tiny_queue(InMemoryStorage(blob[:start] + blob[end:]), hot_bytes=None)
    assert 1 == await queue.requeue_stale(0)
    assert ["new", "kept"] == [job.id for job in await queue.dequeue(batch_size=5)]
    assert {} == (await queue.read_state()).ranges
