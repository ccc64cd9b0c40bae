"""A move to another queue and back keeps all that both queues can hold."""

import asyncio
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jqueue import Job, JobStatus, migrate
from jqueue.domain.operations.moving import Arrive
from tests.moved_jobs import KEPT_BY_ALL, KEPT_BY_BLOBS, jobs_of, open_at

pytestmark = pytest.mark.wide

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = st.sampled_from(["work", "mail", "päy.load", "x" * 60])
TIMES = st.one_of(st.none(), st.integers(1, 10**9).map(lambda s: datetime.now(UTC) + timedelta(days=1, seconds=s)))
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)


@st.composite
def jobs(draw, number, *, all_of_it):
    """Draw a job as a queue may have it while no worker holds it."""
    status = draw(st.sampled_from([JobStatus.QUEUED, JobStatus.QUEUED, JobStatus.DEAD]))
    failures = draw(st.integers(0, 5))
    values = {
        "id": f"id-{number}",
        "entrypoint": draw(NAMES),
        "payload": draw(st.binary(max_size=50)),
        "status": status,
        "created_at": NOW + timedelta(microseconds=draw(st.integers(0, 10**12))),
        "failures": failures,
        "attempt": failures + draw(st.integers(0, 3)),
        "max_attempts": draw(st.one_of(st.none(), st.integers(failures + 1, 99))),
        "headers": draw(st.dictionaries(st.sampled_from(["a", "b c", "ü"]), TEXTS, max_size=2)),
        "error": draw(st.one_of(st.none(), TEXTS.filter(bool))),
        "dead_at": NOW if status is JobStatus.DEAD else None,
        "run_at": draw(TIMES) if status is JobStatus.QUEUED else None,
    }
    if all_of_it:
        values |= {
            "priority": draw(st.integers(-3, 3)),
            "expires_at": draw(TIMES),
            "unique_key": draw(st.one_of(st.none(), st.just(f"key-{number}"))),
            "concurrency_key": draw(st.one_of(st.none(), st.just("few"))),
            "keep_result": draw(st.one_of(st.none(), st.just(5.0))),
        }
    return Job(**values)


@st.composite
def several(draw, *, all_of_it):
    return [draw(jobs(number, all_of_it=all_of_it)) for number in range(draw(st.integers(1, 8)))]


def kept_fields(job, fields):
    return {name: getattr(job, name) for name in (*fields, "run_at")}


@pytest.mark.parametrize(("here", "there"), [("memory", "memory"), ("memory", "vsqs"), ("vsqs", "vsqs")])
@given(data=st.data())
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_jobs_moved_there_and_back_are_unchanged(here, there, data):
    both_blobs = {here, there} == {"memory"}
    given_jobs = data.draw(several(all_of_it=both_blobs))
    fields = (*KEPT_BY_ALL, *KEPT_BY_BLOBS) if both_blobs else KEPT_BY_ALL

    async def run(folder):
        source, dest = open_at(folder, here, "source"), open_at(folder, there, "dest")
        for job in given_jobs:
            [added] = await source.apply_each(Arrive(job))
            assert isinstance(added, Job), added
        before = [kept_fields(job, fields) for job in await jobs_of(source)]
        for one, other in ((source, dest), (dest, source)):
            report = await migrate(one, other)
            assert (len(before), True) == (report.moved, report.complete), report
            assert [] == await jobs_of(one)
            assert before == [kept_fields(job, fields) for job in await jobs_of(other)]

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))
