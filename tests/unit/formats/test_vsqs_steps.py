"""The order of the parts of a step: answers come after the flush, and no step writes the note of another holder."""

import os
from datetime import timedelta

import pytest

from jqueue import Job, JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.formats.port import Change, JobChangedError, StoredJob
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.exclusive import rename_exclusively
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.fake_clock import FakeClock
from tests.unit.formats.folders import filled, names


@pytest.fixture
def done(monkeypatch):
    """Return the list of flushes and renames, in order."""
    done: list[tuple[str, str]] = []
    sync = os.fsync

    def noted_sync(descriptor: int) -> None:
        sync(descriptor)
        done.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))

    def noted_rename(old: str, new: str) -> None:
        rename_exclusively(old, new)
        done.append(("rename", os.path.basename(old)))

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr("jqueue.formats.vsqs.store.rename_exclusively", noted_rename)
    return done


@pytest.mark.parametrize("count", [1, 3, 250])
async def test_a_job_is_flushed_before_its_rename_and_the_rename_before_the_answer(tmp_path, done, count):
    queue = StoreQueue(VsqsFolder(tmp_path / "queue"))
    await queue.apply_each(*[Enqueue("work", b"payload")] * count)
    renamed = [name for what, name in done if what == "rename"]
    assert count == len(renamed)
    for name in renamed:
        assert done.index(("fsync", name)) < done.index(("rename", name))
    assert ("fsync", "queue") == done[-1]
    assert ("fsync", tmp_path.name) == done[0], "the folder of the queue's folder is flushed, too"


async def test_nothing_is_flushed_without_fsync(tmp_path, done):
    await StoreQueue(VsqsFolder(tmp_path / "queue", fsync=False)).enqueue("work", b"payload")
    assert ["rename"] == [what for what, _ in done]


class ClaimedAtOnce(VsqsFolder):
    """A folder in which another program claims each message as soon as it is ready again."""

    def _rename(self, old, new):
        super()._rename(old, new)
        other, now = (
            VsqsFolder(self.path, fsync=False, attributes=self._attributes),
            FakeClock().now() + timedelta(hours=1),
        )
        for job, place in other.scan(now):
            if job.status is JobStatus.QUEUED:
                claim = {"attempt": job.attempt + 1, "failures": job.failures + 1, "claim_timeout": 60.0}
                claimed = job.evolve(status=JobStatus.IN_PROGRESS, **claim)
                other.carry_out([Change(job, claimed, place)], now)
        return new


@pytest.mark.parametrize("charge", [True, False])
@pytest.mark.parametrize("attributes", [True, False])
async def test_a_job_handed_back_and_claimed_at_once_belongs_to_its_new_holder(tmp_path, charge, attributes):
    def queue(kind: type[VsqsFolder]) -> StoreQueue:
        return StoreQueue(kind(tmp_path, fsync=False, attributes=attributes), clock=FakeClock())

    filled(tmp_path, {"5": b""})
    [job] = await queue(VsqsFolder).dequeue()
    await queue(ClaimedAtOnce).nack(job, charge=charge)
    [held] = (await queue(VsqsFolder).read_state()).jobs
    assert (JobStatus.IN_PROGRESS, 2, 2 if charge else 1) == (held.status, held.attempt, held.failures)
    assert 1 == len(names(tmp_path))
    await queue(VsqsFolder).ack(held)


@pytest.mark.parametrize("attributes", [True, False])
def test_a_late_heartbeat_does_not_change_the_note_of_the_next_holder(tmp_path, attributes):
    now = FakeClock().now()
    late, other = (VsqsFolder(tmp_path, fsync=False, attributes=attributes) for _ in range(2))

    def claim(store: VsqsFolder, job: Job, place: str) -> StoredJob:
        [kept] = store.carry_out([Change(job, job.evolve(status=JobStatus.IN_PROGRESS, claim_timeout=9.0), place)], now)
        assert isinstance(kept, StoredJob)
        return kept

    new = Job(id="1", entrypoint="work", payload=b"", headers={"large": "x" * 2000})
    [added] = late.carry_out([Change(None, new, "")], now)
    assert isinstance(added, StoredJob)
    over = claim(late, *added)
    back = over.job.evolve(status=JobStatus.QUEUED, heartbeat_at=None, claim_timeout=None)
    [ready] = other.carry_out([Change(over.job, back, over.place)], now)
    assert isinstance(ready, StoredJob)
    held = claim(other, *ready)
    [outcome] = late.carry_out([Change(over.job, over.job, over.place)], now + timedelta(seconds=1))
    assert isinstance(outcome, JobChangedError)
    assert [(held.job.attempt, held.job.claim_timeout)] == [
        (job.attempt, job.claim_timeout) for job, _ in VsqsFolder(tmp_path, attributes=attributes).scan(now)
    ]
