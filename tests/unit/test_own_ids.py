"""The index of a segment whose ids jqueue made: its hashes are cheap. Ids that callers choose have other hashes."""

import asyncio
from array import array
from hashlib import sha256
from random import Random
from uuid import UUID, uuid4

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobNotFoundError, Limits
from jqueue.core.blob.segment_check import SegmentCheck
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.domain.enqueued_jobs import bulk_hashes, bulk_id
from jqueue.domain.segment_index import HashTable, SegmentIndex, id_hash, id_hashes
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import segments_of
from tests.virtual_world import in_virtual_time

MADE = "9e3779b1-1b7c-4e52-a8f3-90b6d2e7f415"
DRAWN = [str(UUID(int=Random(seed).getrandbits(128))) for seed in range(300)]


class PlainNames:
    """Ids that are not UUIDs."""

    def __init__(self):
        self.count = 0

    def new_id(self):
        self.count += 1
        return f"name {self.count}"

    def jitter(self, bound):
        return 0.0


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, entropy=None, **sizes):
    """Return a queue whose `enqueue_many` writes segments from the first job on."""
    options = {} if entropy is None else {"entropy": entropy}
    queue = DirectQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1, batch_size=2000), **options)
    given = {"hot_bytes": 1, "fewest_rows": 3, "bulk_jobs": 0, "chunk_rows": 4, "merged": 100, **sizes}
    segments_of(queue).writer.sizes = SegmentSizes(**given)
    return queue


def digest(text):
    return int.from_bytes(sha256(text.encode()).digest()[:8])


def halves(job_id):
    number = UUID(job_id).int
    return (number >> 64) ^ (number % 2**64)


async def indexed(queue):
    """Return the entry, the ids and the table of ids of each segment, by the number of the first job."""
    reader, found = segments_of(queue).reader, []
    for name, segment in (await queue.read_state()).segments.items():
        index = await reader.index(name, segment)
        ids = await reader.ids(name, segment, index, range(segment.chunks))
        found.append((segment, dict(ids), list(zip(index.ids.hashes, index.ids.rows, strict=True))))
    return sorted(found, key=lambda each: each[0].least)


def pairs(ids, hashed):
    return sorted((hashed(job_id), row) for row, job_id in ids.items())


async def depth(queue):
    return (await queue.stats()).depth


async def merged(queue):
    """Commit until the segments are merged."""
    segments_of(queue).writer.sizes.merged = 2
    for _ in range(20):
        await queue.pause("nothing")
        await queue.resume("nothing")
        await asyncio.gather(*(task for each in [segments_of(queue).writer._merges] if (task := each._task)))
    [found] = await indexed(queue)
    return found


@pytest.mark.parametrize(
    "job_id", [MADE, "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-0000-000000000000", *DRAWN[:9]]
)
def test_a_uuid_has_the_hash_of_its_halves_if_jqueue_made_it_and_its_digest_if_not(job_id):
    assert (halves(job_id), digest(job_id)) == (id_hash(job_id, own=True), id_hash(job_id, own=False))


@pytest.mark.parametrize(
    "job_id",
    ["", "a", MADE.upper(), MADE.replace("-", ""), f"{MADE}\n", f" {MADE}", "{" + MADE + "}", MADE[:-1] + "٣", "größe"],
)
def test_any_other_text_has_its_digest(job_id):
    assert {digest(job_id)} == {id_hash(job_id, own=own) for own in (True, False)}


@pytest.mark.parametrize("rest", [MADE[8:], "-any base", "-größe"])
def test_ids_of_a_bulk_enqueue_are_hashed_by_their_numbers(rest):
    numbers = [1, 2, 77, 2**31, 2**32 - 1]
    expected = [id_hash(bulk_id(number, rest), own=True) for number in numbers]
    assert expected == list(bulk_hashes(numbers, rest))
    assert len(numbers) == len(set(expected))


ODD = [
    MADE.upper(),
    MADE[:-1] + "٣",
    MADE[:-2] + "  ",
    MADE[:-2] + "-" + MADE[-1],
    "-" * 36,
    MADE[:7] + "-0" + MADE[9:],
]
"""Texts as long as a UUID that are none."""


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "job_ids", [[], [MADE], DRAWN, [MADE, "a", "größe"], [MADE + "0", MADE[:-1]], *([MADE, odd] for odd in ODD)]
)
def test_many_ids_are_hashed_as_one_by_one(job_ids, own):
    assert [id_hash(job_id, own=own) for job_id in job_ids] == list(id_hashes(job_ids, own=own))


@in_virtual_time
async def test_the_table_has_the_halves_of_ids_of_jqueue_and_the_digests_of_ids_of_callers():
    async with queue_on(store()) as queue:
        await queue.enqueue_many([Enqueue("t") for _ in range(30)])
        await queue.enqueue_many([Enqueue("t", priority=number % 3) for number in range(30)])
        await queue.enqueue_many([Enqueue("t", job_id=str(uuid4()), priority=number) for number in range(300)])
        plain, others, given = await indexed(queue)
        for segment, ids, table in (plain, others):
            assert (True, pairs(ids, halves)) == (segment.own_ids, table)
        segment, ids, table = given
        assert (False, pairs(ids, digest)) == (segment.own_ids, table)


