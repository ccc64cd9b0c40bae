"""Any staged jobs become the same jobs as those of an enqueue, or are refused as damaged."""

import random
import re
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jqueue.core.blob.codec import encode_header, join_blob, parse_blob
from jqueue.core.blob.content import Blob
from jqueue.core.blob.staged_object import FORMAT, StagedWriter, read_staged
from jqueue.core.calls.claim_registry import ClaimRegistry
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidBlobError, InvalidJobError
from jqueue.domain.limits import Limits
from jqueue.domain.models import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.operations import Enqueue, EnqueueStaged, Preparation, perform
from jqueue.domain.operations.staged import StagedReceipt

pytestmark = pytest.mark.wide

NOW = datetime(2026, 1, 1, 12, 30, 30, 123456, tzinfo=UTC)
COMMIT = CommitId("writer", 1, 0)
PATIENT = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
optional = {
    "priority": st.integers(PRIORITY_MIN, PRIORITY_MAX),
    "headers": st.dictionaries(names, texts, max_size=3),
    "max_attempts": st.integers(1, COUNT_MAX),
    "unique_key": names,
}
times: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({}),
    st.fixed_dictionaries({"delay": st.floats(0, 1e9) | st.sampled_from([0, 5, 5.0, 60])}),
    st.fixed_dictionaries(
        {"run_at": st.datetimes(datetime(1900, 1, 1), datetime(2900, 1, 1), timezones=st.timezones() | st.just(UTC))}
    ),
)
options = st.builds(lambda one, other: {**one, **other}, st.fixed_dictionaries({}, optional=optional), times)
rows = st.lists(st.tuples(names, st.binary(max_size=80), options), max_size=8)


def preparation():
    ids = iter(f"drawn-{number}" for number in range(1000))
    return Preparation(Limits(), 300.0, lambda: next(ids), ClaimRegistry().find)


def committed(draft):
    """The draft as it is read from its blob, and the bytes of that."""
    blob = Blob()
    blob.draft = draft
    content = blob.encode(next_header(draft, COMMIT, "queue", NOW, 0.1))
    other = Blob()
    other.adopt(parse_blob(content), len(content))
    assert not other.draft.set_aside
    return other.draft, content


def perform_all(draft, *operations):
    results = []
    prepared = preparation()
    for operation in operations:
        results.append(perform(operation.prepared(prepared), draft, NOW))
    return results


def staged(task, rows):
    writer = StagedWriter()
    for number, (entrypoint, payload, details) in enumerate(rows):
        writer.add(f"job-{task}-{number:03}", entrypoint, payload, **details)
    assert len(rows) == writer.jobs
    return writer


@PATIENT
@given(st.lists(rows, min_size=1, max_size=3))
@example([[("x", b"\x00\n, \n", {"headers": {"a": "\x00\n"}})]])
def test_staged_jobs_equal_those_of_an_enqueue(tasks):
    plain, draft = Draft(), Draft()
    perform_all(plain, *(Enqueue(entry, data, **details) for rows in tasks for entry, data, details in rows))
    read = [read_staged(staged(task, rows).finish()) for task, rows in enumerate(tasks)]
    [receipt] = perform_all(draft, EnqueueStaged(read))
    plain, found = committed(plain)[0], committed(draft)[0]
    count = sum(map(len, tasks))
    assert StagedReceipt(len(plain.jobs), count - len(plain.jobs)) == receipt
    assert as_told(plain.jobs.values()) == as_told(found.jobs.values())
    in_order = sorted(found.jobs.values(), key=lambda job: job.sequence)
    assert len(in_order) == len({job.sequence for job in in_order})
    ids = [job.id for job in in_order if job.unique_key is None]
    assert sorted(ids) == ids, "the jobs are not in the order of staging"


def as_told(jobs):
    """Contents of jobs in any order: jobs with a key come last, whatever their task."""
    return sorted(repr(sorted(job.model_dump(exclude={"id", "sequence"}).items())) for job in jobs)


