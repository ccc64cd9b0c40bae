"""Any staged jobs become the same jobs as those of an enqueue, or are refused as damaged."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.models import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.operations import Enqueue, EnqueueStaged
from jqueue.testing.virtual_time import EPOCH, VirtualClock, run
from tests.property.test_codec_properties import names, texts

optional = {
    "priority": st.integers(PRIORITY_MIN, PRIORITY_MAX),
    "headers": st.dictionaries(names, texts, max_size=3),
    "max_attempts": st.integers(1, COUNT_MAX),
    "unique_key": names,
}
moments = st.datetimes(datetime(1900, 1, 1), datetime(2900, 1, 1), timezones=st.timezones() | st.just(UTC))
times: st.SearchStrategy[dict[str, Any]] = (
    st.just({})
    | st.fixed_dictionaries({"delay": st.floats(0, 1e9) | st.sampled_from([0, 5, 5.0, 60])})
    | st.fixed_dictionaries({"run_at": moments})
)
options = st.builds(lambda one, other: {**one, **other}, st.fixed_dictionaries({}, optional=optional), times)
rows = st.lists(st.tuples(names, st.binary(max_size=80), options), max_size=8)


async def jobs_after(*operations):
    """Return the jobs of a new queue after operations, as another queue object reads them."""
    storage = InMemoryStorage(clock=VirtualClock())
    await DirectQueue(storage, clock=VirtualClock()).apply(*operations)
    state = await DirectQueue(storage, clock=VirtualClock()).read_state()
    assert not state.set_aside
    return sorted(state.jobs, key=lambda job: job.sequence)


def contents(jobs):
    """Return jobs in any order: jobs with a key come last, whatever their task."""
    return sorted(repr(sorted(job.model_dump(exclude={"id", "sequence"}).items())) for job in jobs)


@settings(deadline=None, max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=3).filter(any))
@example([[("x", b"\x00\n, \n", {"headers": {"a": "\x00\n"}})]])
def test_staged_jobs_equal_those_of_an_enqueue(tasks):
    staged = []
    for task, rows in enumerate(tasks):
        writer = StagedWriter()
        for number, (entrypoint, payload, details) in enumerate(rows):
            writer.add(f"job-{task}-{number:03}", entrypoint, payload, **details)
        staged.append(read_staged(writer.finish()))

    async def try_it():
        plain = [Enqueue(entrypoint, payload, **details) for rows in tasks for entrypoint, payload, details in rows]
        expected, jobs = await jobs_after(*plain), await jobs_after(EnqueueStaged(staged))
        assert contents(expected) == contents(jobs)
        ids = [job.id for job in jobs if job.unique_key is None]
        assert sorted(ids) == ids, "the jobs are not in the order of staging"

    run(try_it())


def ordinary():
    """Staged jobs of every kind: a few hundred bytes."""
    writer = StagedWriter()
    writer.add_plain(["a", "b", "c"], "x", [b"one", b"two", b""])
    writer.add("d", "y", b"later", 3, delay=2.5, headers={"lang": "Ünïcode \x00"}, max_attempts=2)
    writer.add("e", "y", b"keyed", unique_key="k", run_at=EPOCH + timedelta(days=1))
    return writer.finish()


def is_read(content):
    """Return True if the jobs are read and can be added; False if they are refused with our own error."""
    try:
        staged = read_staged(content)
    except InvalidBlobError:
        return False
    assert 5 == len(run(jobs_after(EnqueueStaged([staged]))))
    return True


def test_any_damaged_or_missing_byte_is_an_error_or_does_no_harm():
    content = ordinary()
    assert is_read(content)
    assert not any(is_read(content[:end]) for end in range(len(content)))
    harmless = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 8
        harmless += is_read(bytes(damaged))
    assert harmless <= 1  # white space in the first line, which says the same


@pytest.mark.parametrize("content", [b"", b"[]\n\n", b"[" * 100_000, b'{"staged": 1, "crc": null}\n{}\n'])
def test_other_content_is_refused(content):
    assert not is_read(content)
