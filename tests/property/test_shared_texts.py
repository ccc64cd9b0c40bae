"""A row of a segment stands for the line of its job, whatever the job is, and is much shorter."""

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import InMemoryStorage, Job
from jqueue.core.blob.lines import encode_job, plain_texts
from jqueue.core.blob.segment_columns import Row, SegmentColumns
from jqueue.core.blob.segment_object import decode_index, decode_rows, encoding_columns
from jqueue.core.blob.shared_texts import shortened, texts_of
from jqueue.domain.enqueued_jobs import bulk_id
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.operations import Enqueue
from jqueue.domain.segment_index import MARKS, whole_lines
from jqueue.domain.segments import RowKey
from jqueue.domain.slices import exhaust
from tests.property.test_codec_properties import jobs, names, times
from tests.tiny_segments import spilled, tiny_queue

queued = st.lists(jobs, min_size=1, max_size=5)


def check(lines):
    text, texts = b"".join(line + b"\n" for line in lines), texts_of(lines[0], lines[-1])
    rows = shortened(text, texts)
    assert text == whole_lines(rows, texts)
    assert (rows.count(b"\n"), len(texts) <= len(MARKS)) == (len(lines), True)
    assert [text.decode() for text in texts] == json.loads(json.dumps([text.decode() for text in texts]))


@given(queued, st.none() | st.text(min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_rows_become_the_same_lines_again(several, entrypoint):
    shared = {} if entrypoint is None else {"entrypoint": entrypoint, "created_at": several[0].created_at}
    check([encode_job(job.evolve(**shared)) for job in several])


@given(
    times, st.sampled_from(["é", "è", "größe", "\U0001f600", "\U0001f601"]), st.sampled_from(["é", "ê", "\U0001f602"])
)
def test_a_text_never_ends_within_a_character(created_at, first, last):
    """The two lines differ in the second byte of a character, or in its fourth."""
    kind = Job(entrypoint="t", payload=b"", created_at=created_at)
    check([encode_job(kind.evolve(id=f"job-{name}-0", headers={"name": name})) for name in (first, last)])


kept = st.sampled_from([None, None, 1.0, 2.0])
parts = st.lists(st.tuples(kept, st.lists(st.binary(max_size=9), max_size=3)), min_size=1, max_size=5)


@given(parts, st.sampled_from(["-0000-4000-8000-000000000000", '-"', "-größe"]), names, times)
def test_rows_that_are_encoded_short_have_the_lines_and_the_size_of_their_jobs(parts, rest, entrypoint, created_at):
    columns = SegmentColumns(created_at.timestamp(), own_ids=True)
    lines: list[bytes] = []
    for kept, payloads in parts:
        numbers = range(len(lines) + 1, len(lines) + 1 + len(payloads))
        kind = Job(entrypoint=entrypoint, payload=b"", created_at=created_at, keep_result=kept)
        for number, payload in zip(numbers, payloads, strict=True):
            lines.append(encode_job(kind.evolve(id=bulk_id(number, rest), payload=payload, sequence=number)))
        if kept == 2.0:
            key = RowKey(0, numbers.start, 0.0)
            for number, line in zip(numbers, lines[numbers.start - 1 :], strict=True):
                columns.add(Row(bulk_id(number, rest), line, key._replace(sequence=number)))
        else:
            texts = plain_texts(rest, entrypoint, created_at, kept)
            columns.add_bulk(numbers, payloads, rest, texts)
    assert (lines, sum(map(len, lines))) == (columns.whole_lines(), columns.size)
    if lines:
        content, entry, index, _ = exhaust(encoding_columns(columns, "", entrypoint, scheduled=False, aging=None))
        rows = bytes(content[: entry.index]).partition(b"\n")[2]
        assert b"".join(line + b"\n" for line in lines) == index.whole(rows)
        assert not any(text in rows for text in index.texts)


async def segment(jobs):
    """Return a segment of a queue, and its entry in the manifest."""
    queue = tiny_queue(storage := InMemoryStorage(), chunk_rows=256, most_rows=65536)
    await queue.enqueue_many(jobs)
    await spilled(queue)
    [(name, entry)] = (await queue.read_state()).segments.items()
    return await storage.read_object(f".segments/{name}"), entry


async def test_a_row_of_a_small_job_takes_less_than_half_of_its_line():
    content, entry = await segment([Enqueue("resize", b"%08d" % number) for number in range(300)])
    texts = decode_index(content[entry.index :], entry).texts
    start = content.index(b"\n") + 1
    assert 2 * (entry.index - start) < len(whole_lines(content[start : entry.index], texts))
    assert [b"%08d" % number for number in range(300)] == [packed[1] for _, packed in exhaust(decode_rows(content))]


@pytest.mark.parametrize("texts", [["\x00"], ["fine", "two\nlines"], ["a"] * 9, [7], "ab", 7, [None]])
async def test_texts_that_no_row_can_have_are_refused(texts):
    content, entry = await segment([Enqueue("resize", b"")] * 2)
    head, _, tables = content[entry.index :].partition(b"\n")
    index = json.dumps({**json.loads(head), "texts": texts}).encode() + b"\n" + tables
    changed = entry.model_copy(update={"crc": zlib.crc32(index), "bytes": entry.index + len(index)})
    with pytest.raises(InvalidBlobError, match="its index"):
        decode_index(index, changed)