@PATIENT
@given(st.lists(names.filter(str.isascii), unique=True, max_size=8), names, st.data())
def test_many_plain_jobs_are_encoded_as_one_by_one(ids, entrypoint, data):
    ids = [job_id for job_id in ids if set(job_id) <= set(string.ascii_letters + string.digits + "-")]
    payloads = data.draw(st.lists(st.binary(max_size=40), min_size=len(ids), max_size=len(ids)))
    fast, slow = StagedWriter(), StagedWriter()
    fast.add_plain(ids, entrypoint, payloads)
    for job_id, payload in zip(ids, payloads, strict=True):
        slow.add(job_id, entrypoint, payload)
    assert fast.finish() == slow.finish()
    assert (fast.jobs, fast.bytes) == (slow.jobs, slow.bytes)


def ordinary():
    """Staged jobs of every kind: a few hundred bytes."""
    writer = StagedWriter()
    writer.add_plain(["a", "b", "c"], "x", [b"one", b"two", b""])
    writer.add("d", "y", b"later", 3, delay=2.5, headers={"lang": "Ünïcode \x00"}, max_attempts=2)
    writer.add("e", "y", b"keyed", unique_key="k", run_at=NOW + timedelta(days=1))
    return writer.finish()


def read_or_refuse(content):
    """Check that content that can be read can also be added and read back."""
    try:
        found = read_staged(content)
    except InvalidBlobError as error:
        return complain(error)
    draft = Draft()
    [receipt] = perform_all(draft, EnqueueStaged([found]))
    assert receipt.added == len(committed(draft)[0].jobs) == 5
    return True


def complain(error):
    """Return one line without the content of its object."""
    assert re.fullmatch(r"(the )?staged jobs .*: (use one version everywhere and )?write them again", str(error))
    return False


def test_undamaged_staged_jobs_are_read():
    assert read_or_refuse(ordinary())


def test_any_damaged_byte_is_an_error_or_does_no_harm():
    content = ordinary()
    refused = 0
    for place in range(len(content)):
        for flip in (1, 8, 32, 128, 255):
            damaged = bytearray(content)
            damaged[place] ^= flip
            refused += not read_or_refuse(bytes(damaged))
    harmless = 5 * len(content) - refused
    assert harmless <= 5  # white space in the first line, which says the same


def test_any_truncation_is_an_error():
    content = ordinary()
    assert not any(read_or_refuse(content[:end]) for end in range(len(content)))
    assert not any(read_or_refuse(content[start:]) for start in range(1, len(content)))


@PATIENT
@given(st.binary(max_size=200))
@example(b"")
@example(b"[]\n\n")
@example(b'"staged"\n\n')
@example(b"[" * 100_000)
@example(b'{"staged": 1, "crc": null}\n{}\n')
@example(b'{"staged": 1, "crc": 0}\n')
@example(b'{"format": 2, "jobs": {\n}}\n')
def test_other_content_is_refused(content):
    assert not read_or_refuse(content)


def test_another_format_version_is_named():
    content = ordinary().replace(b'"staged": %d' % FORMAT, b'"staged": 7', 1)
    with pytest.raises(InvalidBlobError, match="another version"):
        read_staged(content)


# How large they are


@pytest.mark.parametrize("payload", [b"", b"x" * 64, b"x" * 5000])
@pytest.mark.parametrize(
    "details",
    [
        {},
        {"delay": 5},
        {"run_at": NOW, "priority": -100},
        {"headers": {"trace": "0123456789abcdef", "tenant": "é" * 40}, "max_attempts": 5},
    ],
    ids=["plain", "delay", "run_at", "headers"],
)
def test_the_counted_size_is_close_to_the_size_in_the_blob(payload, details):
    dice = random.Random(1)
    writer = StagedWriter()
    for _ in range(2000):
        writer.add(f"{dice.getrandbits(128):032x}", "resize", payload, **details)
    read = read_staged(writer.finish())
    assert writer.bytes == read.size
    draft = Draft()
    perform_all(draft, EnqueueStaged([read]))
    assert read.size == draft.added_bytes
    _, content = committed(draft)
    empty = join_blob(encode_header(next_header(Draft(), COMMIT, "queue", NOW, 0.1)), [])
    real = len(content) - len(empty)
    assert abs(real - read.size) < 0.03 * real


