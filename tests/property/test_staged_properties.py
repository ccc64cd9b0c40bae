"""Any staged jobs become the same jobs as those of an enqueue."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jqueue import DirectQueue, InMemoryStorage, Limits
from jqueue.core.blob.segment_staging import SegmentStager, StagedTask
from jqueue.domain.fields import COUNT_MAX, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.operations.bulk import NewSegment, Transaction
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.segments import FOLDER, staged_name
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


async def jobs_in(storage):
    """Return the jobs of a queue as another queue object reads them."""
    return [job async for job in DirectQueue(storage, clock=VirtualClock()).iterate_jobs()]


def contents(jobs):
    """Return jobs in their order, without what differs between two enqueues."""
    in_order = sorted(jobs, key=lambda job: job.sequence)
    return [job.model_dump(exclude={"id", "sequence"}) for job in in_order]


@settings(deadline=None, max_examples=15, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows, min_size=1, max_size=3).filter(any), st.booleans())
@example([[("x", b"\x00\n, \n", {"headers": {"a": "\x00\n"}})]], True)
def test_staged_jobs_equal_those_of_an_enqueue(tasks, few):
    async def try_it():
        limits = Limits(hot_bytes=10_000 if few else 1)
        plain, storage = (InMemoryStorage(clock=VirtualClock()) for _ in range(2))
        await DirectQueue(plain, clock=VirtualClock()).apply(
            *[Enqueue(entrypoint, payload, **details) for rows in tasks for entrypoint, payload, details in rows]
        )
        staged = []
        for task, rows in enumerate(tasks):
            stager, new = SegmentStager(limits, EPOCH, f"task {task}", rows=3, chunk_rows=2), []
            for entrypoint, payload, details in rows:
                stager.add(entrypoint, payload, **details)
            for number, encoded in enumerate((*stager.full(), *stager.rest())):
                name = staged_name("app", 1, f"{task}-{number}")
                await storage.create_object(FOLDER + name, encoded.content)
                new.append(NewSegment(name, encoded.entry, created_at=EPOCH))
            staged.append(StagedTask(stager.jobs, new, frozenset(stager.features)))
        queue = DirectQueue(storage, clock=VirtualClock(), limits=limits)
        await queue.enqueue_staged(staged, Transaction("app", 1))
        expected, jobs = [await jobs_in(each) for each in (plain, storage)]
        assert contents(expected) == contents(jobs)

    run(try_it())
