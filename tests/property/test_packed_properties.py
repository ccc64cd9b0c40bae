"""A packed job is unpacked unchanged: every field, every header, and fields that this version does not know."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue.core.blob.lines import encode_job
from jqueue.domain.draft import Draft
from jqueue.domain.job_table import packed, place_of, unpacked
from jqueue.domain.models import Job, JobStatus, trusted_job
from tests.property.test_layout_properties import any_jobs, unknown

pytestmark = pytest.mark.wide

PACKED = settings(max_examples=60, deadline=None)
jobs = st.builds(lambda job, extra: trusted_job(dict(job.__dict__), extra), any_jobs, unknown)


@PACKED
@given(jobs)
def test_a_job_is_unpacked_as_it_was_packed(job):
    small = packed(job, {})
    found = unpacked(job.id, small)
    assert job == found
    for name in Job.model_fields:
        was, now = getattr(job, name), getattr(found, name)
        assert (was, was.__class__) == (now, now.__class__), name
    assert job.status is found.status
    assert (job.__pydantic_extra__ or {}) == (found.__pydantic_extra__ or {})
    assert list(job.headers.items()) == list(found.headers.items())
    assert encode_job(job) == encode_job(found)
    assert small == packed(found, {})
    assert {str, bytes, int, tuple, job.created_at.__class__} >= {each.__class__ for each in small}


@PACKED
@given(jobs)
def test_the_place_of_a_packed_job_is_known_without_unpacking_it_if_it_waits_for_nothing_else(job):
    place = place_of(packed(job, {}))
    if place is None:
        plain = trusted_job({**Job(id="0", entrypoint="", payload=b"").__dict__, "status": JobStatus.QUEUED})
        in_its_place = {"entrypoint", "payload", "status", "priority", "created_at", "sequence", "attempt", "failures"}
        names = Job.model_fields.keys() - in_its_place - {"id"}
        others = any(getattr(job, name) != getattr(plain, name) for name in names)
        assert others or job.status is not JobStatus.QUEUED
    else:
        assert job.status is JobStatus.QUEUED
        assert job.run_at is None
        assert place == (job.priority, job.sequence, job.entrypoint)


@PACKED
@given(st.lists(jobs, max_size=4, unique_by=lambda job: job.id))
def test_a_draft_of_packed_jobs_is_the_state_that_it_was_opened_from(found):
    draft = Draft()
    draft.load(found)
    for job_id, entry in list(draft.jobs.entries.items()):
        draft.jobs.entries[job_id] = packed(unpacked(job_id, entry), {})
    assert found == list(draft.freeze().jobs)
    assert found == list(draft.jobs.values())
    mark = draft.savepoint()
    for job in found:
        draft.note(draft.jobs, job.id, job.evolve(payload=b"other"))
    draft.rollback(mark)
    assert found == list(draft.freeze().jobs)
