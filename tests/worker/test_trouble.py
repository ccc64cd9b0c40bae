"""A store that fails, handlers that do not stop: the worker goes on, logs it each minute, and gives up in the end."""

import asyncio
import json
import logging
import time

import pytest

from jqueue import (
    BrokerQueue,
    CASConflictError,
    DeadlineExceededError,
    InMemoryStorage,
    JQueueError,
    Limits,
    QueueFullError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, StorageFatalError
from jqueue.testing.fake_clock import LongestWaits
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Context, RunReport, Worker
from jqueue.worker.loop_watch import watch_loop
from tests.virtual_world import in_virtual_time, now, stand_still
from tests.worker.scenes import LONG, FailingQueue, broker, counted, direct, drained, stubborn, until, working

GONE = StorageFatalError("the queue's object has disappeared")
DOWN = StorageError("the connection was reset")


@pytest.fixture(autouse=True)
def log(caplog):
    """The log lines of the worker at a level or above: `log()`, `log("ERROR")`."""
    caplog.set_level(logging.INFO, "jqueue.worker")

    def lines(level="INFO"):
        records = [record for record in caplog.records if record.name == "jqueue.worker"]
        return [record.getMessage() for record in records if record.levelno >= getattr(logging, level)]

    return lines


def counting(seconds=0.0, **options):
    """A worker, its handler, and the numbers of the jobs that it has done."""
    worker, done = Worker(**options), []

    @worker.handler("work", backoff=LONG)
    async def work(number: int = 0) -> None:
        await asyncio.sleep(seconds)
        if number < 0:
            raise ValueError
        done.append(number)

    return worker, work, done


@pytest.mark.parametrize(
    "error", [DOWN, UnknownOutcomeError("?"), DeadlineExceededError("?"), QueueFullError("?"), CASConflictError("?")]
)
@pytest.mark.parametrize("verb", ["dequeue", "apply_each", "heartbeat_many", "apply"])
@in_virtual_time
async def test_errors_of_the_store_do_not_end_the_worker(verb, error):
    worker, _, done = counting(25, claim_timeout=30)
    worker.handler("limited", max_running=3)(lambda: None)
    async with broker(kind=FailingQueue) as queue:
        await queue.enqueue("work", b"7")
        queue.fail(verb, error, times=3)
        assert RunReport(succeeded=1) == await drained(worker, queue)
        assert ([7], ()) == (done, (await queue.read_state()).jobs)
        assert len(queue.calls[verb]) >= 4


@in_virtual_time
async def test_a_worker_whose_outcomes_cannot_be_sent_claims_no_more_jobs_and_keeps_those_it_has():
    worker, work, _ = counting(concurrency=3, claim_timeout=9)
    async with broker(kind=FailingQueue) as queue, broker(queue.storage) as other:
        await queue.enqueue_many([work.call(number) for number in range(9)])
        queue.fail("apply_each", DOWN, until=60)
        async with working(worker, queue, drain=True) as task:
            await asyncio.sleep(1)
            assert {0, 1} == {job.attempt for job in (await other.read_state()).jobs}
            assert [1] * 3 == [job.attempt for job in (await other.read_state()).in_progress_jobs()]
            await asyncio.sleep(50)
            assert [1] * 3 == [job.attempt for job in (await other.read_state()).in_progress_jobs()]
            assert RunReport(succeeded=9) == await task


@in_virtual_time
async def test_a_heartbeat_that_fails_costs_only_the_jobs_of_its_call_their_claims():
    class OneFails(BrokerQueue):
        async def heartbeat_many(self, jobs, **options):
            if [job.job_id for job in jobs] == ["2"]:
                raise DOWN
            return await super().heartbeat_many(jobs, **options)

    worker, work, done = counting(5, claim_timeout=1)
    async with broker(kind=OneFails, limits=Limits(batch_size=1)) as queue:
        for number in (1, 2, 3):
            await work.using(queue, job_id=f"{number}").enqueue(number)
        async with working(worker, queue) as task:
            await asyncio.sleep(6)
        assert ([1, 3], 2) == (sorted(done), task.result().succeeded)


# Outages, and giving up


@in_virtual_time
async def test_an_unusable_queue_is_logged_each_minute_until_the_worker_gives_up(log):
    worker, *_ = counting(give_up_after=300)
    async with broker(kind=FailingQueue, entropy=LongestWaits()) as queue, working(worker, queue) as task:
        await asyncio.sleep(1)
        queue.fail("dequeue", GONE, until=250)
        await asyncio.sleep(300)
        assert not task.done()  # the queue was back before the end
        began, before = now(), len(log("ERROR"))
        queue.fail("dequeue", UnknownOutcomeError("the operation was sent", GONE))
        with pytest.raises(StorageFatalError, match="has disappeared"):
            await task
    assert 300 <= now() - began < 340  # a long poll was under way at the failure
    *each_minute, giving_up = log("ERROR")[before:]
    reason = f": claiming jobs fails and is retried: {GONE}"
    assert f"the queue at memory cannot be used{reason}" == each_minute[0]
    assert 5 == len(each_minute)
    assert all(line.startswith("the queue at memory cannot be used for ") for line in each_minute[1:])
    assert "the worker gives up: for 300 s it could do nothing" == giving_up


@in_virtual_time
async def test_a_worker_waits_for_a_silent_store_logs_it_each_minute_and_tries_at_growing_intervals(log):
    worker, work, done = counting(give_up_after=300)
    async with broker(kind=FailingQueue) as queue, working(worker, queue):
        await asyncio.sleep(1)
        queue.fail("dequeue", DOWN, until=3601)
        await asyncio.sleep(3600)
        assert 240 <= len(queue.calls["dequeue"]) <= 500
        await work.using(queue).enqueue(5)
        await until(lambda: done)
        await asyncio.sleep(30)
    assert [] == log("ERROR")
    assert 48 <= len(log("WARNING")) <= 61
    assert all("the queue at memory does not answer" in line for line in log("WARNING"))
    assert any("the queue at memory answers again: claiming jobs succeeded after " in line for line in log())


@in_virtual_time
async def test_a_worker_whose_claims_were_lost_in_an_outage_goes_on_when_the_queue_is_back(log):
    worker, _, done = counting(40, give_up_after=300, claim_timeout=30)
    async with broker(kind=FailingQueue) as queue:
        await queue.enqueue("work", b"7")
        async with working(worker, queue) as task:
            await asyncio.sleep(1)
            for verb in ("dequeue", "heartbeat_many"):
                queue.fail(verb, GONE, until=60)
            await asyncio.sleep(50)
            assert any("is lost" in line for line in log("WARNING"))
            await queue.pause("work")  # no claim, so no heartbeat says that the queue answers again
            await asyncio.sleep(1000)
            await queue.resume("work")
            await until(lambda: done)
            await asyncio.sleep(1)
        assert RunReport(succeeded=1, lost=1) == task.result()


@in_virtual_time
async def test_a_worker_that_stood_still_does_not_give_up_its_claims_before_the_queue_refuses_them():
    """Its broker may have stood still with it, and go on a moment later."""

    worker, _, done = counting(3700, claim_timeout=30)
    async with broker(kind=FailingQueue) as queue:
        await queue.enqueue("work", b"7", max_attempts=1)
        async with working(worker, queue) as task:
            await asyncio.sleep(1)
            queue.fail("heartbeat_many", DOWN, until=3625)
            stand_still(3600)
            await until(lambda: done)
            await asyncio.sleep(1)
        assert RunReport(succeeded=1) == task.result()


@pytest.mark.parametrize(
    ("verb", "error"), [("dequeue", StorageFatalError("403")), ("apply_each", InvalidBlobError("!"))]
)
@in_virtual_time
async def test_a_queue_unusable_from_the_start_and_refused_outcomes_end_the_worker(verb, error):
    worker, *_ = counting(give_up_after=300)
    async with broker(kind=FailingQueue) as queue:
        await queue.enqueue("work", b"1")
        queue.fail(verb, error)
        with pytest.raises(type(error)):
            await worker.run(queue, signals=False)
        assert now() < 1 or verb == "apply_each"


@in_virtual_time
async def test_a_store_is_tried_at_the_start_and_its_silence_is_logged_within_seconds(log):
    class ReadOnly(FaultyStorage):
        async def check_writable(self):
            raise StorageFatalError("q.json: read-only file system")

    worker, *_ = counting()
    with pytest.raises(StorageFatalError, match="read-only"):
        await worker.run(direct(ReadOnly(InMemoryStorage(clock=VirtualClock()))), signals=False)
    async with working(worker, direct(counted(latency=600))):
        await asyncio.sleep(2.5)
        assert ["the queue at FaultyStorage has not answered within 2 s, still trying"] == log("WARNING")


# Handlers that do not stop, and jobs that nobody does


@in_virtual_time
async def test_a_handler_that_does_not_stop_is_logged_and_counted_as_stuck(log):
    worker, over = stubborn(concurrency=2, cancel_grace=1)
    async with broker() as queue:
        job = await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await asyncio.sleep(301)
            worker.stop()
            assert RunReport(dead=1, stuck=1) == await task
        over.set()
    [line] = [line for line in log("WARNING") if "still runs although" in line and "slot" in line]
    assert line.startswith(f"job {job.id} (work, attempt 1): its handler still runs although it was told to stop;")
    assert "worker stopped: 1 dead, 1 stuck" == log()[-1]


@in_virtual_time
async def test_a_worker_gives_up_when_stuck_handlers_fill_all_slots():
    worker, over = stubborn(concurrency=2, cancel_grace=1, give_up_after=300)
    async with broker() as queue:
        await queue.enqueue("work", b"")
        await queue.enqueue("work", b"", delay=100)
        with pytest.raises(JQueueError, match="all 2 slots of the worker are taken"):
            await worker.run(queue, signals=False)
        assert 410 <= now() < 430
        over.set()


@in_virtual_time
async def test_jobs_without_a_handler_are_logged_once_for_each_entrypoint_without_more_writes(log):
    (worker, *_), storage = counting(), counted()
    async with broker(storage, poll_interval=30) as queue, working(worker, queue):
        await asyncio.sleep(90)
        assert [] == log("WARNING")
        quick = await queue.enqueue("quick", b"")
        for _ in range(3):
            await queue.enqueue("others", b"")
        await asyncio.sleep(45)
        await queue.cancel(quick.id)  # within a minute: it is not logged
        writes = storage.writes
        await asyncio.sleep(7100)
        assert storage.writes - writes == 7100 // 60  # the worker reports itself once a minute
    line = (
        "this worker has no handler for waiting jobs of others (3). Start a worker that has one, or they wait forever. "
        "A handler that was renamed takes them with aliases=[...]"
    )
    assert [line] == log("WARNING")


# The log


@in_virtual_time
@pytest.mark.parametrize("shows", [True, False])
async def test_messages_and_tracebacks_are_logged_only_with_show_errors(log, shows):
    worker = Worker(show_errors=shows)

    @worker.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no\x1b\nsuch card")

    async with broker() as queue:
        job = await queue.enqueue("fails", b"")
        await drained(worker, queue)
    if not shows:
        assert [] == [line for line in log() if "such card" in line]
        return
    [traceback] = [line.splitlines() for line in log("WARNING") if "Traceback" in line]
    assert f"job {job.id} (fails, attempt 1): Traceback (most recent call last):" == traceback[0]
    assert ["ValueError: no\\x1b", "such card"] == traceback[-2:]


@pytest.mark.parametrize("asked", [False, True])
@in_virtual_time
async def test_a_death_is_logged_as_an_error_and_a_job_that_is_done_with_its_duration_if_asked(log, asked):
    worker = Worker(log_done=asked)

    @worker.handler("work", max_attempts=1)
    async def work(seconds: float) -> None:
        await asyncio.sleep(1 / seconds)

    async with broker() as queue:
        await queue.enqueue("work", b"0.5", job_id="slow")
        await queue.enqueue("work", b"0", job_id="dies")
        await drained(worker, queue)
    [death] = log("ERROR")
    assert death.startswith("job dies (work, attempt 1) failed: ZeroDivisionError")
    done = [line for line in log("INFO") if "is done" in line]
    assert ["job slow (work, attempt 1) is done after 2.000 s"] * asked == done


@in_virtual_time
async def test_a_job_can_have_a_timeout_of_its_own(log):
    worker, limits = Worker(), dict[str, float]()

    @worker.handler("work", timeout=8, max_attempts=1)
    async def work(ctx: Context) -> None:
        assert ctx.deadline is not None
        limits[ctx.job.id] = (ctx.deadline - queue.options.clock.now()).total_seconds()
        await asyncio.sleep(10)

    async with broker() as queue:
        for job_id, seconds in {"long": 20, "short": 2, "usual": None}.items():
            await work.using(queue, job_id=job_id, timeout=seconds).enqueue()
        assert RunReport(succeeded=1, dead=2) == await drained(worker, queue)
        errors = {job.id: job.error for job in (await queue.read_state()).jobs}
        with pytest.raises(InvalidJobError, match="timeout must be more than 0 seconds"):
            await queue.enqueue("work", timeout=0)
    assert {"long": 20, "short": 2, "usual": 8} == limits
    assert {"short": "timed out after 2 s", "usual": "timed out after 8 s"} == errors


EVIL = "x\x1b[31m\a\n2026 INFO forged\u202e"
WRITTEN_OUT = "x\\x1b[31m\\x07\\n2026 INFO forged\\u202e"


@in_virtual_time
async def test_text_from_a_queue_is_escaped_in_the_log(log):
    worker = Worker()

    @worker.handler("work", max_attempts=1)
    async def work() -> None:
        raise ValueError(EVIL)

    storage = InMemoryStorage(clock=VirtualClock())
    queue = direct(storage)
    await queue.enqueue("work", b"", job_id="EVIL")
    await queue.enqueue("EVIL", b"")
    content, etag = await storage.read()
    await storage.write(content.replace(b'"EVIL"', json.dumps(EVIL).encode()), etag)  # as no verb would
    async with broker(storage, FailingQueue) as queue:
        queue.fail("apply_each", StorageError(EVIL), until=500)
        async with working(worker, queue):
            await asyncio.sleep(600)
    lines = log()
    assert any(line.startswith(f"job {WRITTEN_OUT} (work, attempt 1) failed") for line in lines)
    assert any(f"no handler for waiting jobs of {WRITTEN_OUT} (1)." in line for line in lines)
    assert any(line.endswith(f"is retried: {WRITTEN_OUT}") for line in lines)
    assert [] == [line for line in lines if not line.isprintable()]


async def test_code_that_holds_the_event_loop_is_named_once_it_is_free(log):
    worker, queue = Worker(), BrokerQueue(InMemoryStorage())

    @worker.handler("holds")
    async def holds() -> None:
        watch = asyncio.create_task(watch_loop(set, 0.1))
        await asyncio.sleep(0)
        time.sleep(1)
        while not log("WARNING"):
            await asyncio.sleep(0)
        watch.cancel()

    async with queue:
        job = await queue.enqueue("holds")
        await worker.run(queue, drain=True)
    [line] = log("WARNING")
    assert f"It was held by job {job.id}, in holds (test_trouble.py:" in line
