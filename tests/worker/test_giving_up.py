"""A worker that cannot work logs it each minute and gives up in the end. It names the jobs that it leaves undone."""

import asyncio
import json
import logging

import pytest

from jqueue import JQueueError, StorageError, UnknownOutcomeError
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import InvalidBlobError, StorageFatalError
from jqueue.testing.fake_clock import LongestWaits
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Discard, RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import CountingStorage, broker, direct, working

GONE = StorageFatalError("the queue's object has disappeared")


@pytest.fixture(autouse=True)
def log(caplog):
    """The log lines of the worker at a level or above: `log()`, `log("ERROR")`."""
    caplog.set_level(logging.INFO, "jqueue.worker")

    def lines(level="INFO"):
        records = [record for record in caplog.records if record.name == "jqueue.worker"]
        return [record.getMessage() for record in records if record.levelno >= getattr(logging, level)]

    return lines


def idle(**options):
    worker = Worker(**options)

    @worker.handler("work")
    async def work() -> None: ...

    return worker


def failing(queue, verb, error, *, until=None):
    """Make a verb of a queue in use raise an error, from now until the time `until`, if given."""
    real = getattr(queue, verb)

    async def call(*args, **options):
        if until is None or now() < until:
            raise error
        return await real(*args, **options)

    setattr(queue, verb, call)


@in_virtual_time
async def test_an_unusable_queue_is_logged_each_minute_until_the_worker_gives_up(log):
    worker = idle(give_up_after=300)
    async with broker(entropy=LongestWaits()) as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await asyncio.sleep(1)
            failing(queue, "dequeue", GONE)
            began = now()
            with pytest.raises(StorageFatalError, match="has disappeared"):
                await task
    assert 300 <= now() - began < 340  # a long poll was under way at the failure
    *each_minute, giving_up = log("ERROR")
    lasting = ["", " for 70 s", " for 130 s", " for 190 s", " for 250 s"]  # its retries are 15 s apart in the end
    tried = f"claiming jobs fails and is retried: {GONE}"
    assert [f"the queue at memory cannot be used{seconds}: {tried}" for seconds in lasting] == each_minute
    assert "the worker gives up: for 300 s it could do nothing" == giving_up


@in_virtual_time
async def test_an_unknown_outcome_caused_by_an_unusable_queue_is_logged_as_such(log):
    worker = idle(give_up_after=300)
    async with broker() as queue, working(worker, queue) as task:
        await asyncio.sleep(1)
        failing(queue, "dequeue", UnknownOutcomeError("the operation was sent", GONE))
        with pytest.raises(StorageFatalError, match="has disappeared"):
            await task
    assert f"the queue at memory cannot be used: claiming jobs fails and is retried: {GONE}" == log("ERROR")[0]


@in_virtual_time
async def test_a_worker_goes_on_if_its_queue_recovers_before_give_up_after():
    worker = idle(give_up_after=300)
    async with broker(entropy=LongestWaits()) as queue, working(worker, queue):
        await asyncio.sleep(1)
        failing(queue, "dequeue", GONE, until=now() + 280)
        await asyncio.sleep(320)
        failing(queue, "dequeue", GONE, until=now() + 280)
        await asyncio.sleep(320)
        await queue.enqueue("work", b"")
        await until_state_is_empty(queue)


async def until_state_is_empty(queue):
    async with asyncio.timeout(60):
        while (await queue.read_state()).jobs:
            await asyncio.sleep(1)


@in_virtual_time
async def test_a_worker_without_give_up_after_never_gives_up(log):
    worker = idle(give_up_after=None)
    async with broker() as queue, working(worker, queue) as task:
        await asyncio.sleep(1)
        failing(queue, "dequeue", GONE)
        await asyncio.sleep(3600)
        assert not task.done()
        worker.stop()
        await task
    assert 48 <= len(log("ERROR")) <= 62
    assert f"worker stopped: no jobs; at the end, claiming jobs still failed: {GONE}" == log("ERROR")[-1]


