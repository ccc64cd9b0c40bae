"""A queue on a place that keeps jobs one by one: what it does when somebody else is quicker, or the place fails."""

import asyncio
import itertools
import threading

import pytest

from jqueue import ClaimLostError, DeadlineExceededError, JobNotFoundError, StorageError, UnknownOutcomeError
from jqueue.domain.errors import StorageFatalError
from jqueue.formats.port import JobStorePort, Kept, Lost, Step
from jqueue.formats.queue import StoreQueue
from jqueue.operations import Ack, Cancel
from jqueue.ports.queue import Capabilities
from tests.unit.in_vain import until_its_deadline


class Shelf:
    """A place in memory that keeps jobs one by one, fails as it is told to, and counts what it is asked."""

    capabilities = Capabilities(transactions=False)
    knows_expiry = False
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

    def has_moved(self):
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
                return Lost()
            self.put(change.job_id, change.after)
            if change.acked:
                self.acked[change.job_id] = change.before.attempt
            self.after(change)
        except Exception as error:
            return error
        return self.kept.get(change.job_id, Kept(change.after or change.before, ""))

    def put(self, job_id, job):
        """Somebody changes a job."""
        if job is None:
            del self.kept[job_id]
        else:
            self.kept[job_id] = Kept(job, str(next(self.place)))

    def _all_places(self):
        return sorted(kept.place for kept in self.kept.values())


def once(act):
    """Do it at the first change for which it does not return False, and never again."""
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


def test_a_shelf_is_a_store_of_jobs(shelf):
    assert isinstance(shelf, JobStorePort)


async def test_a_claim_that_another_program_won_is_not_handed_out_and_the_next_job_is(shelf, queue):
    first, second = await queue.enqueue("work", b"1"), await queue.enqueue("work", b"2")
    shelf.before = once(lambda change: shelf.put(first.id, None) if change.step is Step.CLAIM else False)
    assert [second.id] == [job.id for job in await queue.dequeue("work")]


async def test_of_a_batch_the_claims_that_were_won_are_handed_out(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(3)]
    gone = jobs[1].id
    shelf.before = once(lambda change: shelf.put(gone, None) if change.job_id == gone else False)
    claimed = await queue.dequeue("work", batch_size=3)
    assert {jobs[0].id, jobs[2].id} == {job.id for job in claimed}
    await queue.ack_many(claimed)
    assert {} == shelf.kept


async def test_an_ack_whose_job_another_program_took_says_so(shelf, queue):
    await queue.enqueue("work", b"1")
    [job] = await queue.dequeue("work")
    shelf.before = once(lambda change: shelf.put(job.id, None) if change.step is Step.REMOVE else False)
    with pytest.raises(ClaimLostError):
        await queue.ack(job)


async def test_one_that_lost_its_race_leaves_the_others_of_the_same_commit_alone(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(5)]
    claimed = await queue.dequeue("work", batch_size=5)
    gone = jobs[2].id
    shelf.before = once(lambda change: shelf.put(gone, None) if change.job_id == gone else False)
    answers = await asyncio.gather(*(queue.ack(job) for job in claimed), return_exceptions=True)
    assert [type(None), type(None), ClaimLostError, type(None), type(None)] == [type(answer) for answer in answers]
    assert {} == shelf.kept
    assert 5 + 5 + 5 == len(shelf.steps), "what was done once was done again"


async def test_of_several_things_each_is_told_for_itself(shelf, queue):
    waiting = await queue.enqueue("work", b"1", priority=9)
    for payload in (b"2", b"3"):
        await queue.enqueue("work", payload)
    lost, done = await queue.dequeue("work", batch_size=2)
    robbed = {waiting.id, lost.id}

    def rob(change):
        if change.job_id in robbed:
            robbed.remove(change.job_id)
            shelf.put(change.job_id, None)

    shelf.before = rob
    answers = await queue.apply_each(Cancel(waiting.id), Ack(lost), Ack(done))
    assert [JobNotFoundError, ClaimLostError, type(None)] == [type(answer) for answer in answers]
    assert {} == shelf.kept
    with pytest.raises(ClaimLostError):
        await queue.ack(lost)
    await queue.ack(done)


async def test_a_failure_of_the_place_is_tried_again_and_nobody_else_hears_of_it(shelf, queue):
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


async def test_a_job_that_was_added_although_the_place_failed_is_not_added_again(shelf, queue):
    def fail(change):
        raise OSError(5, "Input/output error")

    shelf.after = once(fail)
    job = await queue.enqueue("work", b"1")
    assert [job.id] == list(shelf.kept)
    assert [Step.ADD] == shelf.steps


