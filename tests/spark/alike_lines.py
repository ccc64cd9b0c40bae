"""Lines of segments for tests: jobs of a few kinds, whole, damaged and edited."""

from base64 import b64encode
from datetime import UTC, datetime

from hypothesis import strategies as st

from jqueue import Job, JobStatus
from jqueue.core.blob.lines import encode_job, plain_texts
from jqueue.core.blob.shared_texts import shortened, texts_of
from jqueue.spark.plain_lines import ROWS_OF_A_KIND
from tests.property.test_codec_properties import jobs, names

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)

payloads = st.binary(max_size=9) | st.binary(min_size=6, max_size=6)
waiting = st.builds(lambda job: job.evolve(status=JobStatus.QUEUED, entrypoint="x", payload_object=None), jobs)

ROWS = st.tuples(names, payloads, st.integers(1, 2**50))


@st.composite
def alike(draw):
    """The lines of jobs of one to three kinds. Those of a kind differ in their id, payload and sequence number only."""
    kinds = draw(
        st.lists(st.sampled_from([Job(entrypoint="x", payload=b"", created_at=NOW)]) | waiting, min_size=1, max_size=3)
    )
    least = ROWS_OF_A_KIND * len(kinds)
    some = draw(st.lists(ROWS, min_size=1, max_size=least))
    chosen = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=least, max_size=least))
    return [
        encode_job(kinds[kind].evolve(id=name, payload=payload, sequence=sequence))
        for kind, (name, payload, sequence) in zip(chosen, some * least, strict=False)
    ]


def joined(lines):
    return b"".join(line + b"\n" for line in lines)


def plain(ids, contents, first=1, created_at=NOW, keep_result=None):
    head, middle, last = plain_texts("", "resize", created_at, keep_result)
    return joined(
        b'"%b%b%b%b%d%b' % (job_id, head, b64encode(payload), middle, sequence, last)
        for sequence, (job_id, payload) in enumerate(zip(ids, contents, strict=True), first)
    )


def marked(text):
    """The rows that are stored for lines, and the texts that their marks stand for."""
    lines = text.split(b"\n")
    texts = texts_of(lines[0], lines[-2]) if len(lines) > 1 else ()
    return shortened(text, texts), texts


TEXTS = [  # added by edits
    b'"',
    b"\\",
    b"\\u0061",
    b"=",
    b"==",
    b",",
    b"0",
    b"0x",
    b"-",
    b"+",
    b" ",
    b"\n",
    b"\r",
    b"\0",
    b"{",
    b"}",
    b"A",
    b"A\xff",
]
TEXTS += [b"", b"\xed\xa0\x80", b', "payload": "eA=="', b', "sequence": 7', b', "\\u0073equence": 7', b"payload_object"]
TEXTS += [
    b', "status": "dead"',
    b', "id": "a"',
    b'": {"entrypoint": "x", "payload": "',
    b'", "status": "queued", "sequence": ',
]


TEXTS += [b"\x01", b"\x02", b"\x03", b"\x04"]

edits = st.lists(st.tuples(st.integers(0, 99_999), st.integers(0, 3), st.sampled_from(TEXTS)), min_size=1, max_size=3)


def edited(text, changes):
    """A text in which some bytes were removed, and others added."""
    for place, removed, added in changes:
        place %= len(text)
        text = text[:place] + added + text[place + removed :]
    return text


edited_lines = st.builds(edited, alike().map(joined), edits)