@in_virtual_time
async def test_a_worker_waits_for_a_silent_store_and_warns_each_minute(log):
    worker = idle(give_up_after=300)
    async with broker() as queue, working(worker, queue):
        await asyncio.sleep(1)
        failing(queue, "dequeue", StorageError("connection refused"), until=now() + 3600)
        await asyncio.sleep(3700)
    assert [] == log("ERROR")
    assert 48 <= len(log("WARNING")) <= 61
    assert all("the queue at memory does not answer" in line for line in log("WARNING"))


@in_virtual_time
async def test_a_worker_gives_up_if_only_its_outcomes_are_refused():
    worker = idle(give_up_after=300)
    async with broker() as queue:
        failing(queue, "apply_each", InvalidBlobError("it is corrupt"))
        await queue.enqueue("work", b"")
        with pytest.raises(InvalidBlobError):
            await worker.run(queue, signals=False)


@in_virtual_time
async def test_a_store_that_is_silent_at_the_start_is_warned_about_within_seconds(log):
    worker = idle()
    async with working(worker, direct(CountingStorage(latency=600))):
        await asyncio.sleep(2.5)
        assert ["the queue at CountingStorage has not answered within 2 s, still trying"] == log("WARNING")


@in_virtual_time
async def test_a_read_only_queue_is_refused_at_the_start():
    class ReadOnly(CountingStorage):
        async def check_writable(self):
            raise StorageFatalError("q.json: read-only file system")

    with pytest.raises(StorageFatalError, match="read-only"):
        await idle().run(direct(ReadOnly()), signals=False)


def stubborn(slots, **options):
    """A worker whose handler ignores cancellation until an event is set. Returns both."""
    worker, over = Worker(concurrency=slots, cancel_grace=1, **options), asyncio.Event()

    @worker.handler("work", timeout=10, max_attempts=1)
    async def work() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    return worker, over


@in_virtual_time
async def test_a_handler_that_does_not_stop_is_logged_each_minute_and_counted_as_stuck(log):
    worker, over = stubborn(2)
    async with broker() as queue:
        job = await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await asyncio.sleep(301)
            worker.stop()
            assert RunReport(dead=1, stuck=1) == await task
        over.set()
    lines = [line for line in log("WARNING") if "still runs, " in line]
    about = f"job {job.id} (work, attempt 1): its handler still runs, 49 s after it should have stopped;"
    assert f"{about} such handlers take 1 of 2 slots" == lines[0]
    assert 5 == len(lines)
    assert "worker stopped: 1 dead, 1 stuck" == log()[-1]


@in_virtual_time
async def test_a_handler_that_stops_late_is_no_longer_logged(log):
    worker, over = stubborn(2)
    async with broker() as queue, working(worker, queue):
        await queue.enqueue("work", b"")
        await asyncio.sleep(70)
        over.set()
        await asyncio.sleep(200)
    assert 1 == len([line for line in log("WARNING") if "still runs, " in line])


@in_virtual_time
async def test_a_worker_gives_up_when_stuck_handlers_fill_all_slots():
    worker, over = stubborn(2, give_up_after=300)
    async with broker() as queue:
        await queue.enqueue("work", b"")
        await queue.enqueue("work", b"", delay=100)
        with pytest.raises(JQueueError, match="all 2 slots of the worker are taken"):
            await worker.run(queue, signals=False)
        assert 410 <= now() < 430
        over.set()


@in_virtual_time
async def test_jobs_without_a_handler_are_logged_once_an_hour_without_more_writes(log):
    worker, storage = idle(), CountingStorage()
    async with broker(storage) as queue, working(worker, queue):
        await asyncio.sleep(90)
        assert [] == log("WARNING")
        for _ in range(3):
            await queue.enqueue("others", b"")
        writes = storage.writes
        await asyncio.sleep(7100)
        assert storage.writes - writes == 7100 // 60  # the worker reports itself once a minute
    line = (
        "this worker has no handler for waiting jobs of others (3). Start a worker that has one, or they wait forever"
    )
    assert [line] * 2 == log("WARNING")