def test_jobs_with_a_key_are_counted_once():
    writer = StagedWriter()
    for number in range(100):
        writer.add(f"{number}", "x", b"payload", unique_key=f"{number}")
    read = read_staged(writer.finish())
    assert 0 == read.size
    staged_draft, plain = Draft(), Draft()
    perform_all(staged_draft, EnqueueStaged([read]))
    perform_all(plain, *(Enqueue("x", b"payload", unique_key=f"{number}") for number in range(100)))
    assert plain.added_bytes // 100 == pytest.approx(staged_draft.added_bytes // 100, abs=8)
    assert writer.bytes == pytest.approx(staged_draft.added_bytes, rel=0.05)


# Delays


def test_equal_delays_are_stored_once():
    writer = StagedWriter()
    for number in range(1000):
        writer.add(f"{number}", "x", b"", delay=timedelta(minutes=1) if number < 500 else 60.0)
    plain = StagedWriter()
    plain.add_plain([f"{number}" for number in range(1000)], "x", [b""] * 1000)
    assert len(writer.finish()) < len(plain.finish()) + 20


def test_each_delay_is_that_of_its_job():
    delays = [None, 5, 5, None, None, 0, 5, 7.5]
    writer = StagedWriter()
    for number, delay in enumerate(delays):
        writer.add(f"{number}", "x", b"", delay=delay)
    draft = Draft()
    perform_all(draft, EnqueueStaged([read_staged(writer.finish())]))
    found, _ = committed(draft)
    expected = [None if delay is None else NOW + timedelta(seconds=delay) for delay in delays]
    assert expected == [found.jobs[f"{number}"].run_at for number in range(len(delays))]


def test_the_longest_delay_can_be_added():
    writer = StagedWriter()
    writer.add("a", "x", b"", delay=timedelta(days=36_600))
    draft = Draft()
    perform_all(draft, EnqueueStaged([read_staged(writer.finish())]))
    assert 2126 == committed(draft)[0].jobs["a"].run_at.year


# Refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"entrypoint": ""},
        {"job_id": ""},
        {"payload": "text"},
        {"payload": b"x" * 2000},
        {"priority": 2**40},
        {"priority": "1"},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 10**12},
        {"delay": 1, "run_at": NOW},
        {"run_at": NOW.replace(tzinfo=None)},
        {"run_at": datetime.max.replace(tzinfo=UTC) - timedelta(0)} | {"max_attempts": 0},
        {"unique_key": ""},
        {"headers": {"a": "\ud800"}},
        {"headers": ["a"]},
        {"max_attempts": 0},
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_added(wrong):
    writer = StagedWriter(Limits(payload_bytes=1000))
    before = writer.finish()
    with pytest.raises(InvalidJobError):
        writer.add(**{"job_id": "a", "entrypoint": "x", "payload": b"", **wrong})
    assert (before, 0, 0) == (writer.finish(), writer.jobs, writer.bytes)


@pytest.mark.parametrize("payloads", [[b"", "text"], [b"", None], [b"", b"x" * 2000]])
def test_a_wrong_payload_among_many_is_refused_and_nothing_is_added(payloads):
    writer = StagedWriter(Limits(payload_bytes=1000))
    before = writer.finish()
    with pytest.raises(InvalidJobError):
        writer.add_plain(["a", "b"], "x", payloads)
    assert (before, 0) == (writer.finish(), writer.jobs)


def test_any_bytes_like_payload_is_taken():
    writer = StagedWriter()
    payloads: list[Any] = [bytearray(b"1"), memoryview(b"2")]
    writer.add_plain(["a", "b"], "x", payloads)
    assert 2 == read_staged(writer.finish()).jobs


@pytest.mark.parametrize("empty", [StagedWriter().finish(), None])
def test_an_empty_staging_adds_no_jobs(empty):
    read = [] if empty is None else [read_staged(empty)]
    assert not any(each.jobs for each in read)
    draft = Draft()
    assert [StagedReceipt()] == perform_all(draft, EnqueueStaged(read))
    assert not draft.changed
