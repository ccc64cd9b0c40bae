"""One worker on several queues: whose turn it is, that no slot is given twice, and queues that are empty or fail."""

import asyncio
from collections import Counter

import pytest

from jqueue import InMemoryStorage, InvalidJobError
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import broker, counted, direct, drained, until, working


class Recorder:
    """A worker that notes the queue of each job that it begins, and the largest number of jobs at once."""

    def __init__(self, *names_and_queues, **settings):
        self.names = {id(queue): name for name, queue in names_and_queues}
        self.worker = Worker(**settings)
        self.began = list[tuple[str, float]]()
        self.running = self.most = 0

        @self.worker.handler("work")
        async def work(seconds: float, ctx: Context) -> None:
            self.began.append((self.names[id(ctx.queue)], now()))
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(seconds)
            self.running -= 1

        self.work = work

    @property
    def order(self):
        return "".join(name for name, _ in self.began)

    async def fill(self, queue, count, seconds=1.0):
        for _ in range(count):
            await self.work.using(queue).enqueue(seconds)


def two(make=direct, **settings):
    first, second = make(), make()
    return first, second, Recorder(("a", first), ("b", second), **settings)


@pytest.mark.parametrize("make", [direct, broker])
@in_virtual_time
async def test_the_queues_use_the_slots_in_turn(make):
    first, second, recorder = two(make, concurrency=1)
    async with first, second:
        for queue in (first, second):
            await recorder.fill(queue, 5)
        assert RunReport(succeeded=10) == await drained(recorder.worker, first, second)
    assert ("ababababab", 1) == (recorder.order, recorder.most)


@in_virtual_time
async def test_jobs_of_all_queues_together_are_no_more_than_the_slots():
    queues = [direct() for _ in range(3)]
    recorder = Recorder(*((str(number), queue) for number, queue in enumerate(queues)), concurrency=7)
    for queue in queues:
        await recorder.fill(queue, 50)
    assert RunReport(succeeded=150) == await drained(recorder.worker, *queues)
    assert 7 == recorder.most
    assert {"0": 50, "1": 50, "2": 50} == Counter(recorder.order)
    assert now() < 150 / 7 + 2, "slots were free while jobs were ready"
    assert [50] * 3 == [(await queue.stats()).totals.claimed for queue in queues]


@in_virtual_time
async def test_an_empty_queue_takes_no_slots_and_few_calls_from_a_busy_one():
    storage = counted()
    busy, empty = direct(), direct(storage)
    recorder = Recorder(("a", busy), ("b", empty), concurrency=2)
    await recorder.fill(busy, 400, 0.1)
    async with working(recorder.worker, busy, empty):
        await until(lambda: len(recorder.began) == 400)
        assert now() < 400 * 0.1 / 2 + 1
        assert storage.reads < 50
        before = now()
        await recorder.fill(empty, 1)
        await until(lambda: recorder.order.endswith("b"))
        assert now() - before < 1.2
    assert "b" == recorder.order[-1]


@pytest.mark.parametrize("make", [direct, broker])
@in_virtual_time
async def test_a_job_of_an_idle_queue_begins_as_soon_as_a_poll_shows_it(make):
    first, second, recorder = two(make, concurrency=1)
    async with first, second, working(recorder.worker, first, second):
        for number in range(10):
            await asyncio.sleep(50)
            enqueued = now()
            await recorder.fill((first, second)[number % 2], 1)
            await until(lambda number=number: len(recorder.began) == number + 1)
            assert now() - enqueued < 1.1
    assert "ababababab" == recorder.order


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.HANGS])
@in_virtual_time
async def test_the_other_queues_go_on_when_a_store_fails_or_hangs(fault, concurrency):
    ill = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    healthy, failing = direct(), direct(ill)
    recorder = Recorder(("a", failing), ("b", healthy), concurrency=concurrency)
    await recorder.fill(healthy, 20 * concurrency)
    ill.on_read(*[fault] * 1000)
    async with working(recorder.worker, failing, healthy):
        await until(lambda: len(recorder.began) == 20 * concurrency)
    assert now() < 35


@in_virtual_time
async def test_a_queue_that_answers_late_is_served():
    slow = FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=5)
    first, second = direct(), direct(slow)
    recorder = Recorder(("a", first), ("b", second), concurrency=2)
    await recorder.fill(direct(slow.storage), 3)
    await recorder.fill(first, 10)
    async with working(recorder.worker, first, second):
        await asyncio.sleep(150)
    assert {"a": 10, "b": 3} == Counter(recorder.order)


@in_virtual_time
async def test_a_queue_that_is_given_twice_is_refused():
    queue, worker = direct(), Worker()

    @worker.handler
    async def work() -> None: ...

    with pytest.raises(InvalidJobError, match="twice"):
        await worker.run(queue, queue)