@in_virtual_time
async def test_jobs_that_another_worker_does_within_a_minute_are_not_logged(log):
    worker = idle()
    async with broker() as queue, working(worker, queue):
        for _ in range(5):
            await queue.enqueue("others", b"", job_id=f"at {now()}")
            await asyncio.sleep(50)
            await queue.ack_many(await queue.dequeue("others", batch_size=9))
            await asyncio.sleep(10)
    assert [] == log("WARNING")


@in_virtual_time
@pytest.mark.parametrize("shows", [True, False])
async def test_messages_and_tracebacks_are_logged_only_with_show_errors(log, shows):
    worker = Worker(show_errors=shows)

    @worker.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("no\x1b\nsuch card")

    @worker.handler("discards")
    async def discards() -> None:
        raise Discard("never")

    async with broker() as queue:
        job = await queue.enqueue("fails", b"")
        other = await queue.enqueue("discards", b"")
        await worker.run(queue, drain=True, signals=False)
    about = f"job {job.id} (fails): ", f"job {other.id} (discards): "
    shown = [line for line in log("WARNING") if line.startswith(about)]
    if not shows:
        assert [] == [line for line in log() if "such card" in line]
        return
    traceback, reason = shown[0].splitlines(), shown[1]
    assert f"job {job.id} (fails): Traceback (most recent call last):" == traceback[0]
    assert ["ValueError: no\\x1b", "such card"] == traceback[-2:]
    assert f"job {other.id} (discards): Discard: never" == reason


EVIL = "x\x1b[31m\a\n2026 INFO forged\u202e"
WRITTEN_OUT = "x\\x1b[31m\\x07\\n2026 INFO forged\\u202e"


async def written_by_hand(storage):
    """Replace "EVIL" in the blob by a string that no verb would accept."""
    content, etag = await storage.read()
    await storage.write(content.replace(b'"EVIL"', json.dumps(EVIL).encode()), etag)


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
    await queue.schedule("EVIL", "0 3 * * *", "others")
    await written_by_hand(storage)
    async with broker(storage) as queue:
        failing(queue, "nack", StorageError(EVIL))
        failing(queue, "apply_each", StorageError(EVIL), until=500)
        async with working(worker, queue):
            await asyncio.sleep(600)
    lines = log()
    assert any(f"the jobs of these cron entries: {WRITTEN_OUT}." in line for line in lines)
    assert any(line.startswith(f"job {WRITTEN_OUT} (work, attempt 1) failed") for line in lines)
    assert any(f"no handler for waiting jobs of {WRITTEN_OUT} (1)." in line for line in lines)
    assert any(line.endswith(f"is retried: {WRITTEN_OUT}") for line in lines)
    assert [] == [line for line in lines if not line.isprintable()]


@in_virtual_time
async def test_a_worker_whose_claims_were_lost_with_the_queue_goes_on_when_the_queue_is_back(log):
    """No heartbeat is sent any longer, so that none can say that the queue answers."""
    worker = Worker(give_up_after=300, claim_timeout=30)
    began = asyncio.Event()

    @worker.handler("work")
    async def work() -> None:
        began.set()
        await asyncio.sleep(3600)

    async with broker() as queue:
        await queue.enqueue("work", b"")
        async with working(worker, queue) as task:
            await began.wait()
            for verb in ("dequeue", "heartbeat_many"):
                failing(queue, verb, GONE, until=now() + 60)
            await asyncio.sleep(50)
            assert any("is lost" in line for line in log("WARNING"))
            await queue.pause("work")
            await asyncio.sleep(1000)
            assert not task.done()
    assert not any("gives up" in line for line in log("ERROR"))


@in_virtual_time
async def test_a_payload_that_cannot_be_read_is_no_failure_of_the_queue(log):
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    async with broker(storage) as queue:
        large = await queue.enqueue("work", bytes(100_000))
        assert large.payload_object is not None
        await queue.enqueue("work", b"behind it")
        storage.unreadable[large.payload_object.suffix] = StorageFatalError("access refused")
        assert RunReport(succeeded=1) == await idle(concurrency=1).run(queue, drain=True, signals=False)
    assert [] == log("WARNING")
    assert not [line for line in log() if "answers again" in line]
