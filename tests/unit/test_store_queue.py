"""A queue on a store of jobs when another program is quicker, or the store fails."""

import asyncio
import itertools

import pytest

from jqueue import ClaimLostError, DeadlineExceededError, StorageError
from jqueue.domain.errors import StorageFatalError
from jqueue.formats.port import JobChangedError, Step, StoredJob
from jqueue.formats.queue import StoreQueue
from jqueue.ports.queue import Capabilities
from tests.unit.until_deadline import run_until_deadline


class Shelf:
    """A store of jobs in memory with hooks that can fail; it counts its scans and notes its steps."""

    capabilities = Capabilities(transactions=False)
    claims_expire_by_clock = False
    name = "a shelf"

    def __init__(self, same=None):
        self.kept = {} if same is None else same.kept
        self.place = itertools.count(1) if same is None else same.place
        self.acked = {} if same is None else same.acked
        self.scans = 0
        self.steps: list[Step] = []
        self.before = lambda change: None
        self.after = lambda change: None
        self.reading = lambda: None
        self._seen = None

    def exists(self):
        return True

    def may_have_changed(self):
        return self._seen != self._all_places()

    def scan(self, now):
        self.reading()
        self.scans += 1
        self._seen = self._all_places()
        return sorted(self.kept.values(), key=lambda kept: kept.job.sequence)

    def payloads(self, jobs):
        return [job for job, _ in jobs]

    def finished(self):
        return dict(self.acked)

    def carry_out(self, changes, now):
        return [self.carry(change) for change in changes]

    def carry(self, change):
        try:
            self.before(change)
            self.steps.append(change.step)
            kept = self.kept.get(change.job_id)
            if change.place != ("" if kept is None else kept.place):
                return JobChangedError()
            self.put(change.job_id, change.after)
            if change.acked:
                self.acked[change.job_id] = change.before.attempt
            self.after(change)
        except Exception as error:
            return error
        return self.kept.get(change.job_id, StoredJob(change.after or change.before, ""))

    def put(self, job_id, job):
        """Change a job as another program would."""
        if job is None:
            del self.kept[job_id]
        else:
            self.kept[job_id] = StoredJob(job, str(next(self.place)))

    def _all_places(self):
        return sorted(kept.place for kept in self.kept.values())


def once(act):
    """Return a hook that calls `act` at each change until it does not return False, and then never again."""
    done: list[bool] = []

    def hook(change):
        if not done:
            done.append(True)
            if act(change) is False:
                done.clear()

    return hook


@pytest.fixture
def shelf():
    return Shelf()


@pytest.fixture
def queue(shelf):
    return StoreQueue(shelf)


async def test_an_ack_that_lost_its_race_does_not_affect_others_in_its_commit(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(5)]
    claimed = await queue.dequeue("work", batch_size=5)
    gone = jobs[2].id
    shelf.before = once(lambda change: shelf.put(gone, None) if change.job_id == gone else False)
    answers = await asyncio.gather(*(queue.ack(job) for job in claimed), return_exceptions=True)
    assert [type(None), type(None), ClaimLostError, type(None), type(None)] == [type(answer) for answer in answers]
    assert {} == shelf.kept
    assert 5 + 5 + 5 == len(shelf.steps), "a step was carried out twice"


async def test_a_failed_change_is_retried_without_affecting_other_calls(shelf, queue):
    failed: list[str] = []

    def fail(change):
        if not failed and change.after.payload == b"2":
            failed.append(change.job_id)
            raise OSError(5, "Input/output error")

    shelf.before = fail
    payloads = [b"1", b"2", b"3"]
    jobs = await asyncio.gather(*(queue.enqueue("work", payload) for payload in payloads))
    assert payloads == [job.payload for job in jobs]
    assert {job.id for job in jobs} == set(shelf.kept)
    assert [jobs[1].id] == failed


async def test_a_job_that_was_added_although_the_store_failed_is_not_added_again(shelf, queue):
    def fail(change):
        raise OSError(5, "Input/output error")

    shelf.after = once(fail)
    job = await queue.enqueue("work", b"1")
    assert [job.id] == list(shelf.kept)
    assert [Step.ADD] == shelf.steps


async def test_a_lasting_failure_is_named_in_the_deadline_error(shelf, queue):
    def fail(change):
        raise OSError(28, "No space left on device")

    shelf.before = fail
    with pytest.raises(DeadlineExceededError, match="No space left"):
        await run_until_deadline(queue, queue.enqueue("work", b"secret"))
    assert {} == shelf.kept


async def test_a_refusal_of_one_job_is_not_the_error_of_others(shelf, queue):
    def refuse(change):
        if change.after.payload == b"2":
            raise StorageFatalError("this payload has no place here")

    shelf.before = refuse
    answers = await asyncio.gather(
        *(queue.enqueue("work", payload) for payload in (b"1", b"2", b"3")), return_exceptions=True
    )
    assert [False, True, False] == [isinstance(answer, StorageFatalError) for answer in answers]
    assert {b"1", b"3"} == {kept.job.payload for kept in shelf.kept.values()}


async def test_a_store_that_cannot_be_read_for_a_while_is_read_again(shelf, queue):
    failures = iter([OSError(5, "Input/output error"), StorageError("away")])

    def fail():
        for failure in failures:
            raise failure

    shelf.reading = fail
    job = await queue.enqueue("work", b"1")
    assert [job.id] == list(shelf.kept)


async def test_an_idle_queue_scans_only_after_a_change(shelf, queue):
    await queue.enqueue("work", b"1")
    [job] = await queue.dequeue("work")
    await queue.ack(job)
    assert [] == await queue.dequeue("work")
    before = shelf.scans, len(shelf.steps)
    for _ in range(5):
        assert [] == await queue.dequeue("work")
    assert before == (shelf.scans, len(shelf.steps))


async def test_a_batch_with_lost_claims_is_filled_up_with_other_jobs(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(5)]
    gone = jobs[1].id
    shelf.before = once(lambda change: shelf.put(gone, None) if change.job_id == gone else False)
    claimed = await queue.dequeue("work", batch_size=3)
    assert {jobs[0].id, jobs[2].id, jobs[3].id} == {job.id for job in claimed}
    assert [jobs[4].id] == [job.id for job in await queue.dequeue("work", batch_size=3)]
    assert [] == await queue.ack_many(claimed)