async def test_a_failure_that_stays_is_the_error_of_the_deadline(shelf, queue):
    def fail(change):
        raise OSError(28, "No space left on device")

    shelf.before = fail
    with pytest.raises(DeadlineExceededError, match="No space left"):
        await until_its_deadline(queue, queue.enqueue("work", b"secret"))
    assert {} == shelf.kept


async def test_a_refusal_is_told_at_once_and_once(shelf, queue):
    tried = []

    def refuse(change):
        tried.append(change.job_id)
        raise StorageFatalError("this folder may not be written")

    shelf.before = refuse
    with pytest.raises(StorageFatalError, match="may not be written"):
        await queue.enqueue("work", b"1")
    assert 1 == len(tried)


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


async def test_a_place_that_cannot_be_read_for_a_while_is_read_again(shelf, queue):
    failures = iter([OSError(5, "Input/output error"), StorageError("away")])

    def fail():
        for failure in failures:
            raise failure

    shelf.reading = fail
    job = await queue.enqueue("work", b"1")
    assert [job.id] == list(shelf.kept)


async def test_what_is_closed_in_the_middle_of_a_change_cannot_be_said_to_be_undone(shelf, queue):
    entered, go_on = threading.Event(), threading.Event()

    def block(change):
        entered.set()
        assert go_on.wait(20)

    shelf.before = block
    async with asyncio.timeout(30):
        call = asyncio.create_task(queue.enqueue("work", b"1"))
        await asyncio.to_thread(entered.wait)
        closing = asyncio.create_task(queue._writer.close("closed", 0.05))
        with pytest.raises(UnknownOutcomeError):
            await call
        go_on.set()
        await closing


async def test_an_idle_queue_looks_only_when_something_has_moved(shelf, queue):
    await queue.enqueue("work", b"1")
    [job] = await queue.dequeue("work")
    await queue.ack(job)
    assert [] == await queue.dequeue("work")
    before = shelf.scans, len(shelf.steps)
    for _ in range(5):
        assert [] == await queue.dequeue("work")
    assert before == (shelf.scans, len(shelf.steps))


async def test_what_another_queue_does_is_seen(shelf, queue):
    other = StoreQueue(Shelf(shelf))
    assert [] == await queue.dequeue("work")
    job = await other.enqueue("work", b"1")
    assert [job.id] == [claimed.id for claimed in await queue.dequeue("work")]
    assert [] == await other.dequeue("work")


async def test_a_look_leaves_what_it_saw_to_be_seen_by_calls(shelf, queue):
    other = StoreQueue(Shelf(shelf))
    assert [] == await queue.dequeue("work")
    job = await other.enqueue("work", b"1")
    assert [job.id] == [seen.id for seen in (await queue.read_state()).jobs]
    assert [job.id] == [claimed.id for claimed in await queue.dequeue("work")]


async def test_nobody_looks_while_a_change_is_under_way(shelf, queue):
    inside = []

    def enter(*_):
        inside.append(threading.get_ident())
        assert 1 == len(inside)
        threading.Event().wait(0.01)
        inside.pop()

    shelf.before = shelf.reading = enter
    calls = [queue.enqueue("work", b"1"), queue.read_state(), queue.stats(), queue.enqueue("work", b"2")]
    await asyncio.gather(*calls)
    assert 2 == len((await queue.read_state()).jobs)


async def test_a_batch_of_which_some_were_lost_is_filled_up_with_others(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(5)]
    gone = jobs[1].id
    shelf.before = once(lambda change: shelf.put(gone, None) if change.job_id == gone else False)
    claimed = await queue.dequeue("work", batch_size=3)
    assert {jobs[0].id, jobs[2].id, jobs[3].id} == {job.id for job in claimed}
    assert [jobs[4].id] == [job.id for job in await queue.dequeue("work", batch_size=3)]
    assert [] == await queue.ack_many(claimed)


async def test_what_was_claimed_for_a_batch_that_nobody_waits_for_any_more_goes_back(shelf, queue):
    jobs = [await queue.enqueue("work", b"1") for _ in range(3)]
    gone, entered, go_on = jobs[1].id, threading.Event(), threading.Event()

    def lose_then_block(change):
        if change.job_id == gone:
            shelf.put(gone, None)
            shelf.reading = block

    def block():
        entered.set()
        assert go_on.wait(20)

    shelf.before = lose_then_block
    call = asyncio.create_task(queue.dequeue("work", batch_size=3))
    await asyncio.to_thread(entered.wait)
    call.cancel()
    await asyncio.wait([call])
    shelf.before = lambda change: None
    go_on.set()
    async with asyncio.timeout(20):
        claimed = await queue.dequeue("work", batch_size=3, wait=15)
    assert {jobs[0].id, jobs[2].id} == {job.id for job in claimed}
    assert {1} == {job.failures for job in claimed}, "it was charged, or the claim ran out"
