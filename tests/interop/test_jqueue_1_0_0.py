"""The real jqueue 1.0.0 and this version on one file: 1.0.0 refuses the new format, and the old format is read."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jqueue import BrokerQueue, DirectQueue, JobNotFoundError, LocalFileSystemStorage
from jqueue.testing.fake_clock import FakeClock

pytestmark = pytest.mark.wide

HERE = Path(__file__).parent
EVERY_CALL = {"read_state", "enqueue", "dequeue", "ack", "nack", "heartbeat"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "queue"


@pytest.fixture
def path(folder):
    return folder / "queue.json"


@pytest.fixture
def queue(path):
    return DirectQueue(LocalFileSystemStorage(path))


@pytest.fixture
def written(real, folder):
    """The description that 1.0.0 prints of the queue it wrote."""
    return json.loads(real.run(HERE / "written_by_1_0_0.py", folder=folder))


def shown(job):
    fields = job.model_dump(mode="json", include={"id", "entrypoint", "payload", "status", "priority"})
    times = (job.created_at, job.heartbeat_at)
    return {**fields, "times": [time and time.timestamp() for time in times]}


async def emptied(queue):
    await queue.enqueue("task", b"", job_id="done")
    await queue.ack((await queue.dequeue())[0])


async def with_everything(queue):
    await queue.enqueue("task", b"data", job_id="a dead job", max_attempts=1)
    await queue.nack((await queue.dequeue())[0], error="it failed")
    await emptied(queue)
    await queue.enqueue("task", b"data", job_id="a job")
    await queue.dequeue()
    await queue.enqueue("später", b"\0", 5, delay=3600, unique_key="key", headers={"trace": "1"}, expires_at=None)
    await queue.enqueue("task", b"ready", -5)


@pytest.mark.parametrize("fill", [emptied, with_everything], ids=lambda it: it.__name__)
async def test_1_0_0_refuses_a_blob_of_jqueue_2_and_changes_no_byte(fill, real, queue, folder, path):
    await fill(queue)
    before, status = path.read_bytes(), path.stat()
    names = sorted(entry.name for entry in folder.iterdir())
    endings = real.run(HERE / "refusals.py", "a job", "another job", folder=folder).splitlines()
    for kind, calls in (("DirectQueue", EVERY_CALL | {"requeue_stale"}), ("BrokerQueue", EVERY_CALL)):
        assert calls == {line.split()[0].removeprefix(f"{kind}.") for line in endings if line.startswith(kind)}
    assert {"raised ValidationError"} == {" ".join(line.split()[-2:]) for line in endings}
    assert before == path.read_bytes()
    assert (status.st_ino, status.st_mtime_ns) == (path.stat().st_ino, path.stat().st_mtime_ns)
    assert names == sorted(entry.name for entry in folder.iterdir())


async def test_jobs_of_1_0_0_are_read_as_1_0_0_reads_them_and_not_converted(written, queue, real, folder, path):
    before = path.read_bytes()
    state = await queue.read_state()
    assert written["version"] == state.version
    assert written["jobs"] == [shown(job) for job in state.jobs]
    assert written["queued"] == [job.id for job in state.queued_jobs()]
    assert written["in progress"] == [job.id for job in state.in_progress_jobs()]
    assert () == state.set_aside
    assert [] == await queue.dequeue("nothing of this name")
    with pytest.raises(JobNotFoundError):
        await queue.ack("nothing of this name")
    assert before == path.read_bytes()
    assert "raised ValidationError" not in real.run(HERE / "refusals.py", "no such job", folder=folder)


async def test_the_first_commit_converts_a_queue_of_1_0_0_and_loses_nothing(written, queue, real, folder, path):
    added = await queue.enqueue("added", b"by ours", priority=100)
    assert path.read_bytes().startswith(b'{"format":2,')
    converted = await DirectQueue(LocalFileSystemStorage(path)).read_state()
    assert [*written["jobs"], shown(added)] == [shown(job) for job in converted.jobs]
    assert written["version"] + 1 == converted.version
    before = path.read_bytes()
    assert "returned" not in real.run(HERE / "refusals.py", added.id, folder=folder)
    assert before == path.read_bytes()


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_jobs_of_1_0_0_are_served_in_its_order_and_its_claims_once_they_are_stale(kind, written, path):
    clock = FakeClock(datetime.now(UTC))
    async with kind(LocalFileSystemStorage(path), clock=clock) as queue:
        served = []
        while jobs := await queue.dequeue(batch_size=3):
            served += [job.id for job in jobs]
            for job in jobs:
                await queue.heartbeat(job.id)
                await queue.ack(job.id)
        assert written["queued"] == served
        clock.advance(301)
        recovered = await queue.dequeue("to be claimed", batch_size=10)
        assert set(written["in progress"]) == {job.id for job in recovered}
        assert [2, 2] == [job.attempt for job in recovered]
        for job in recovered:
            await queue.ack(job.id)
        assert () == (await queue.read_state()).jobs
