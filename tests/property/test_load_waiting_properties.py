"""Packed jobs that only wait are loaded without a model of each, and give the same draft as whole jobs."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jqueue import Job
from jqueue.domain.draft import Draft
from jqueue.domain.job_table import packed
from jqueue.domain.models import LARGEST, QueueState
from jqueue.domain.rules import QueueSettings
from tests.property.test_codec_properties import times
from tests.property.test_layout_properties import any_jobs

pytestmark = pytest.mark.wide

LATE = datetime(9999, 1, 1, tzinfo=UTC)
waiting = st.builds(
    Job,
    id=st.text(min_size=1, max_size=3),
    entrypoint=st.sampled_from("ab"),
    payload=st.just(b""),
    priority=st.integers(-2, 2),
    sequence=st.integers(0, 5),
    attempt=st.sampled_from([0, 0, 0, 1, LARGEST]),
    failures=st.sampled_from([0, 0, 0, LARGEST]),
    created_at=times,
)


def served(draft):
    found = []
    while (job := draft.jobs.order.take(None, LATE)) is not None:
        found.append(job)
    return found


@given(st.lists(any_jobs | waiting, max_size=8, unique_by=lambda job: job.id), st.sampled_from([None, 2.5]))
def test_loading_packed_or_whole_jobs_gives_the_same_draft(jobs, aging):
    one, other = Draft(), Draft()
    for draft in (one, other):
        draft.take_header(QueueState(settings=QueueSettings(aging=aging)))
    for job in jobs:
        one.load([job])
        taken_over = other.jobs.put_waiting(job.id, packed(job, {}))
        if not taken_over:
            other.load([job])
        assert job.sequence or not taken_over  # those get their places in the end
        assert not other.jobs.put_waiting(job.id, packed(job, {}))  # it is known by now
    other.settle()
    assert list(one.jobs.values()) == list(other.jobs.values())
    mine, theirs = one.jobs, other.jobs
    assert (mine.dirty, mine.last_sequence, mine.claimed) == (theirs.dirty, theirs.last_sequence, theirs.claimed)
    assert mine.keys_held == theirs.keys_held
    assert (mine.order.running, mine.order._queued) == (theirs.order.running, theirs.order._queued)
    assert served(one) == served(other)
