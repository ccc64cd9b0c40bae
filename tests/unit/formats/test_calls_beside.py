"""A call on an older format takes no harm from the calls beside it, whatever the store does to those."""

import asyncio
import errno
import os
import threading

import pytest

from jqueue import InvalidJobError
from jqueue.domain.errors import DeadlineExceededError, StorageFatalError, UnknownOutcomeError
from jqueue.formats.port import JobChangedError, Step
from jqueue.formats.queue import StoreQueue
from jqueue.testing.fake_clock import FakeClock
from tests.unit.formats.places import in_each_format, open_queue


class Faulty:
    """A store on which the changes that `fails` names fail."""

    def __init__(self, store, fails):
        self._store, self.fails = store, fails

    def __getattr__(self, name):
        return getattr(self._store, name)

    def carry_out(self, changes, now):
        failure = OSError(errno.EIO, os.strerror(errno.EIO))
        return [failure if self.fails(change) else self._store.carry_out([change], now)[0] for change in changes]


@in_each_format
async def test_a_job_can_be_claimed_in_the_batch_that_adds_it(form, tmp_path):
    async with open_queue(form, tmp_path) as queue:
        added, [job] = await asyncio.gather(queue.enqueue("work", b"payload"), queue.dequeue())
        assert (added.id, b"payload") == (job.id, job.payload)


async def test_a_job_that_the_store_refuses_is_not_claimed_by_the_call_beside_it(tmp_path):
    async with open_queue("elements", tmp_path, more="schema=body:string&payload=body") as queue:
        error, jobs = await asyncio.gather(queue.enqueue("work", b"\xff"), queue.dequeue(), return_exceptions=True)
        assert isinstance(error, InvalidJobError)
        assert [] == jobs


@pytest.mark.parametrize("form", ["vsqs", "simple"])
async def test_a_stale_claim_that_cannot_be_ended_holds_up_no_call(form, tmp_path):
    clock = FakeClock()
    store = Faulty(open_queue(form, tmp_path).store, lambda change: change.step is Step.RELEASE)
    async with StoreQueue(store, clock=clock, deadline=5) as queue:
        await queue.enqueue("work", b"stale")
        await queue.dequeue(claim_timeout=10)
        clock.advance(3600)
        await queue.enqueue("work", b"ready")
        [job] = await queue.dequeue(batch_size=9, claim_timeout=9999)
        assert b"ready" == job.payload
        store.fails = lambda change: False
        clock.advance(3600)
        [job] = await queue.dequeue()
        assert b"stale" == job.payload


async def test_a_store_object_serves_only_the_last_queue_object_made_on_it(tmp_path):
    first = open_queue("simple", tmp_path)
    async with first, StoreQueue(first.store) as second:
        await second.enqueue("work", b"payload")
        with pytest.raises(StorageFatalError, match="store object"):
            await first.stats()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_a_forked_child_can_read_while_the_parent_is_in_the_store(tmp_path):
    entered, leave = threading.Event(), threading.Event()

    class Slow(Faulty):
        def scan(self, now):
            if not entered.is_set():
                entered.set()
                leave.wait()
            return self._store.scan(now)

    await open_queue("vsqs", tmp_path).enqueue("work", b"payload")
    queue = StoreQueue(Slow(open_queue("vsqs", tmp_path).store, None))
    staying = asyncio.create_task(queue.stats())
    await asyncio.to_thread(entered.wait)
    if not (child := os.fork()):
        ready = []
        thread = threading.Thread(target=lambda: ready.append(asyncio.run(queue.stats()).ready), daemon=True)
        thread.start()
        thread.join(10)
        os._exit(0 if [1] == ready else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    leave.set()
    await staying
    assert 0 == os.waitstatus_to_exitcode(status)


async def test_a_claim_that_loses_its_race_after_its_deadline_is_known_as_not_done(tmp_path):
    leave = threading.Event()

    class Lost(Faulty):
        def carry_out(self, changes, now):
            if self.fails(changes[0]):
                leave.wait()
                return [JobChangedError()]
            return self._store.carry_out(changes, now)

    store = Lost(open_queue("vsqs", tmp_path).store, lambda change: change.step is Step.CLAIM)
    async with StoreQueue(store) as queue:
        await queue.enqueue("work", b"payload")
        with pytest.raises(UnknownOutcomeError) as caught:
            await queue.dequeue(deadline=0.1)
        leave.set()
        with pytest.raises(DeadlineExceededError, match="certainly not done"):
            await caught.value.resolve(60)
