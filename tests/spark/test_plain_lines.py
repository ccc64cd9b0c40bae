"""Lines read in columns are the jobs that the codec reads from them one by one."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from hypothesis import given, settings

from jqueue import Job
from jqueue.core.blob.lines import encode_job, read_line
from jqueue.domain.segment_index import whole_lines
from jqueue.spark import plain_lines
from jqueue.spark.plain_lines import PlainLines, read_plain_lines
from tests.spark.alike_lines import NOW, TEXTS, alike, edited, edited_lines, edits, joined, marked, plain

MIDDLE, REST = b'", "status": "queued", "sequence": ', b', "created_at": "2026-01-02T03:04:05+00:00"}'
SOME = settings(max_examples=60, deadline=None)


def check(text, texts=()):
    """Assert that the columns have the jobs of the rows, if they are read in columns. Return them.

    Args:
        text: the rows.
        texts: the shared texts, each of which a mark stands for.
    """
    found = read_plain_lines(text, texts)
    if found is None:
        return None
    lines, examples = whole_lines(text, texts).split(b"\n")[:-1], [read_line(line, NOW) for line in found.examples]
    assert set(found.examples) <= set(lines)
    if not all(isinstance(example, Job) for example in examples):
        return found  # then the caller reads all lines by the codec
    kinds = [0] * len(found) if found.kinds is None else found.kinds.to_pylist()
    columns = (found.ids.to_pylist(), found.payloads.to_pylist(), found.sequences.to_pylist())
    expected = [
        examples[kind].evolve(id=job_id, payload=payload, sequence=sequence)
        for kind, job_id, payload, sequence in zip(kinds, *columns, strict=True)
    ]
    assert expected == [read_line(line, NOW) for line in lines]
    return found


@pytest.mark.parametrize("size", range(8))
@pytest.mark.parametrize("keep_result", [None, 3600.0])
def test_rows_of_a_bulk_enqueue_are_read_in_columns(size, keep_result):
    ids = [b"%08x-rest" % each for each in range(200)]
    contents = [bytes([each] * size) for each in range(200)]
    found = check(plain(ids, contents, 95, keep_result=keep_result))
    assert isinstance(found, PlainLines)
    assert contents == found.payloads.to_pylist()
    assert list(range(95, 295)) == found.sequences.to_pylist()
    assert ids[:1] == [line[1:14] for line in found.examples]
    assert found.kinds is None


@pytest.mark.parametrize("sizes", [range(7), [4, 1, 7]], ids=["all", "with the same mean as the first"])
def test_payloads_and_ids_of_any_length_are_read_in_columns(sizes):
    ids = ["é".encode() * (each % 5 + 1) for each in range(50)]
    contents = [bytes([each] * sizes[each % len(sizes)]) for each in range(len(sizes) * 7)]
    ids = ids[: len(contents)]
    found = check(plain(ids, contents))
    assert contents == found.payloads.to_pylist()
    assert ids == [each.encode() for each in found.ids.to_pylist()]


def test_jobs_of_several_commits_are_kinds_of_lines():
    parts = [plain([b"%d" % each], [b"x"], created_at=NOW.replace(second=each % 3)) for each in range(24)]
    found = check(b"".join(parts))
    assert [part[:-1] for part in parts[:3]] == found.examples
    assert [0, 1, 2] * 8 == found.kinds.to_pylist()
    assert read_plain_lines(b"".join(parts[:23])) is None, "too many kinds for these rows"


def test_lines_that_end_in_another_number_of_quotes_are_read_in_columns():
    job = Job(
        entrypoint="resize", payload=b"x", sequence=1, created_at=NOW, error="of an attempt", failures=1, attempt=1
    )
    lines = [encode_job(job.evolve(id=f"{each}", error=job.error if each % 2 else None)) for each in range(16)]
    assert 2 == len(check(joined(lines)).examples)


@pytest.mark.parametrize("sizes", [[6], [4, 1, 7]], ids=["of one length", "of several lengths"])
def test_rows_with_marks_are_read_without_putting_their_texts_back(sizes, monkeypatch):
    ids = [b"%08x-rest" % each for each in range(200)]
    contents = [bytes([each] * sizes[each % len(sizes)]) for each in range(200)]
    short, texts = marked(plain(ids, contents))
    assert 3 == len(texts)
    monkeypatch.setattr(plain_lines, "_read", None)
    found = check(short, texts)
    assert contents == found.payloads.to_pylist()
    assert ids == [each.encode() for each in found.ids.to_pylist()]


def test_rows_with_marks_and_other_options_are_kinds_of_lines():
    parts = [plain([b"%d" % each], [b"x"], created_at=NOW.replace(second=each % 3)) for each in range(24)]
    found = check(*marked(b"".join(parts)))
    assert [part[:-1] for part in parts[:3]] == found.examples


@pytest.mark.parametrize(
    "texts",
    [
        (b'": {"entrypoint": "x", "payload": "', MIDDLE, b'1, "created_at": "2026-01-02T03:04:05+00:00"}'),
        (b'": {"entrypoint": "x", "payload": "', MIDDLE, b'.5, "created_at": "2026-01-02T03:04:05+00:00"}'),
        (b'": {"entrypoint": "x", "payload": "', b'", "status": "dead", "sequence": ', REST),
        (b'": {"entrypoint": "x", "payload": "', b'", "status": "queued", "sequence": 7, "other": ', REST),
        (b'": {"entrypoint": "x", "sequence": 2, "payload": "', MIDDLE, REST),
        (b'\\u0061": {"entrypoint": "x", "payload": "', MIDDLE, REST),
        (b'a": {}, "b": {"entrypoint": "x", "payload": "', MIDDLE, REST),
        (MIDDLE, b'": {"entrypoint": "x", "payload": "', REST),
        (b'": {"entrypoint": "x", "payload": "', MIDDLE, b', "payload": "eA==", "created_at": "2026-01-02"}'),
        (b'": {"entrypoint": "x", "payload": "', MIDDLE),
    ],
)
def test_marks_for_other_texts_change_no_job(texts):
    check(b"".join(b'"%d\x01eA==\x02%d\x03\n' % (each, each) for each in range(1, 20)), texts)


def test_a_line_break_within_a_line_as_long_as_the_others_ends_it():
    line = plain([b"a"], [b"x"])
    assert check(line * 15 + line.replace(b', "created', b',\n"created')) is None


@SOME
@given(alike())
def test_lines_of_any_options_are_the_jobs_of_the_codec(lines):
    check(joined(lines))
    check(*marked(joined(lines)))


@pytest.mark.wide
@settings(max_examples=400, deadline=None)
@given(edited_lines)
def test_damaged_or_edited_lines_are_the_jobs_of_the_codec_or_are_refused(text):
    check(text)
    check(*marked(text))


@pytest.mark.wide
@settings(max_examples=400, deadline=None)
@given(alike(), edits)
def test_damaged_or_edited_rows_with_marks_are_the_jobs_of_the_codec_or_are_refused(lines, changes):
    text, texts = marked(joined(lines))
    check(edited(text, changes), texts)


@pytest.mark.wide
@pytest.mark.parametrize("added", TEXTS)
def test_each_edit_at_each_place_of_a_line_is_the_job_of_the_codec_or_is_refused(added):
    text = plain([b"ab", b"cd"], [b"x", b"yz"], 98)
    for place in range(len(text)):
        for removed in {0, len(added)}:
            check(text[:place] + added + text[place + removed :])
    short, texts = marked(text)
    for place in range(len(short)):
        for removed in {0, len(added)}:
            check(short[:place] + added + short[place + removed :], texts)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        plain([b"a"], [b"x"])[:-1],
        plain([b"a"], [b"x"]) + b"\n",
        plain([b"a"], [b"x"]).replace(b"eA==", b"eA="),
        plain([b"a"], [b"x"]).replace(b"eA==", b"e==="),
        plain([b"a"], [b"x"]).replace(b"eA==", b"_-8="),
        plain([b"a", b"b"], [b"x", b"y"]).replace(b"eA==", b"eA==eA=="),
        plain([b"a", b"b"], [b"x", b"y"]).replace(b"eA==", b"eA").replace(b"eQ==", b"eQAAAA"),
        plain([b"a", b"b"], [b"x", b"y"]).replace(b"eA==", b"=A=="),
        plain([b"a"], [b"x"]).replace(b'"sequence": 1', b'"sequence": 01'),
        plain([b"a"], [b"x"]).replace(b'"sequence": 1', b'"sequence": 0x1'),
        plain([b"a"], [b"x"]).replace(b'"sequence": 1', b'"sequence": 0'),
        plain([b"a"], [b"x"]).replace(b'"sequence": 1', b'"sequence": 1000000000000000'),
        plain([b"a"], [b"x"]).replace(b'"queued"', b'"dead"'),
        plain([b"\xff"], [b"x"]),
        plain([b"a\\u0062"], [b"x"]),
        plain([b"a"], [b"x"])[:-2] + b', "payload_object": [".payloads/1", 5, "%b"]}\n' % (b"0" * 64),
        plain([b"a"], [b"x"])[:-2] + b', "sequence": 7}\n',
    ],
)
def test_other_texts_are_refused(text):
    assert read_plain_lines(text) is None