@in_virtual_time
@pytest.mark.parametrize("number", [3, 300, 5000])
@pytest.mark.parametrize("entropy", [None, PlainNames()])
async def test_a_caller_may_repeat_ids_that_jqueue_made(number, entropy):
    async with queue_on(store(), entropy, most_rows=2000) as queue:
        made = list(await queue.enqueue_many([Enqueue("t", b"") for _ in range(number)]))
        others = [Enqueue("t", job_id=f"new {place}") for place in range(300)]
        again = await queue.enqueue_many([*(Enqueue("t", job_id=job.id) for job in made), *others])
        assert [job.id for job in made] == [job.id for job in again][:number]
        assert [job.sequence for job in made] == [job.sequence for job in again][:number]
        assert number + 300 == await depth(queue)


@in_virtual_time
async def test_some_ids_of_jqueue_are_repeated_here_and_there():
    """The segment is written again without them, and the copy is compared with those in the queue as well."""
    async with queue_on(store()) as queue:
        made = list(await queue.enqueue_many([Enqueue("t") for _ in range(1000)]))
        mixed = [Enqueue("t", job_id=job.id if job.sequence % 3 else str(uuid4())) for job in made]
        again = await queue.enqueue_many(mixed)
        repeated = [job.id for job in made if job.sequence % 3]
        assert repeated == [job.id for job in again if job.sequence <= 1000]
        assert 2000 - len(repeated) == await depth(queue)


@in_virtual_time
async def test_ids_that_jqueue_made_are_seen_by_a_writer_that_has_not_read_them():
    storage = store()
    async with queue_on(storage) as first, queue_on(storage) as second:
        await second.enqueue("t")
        made = list(await first.enqueue_many([Enqueue("t", b"") for _ in range(500)]))
        await second.enqueue_many([Enqueue("t", job_id=job.id) for job in made])
        assert 501 == await depth(first)


@in_virtual_time
async def test_segments_of_ids_of_jqueue_alone_are_merged_into_one_like_them():
    async with queue_on(store()) as queue:
        made = [*await queue.enqueue_many([Enqueue("t") for _ in range(20)])]
        made += await queue.enqueue_many([Enqueue("t", priority=1) for _ in range(20)])
        segment, ids, table = await merged(queue)
        assert (40, True, pairs(ids, halves)) == (segment.rows, segment.own_ids, table)
        assert made[25].id == (await queue.cancel(made[25].id)).id


@in_virtual_time
async def test_a_segment_of_ids_of_callers_is_merged_with_another_by_their_digests():
    async with queue_on(store()) as queue:
        made = await queue.enqueue_many([Enqueue("t") for _ in range(300)])
        await queue.enqueue_many([Enqueue("t", job_id=str(uuid4()), priority=1) for _ in range(300)])
        segment, ids, table = await merged(queue)
        assert (600, False, pairs(ids, digest)) == (segment.rows, segment.own_ids, table)
        assert made[5].id == (await queue.cancel(made[5].id)).id


@in_virtual_time
async def test_only_an_id_with_the_hash_of_a_row_is_looked_for_in_its_chunk():
    storage = store()
    async with queue_on(storage) as queue:
        made = [*await queue.enqueue_many([Enqueue("t") for _ in range(100)])]
        segments_of(queue).loader.rows_ahead = segments_of(queue).loader.commits_ahead = 0
        assert await queue.find(str(uuid4())) is None  # loads the index
        storage.object_calls.clear()
        for text in ("a", made[70].id.upper(), made[70].id.replace("-", ""), str(uuid4())):
            assert await queue.find(text) is None
        assert [] == storage.object_calls
        swapped = UUID(int=(UUID(made[70].id).int % 2**64) << 64 | UUID(made[70].id).int >> 64)
        with pytest.raises(JobNotFoundError):
            await queue.cancel(str(swapped))  # the same hash, but another text
        assert 1 == len(storage.object_calls)
        assert made[70].id == (await queue.cancel(made[70].id)).id


@in_virtual_time
async def test_a_table_with_the_other_hashes_contradicts_its_rows():
    async with queue_on(store()) as queue:
        await queue.enqueue_many([Enqueue("t") for _ in range(8)])
        [(name, segment)] = (await queue.read_state()).segments.items()
        reader = segments_of(queue).reader
        index = await reader.index(name, segment)
        [(number, data), *_] = [each async for each in reader.parts(name, index, range(segment.chunks))]
        [(_, ids, _)] = await indexed(queue)
        hashes, rows = zip(*pairs(ids, digest), strict=True)
        foreign = HashTable(array("Q", hashes), array("I", rows), own=True)
        wrong = SegmentIndex(index.chunks, index.end, foreign, index.keys, texts=index.texts)
        assert "" == SegmentCheck(segment, index, ()).chunk(number, data).misplaced
        assert "the id of row 0 is not in the index" in SegmentCheck(segment, wrong, ()).chunk(number, data).misplaced
