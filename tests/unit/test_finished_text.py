"""The finished jobs in the bytes of a blob are those of its draft, after every kind of change, undo and adoption."""

from datetime import UTC, datetime

import pytest

from jqueue.core.blob import codec
from jqueue.core.blob.content import Blob
from jqueue.domain import commits
from jqueue.domain.commits import CommitId, next_header
from jqueue.domain.models import PLAIN_FIELDS, Claim, Job, JobStatus, trusted_job
from jqueue.domain.operations import Ack, perform, perform_run

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


OLD, NEW = [f"old {number}" for number in range(100)], [f"new {number}" for number in range(400)]
AGAIN = 7
"""The attempt of a job whose id is among the finished ones."""


@pytest.fixture
def blob():
    """A blob that was committed once, with some finished jobs, and jobs in progress."""
    blob = Blob()
    claim(blob, OLD)
    finish(blob, *OLD)
    commit(blob)
    claim(blob, NEW)
    claim(blob, ["old 3"], attempt=AGAIN)
    return blob


def claim(blob, ids, attempt=1):
    jobs = [Job(id=name, entrypoint="t", payload=b"", status=JobStatus.IN_PROGRESS, attempt=attempt) for name in ids]
    blob.draft.load([trusted_job(dict(job.__dict__), None, PLAIN_FIELDS) for job in jobs])


def finish(blob, *ids, attempt=1):
    """Ack jobs: several of them in one pass, as the engine does."""
    acks = [Ack(Claim(name, attempt)) for name in ids]
    done = perform_run(acks, blob.draft, NOW) if len(acks) > 1 else ()
    for ack in acks[len(done) :]:
        assert perform(ack, blob.draft, NOW) is None


def written(blob):
    """Return the header of the next commit and its bytes, which were checked."""
    header = next_header(blob.draft, CommitId("w", 1, blob.draft.header.version), "q", NOW, 0.1)
    content = blob.encode(header)
    assert content.startswith(b"".join(codec.encode_header(header)))
    return header, content


def commit(blob):
    header, content = written(blob)
    blob.settle(header, len(content))
    return content


def not_landed(blob):
    written(blob)
    blob.draft.rollback()


def adopt(blob, content):
    blob.adopt(codec.parse_blob(content), len(content))


def test_jobs_finished_in_later_commits_are_added(blob):
    for number in range(80):
        finish(blob, *NEW[number * 4 : number * 4 + number % 5])
        commit(blob)


def test_a_job_that_is_finished_again_has_its_new_attempt(blob):
    finish(blob, "old 3", attempt=AGAIN)
    commit(blob)
    assert b'"old 3": 7' in commit(blob)


def test_a_commit_that_did_not_land_leaves_no_entry(blob):
    for ids in (NEW[:1], NEW[1:2], NEW[2:4], NEW[4:6]):
        finish(blob, *ids)
        not_landed(blob)
    finish(blob, "old 3", attempt=AGAIN)
    not_landed(blob)
    commit(blob)


@pytest.mark.parametrize("number", [1, 2])
def test_an_undo_after_a_try_leaves_no_entry(blob, number):
    finish(blob, *NEW[:number])
    savepoint = blob.draft.savepoint()
    finish(blob, *NEW[2 : 2 + number])
    written(blob)
    blob.draft.rollback(savepoint)
    finish(blob, *NEW[4 : 4 + number])
    commit(blob)


def test_an_entry_that_is_dropped_and_noted_again_stands_last(blob):
    draft = blob.draft
    draft.forget(draft.header.finished, "old 3")
    draft.note(draft.header.finished, "old 3", 1)
    commit(blob)


def test_another_writers_finished_jobs_are_adopted(blob):
    other = Blob()
    adopt(other, commit(blob))
    finish(other, NEW[0])
    theirs = commit(other)
    finish(blob, NEW[1])
    not_landed(blob)
    adopt(blob, theirs)
    finish(blob, NEW[1])
    commit(blob)


def test_the_oldest_are_dropped_whether_the_first_try_lands_or_not(blob, monkeypatch):
    monkeypatch.setattr(commits, "FINISHED_KEPT", 100)
    monkeypatch.setattr(commits, "FINISHED_SLACK", 0)
    finish(blob, NEW[0], NEW[1])
    not_landed(blob)
    finish(blob, NEW[0])
    not_landed(blob)
    commit(blob)
    finish(blob, *NEW[2:72])
    commit(blob)
    assert 100 == len(blob.draft.header.finished)


def test_the_oldest_are_not_dropped_by_a_try_that_changed_no_entry(blob, monkeypatch):
    """Another writer keeps more of them than this one."""
    with monkeypatch.context() as patch:
        patch.setattr(commits, "FINISHED_KEPT", 30)
        patch.setattr(commits, "FINISHED_SLACK", 0)
        not_landed(blob)
    commit(blob)
    assert 100 == len(blob.draft.header.finished)
