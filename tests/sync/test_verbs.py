"""`SyncQueue` has every verb of the async queues: the same arguments, the same results, the same errors."""

import asyncio
import inspect
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob.segment_staging import SegmentStager, StagedTask
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import (
    ClaimLostError,
    DeadlineExceededError,
    InvalidJobError,
    InvalidURLError,
    JobNotFoundError,
    QueueClosedError,
    ResultTimeoutError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Ack, Dequeue, Enqueue, NewSegment, Transaction
from jqueue.domain.segments import FOLDER, staged_name
from jqueue.ports.queue import JobQueue
from jqueue.sync import SyncQueue
from jqueue.sync.queue import ITEMS_AT_ONCE
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.worker import Worker
from tests.tiny_segments import segments_of

OWN_LIFE = {"start", "stop"}
OF_WORKERS = {"remove_left"}
VERBS = sorted(
    name
    for name, member in inspect.getmembers(BrokerQueue, inspect.iscoroutinefunction)
    if not name.startswith("_") and name not in OWN_LIFE | OF_WORKERS
)


worker = Worker()


@pytest.fixture
def queue():
    with SyncQueue(InMemoryStorage()) as queue:
        yield queue


def claimed(queue, **options):
    queue.enqueue("work", b"payload", **options)
    [job] = queue.dequeue("work")
    return job


@worker.handler("resize", priority=3, keep_result=60)
async def resize(size: tuple[int, int]) -> date:
    return date(*size, 1)


# All verbs


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_the_arguments_and_the_documentation_of_the_async_one(verb):
    ours, theirs = getattr(SyncQueue, verb), getattr(BrokerQueue, verb)
    assert inspect.signature(theirs) == inspect.signature(ours)
    assert inspect.getdoc(theirs) == inspect.getdoc(ours)
    assert (f"SyncQueue.{verb}", False) == (ours.__qualname__, inspect.iscoroutinefunction(ours))


def test_sync_queue_has_every_verb_of_the_protocol():
    protocol = {name for name, _ in inspect.getmembers(JobQueue, inspect.isfunction) if not name.startswith("_")}
    assert set() == protocol - set(dir(SyncQueue))


def test_this_file_calls_every_verb():
    source = Path(__file__).read_text(encoding="utf-8")
    assert [] == [verb for verb in VERBS if f"queue.{verb}(" not in source]


def test_jobs_are_enqueued_and_dequeued(queue):
    job = queue.enqueue("work", b"payload", 3, headers={"a": "b"}, max_attempts=2)
    assert (b"payload", 3, {"a": "b"}, 2) == (job.payload, job.priority, job.headers, job.max_attempts)
    assert [job.id] == [found.id for found in queue.dequeue(["work", "other"], batch_size=2)]
    assert [] == queue.dequeue()


def test_a_handler_enqueues_and_returns_the_job_and_its_result_without_await(queue):
    job = resize.enqueue(queue, (2026, 7), delay=0)
    [claimed] = queue.dequeue("resize")
    assert (job.id, b"[2026,7]", 3) == (claimed.id, claimed.payload, claimed.priority)
    queue.ack(claimed, result="2026-07-01")
    assert date(2026, 7, 1) == resize.result(queue, job, timeout=5)


def test_a_handler_raises_at_the_call_what_it_would_raise_at_the_await(queue):
    with pytest.raises(InvalidJobError, match="the payload does not fit the handler"):
        resize.enqueue(queue, (1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(InvalidJobError, match="priority"):
        resize.enqueue(queue, (1, 2), priority="high")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes the queue first, got str"):
        resize.enqueue("queue.json", (1, 2))  # type: ignore[arg-type]
    with pytest.raises(ResultTimeoutError):
        resize.result(queue, resize.enqueue(queue, (1, 2)), timeout=0)


def test_many_jobs_are_enqueued_in_one_commit(queue):
    jobs = queue.enqueue_many([Enqueue("work", b"%d" % number) for number in range(3)])
    assert [b"0", b"1", b"2"] == [job.payload for job in jobs]
    assert 1 == queue.read_state().version


def test_a_generator_of_jobs_runs_in_the_thread_of_the_caller(queue):
    threads = []

    def jobs():
        threads.append(threading.current_thread())
        yield Enqueue("work", b"payload")

    queue.enqueue_many(jobs())
    queue.enqueue_many(jobs=jobs())
    assert [threading.current_thread()] * 2 == threads
    assert [] == queue.ack_many(iter(queue.dequeue(batch_size=2)))


@pytest.mark.parametrize("jobs", [999, 1000, 1001, 3500])
def test_an_iterator_of_many_jobs_is_consumed_in_the_callers_thread_and_never_held_whole(jobs):
    given = []

    def several():
        for number in range(jobs):
            given.append(threading.current_thread())
            yield Enqueue("work", b"%d" % number)

    with SyncQueue(InMemoryStorage(), limits=Limits(hot_bytes=1, batch_size=100)) as queue:
        added = queue.enqueue_many(several())
        assert (jobs, {threading.current_thread()}) == (len(added), set(given))
        assert [b"0", b"1"] == [job.payload for job in queue.dequeue(batch_size=2)]


def test_an_iterator_of_many_jobs_that_fails_adds_nothing():
    def failing():
        for number in range(2500):
            yield Enqueue("work", b"%d" % number)
        raise LookupError

    with SyncQueue(InMemoryStorage(), limits=Limits(hot_bytes=1)) as queue:
        with pytest.raises(LookupError):
            queue.enqueue_many(failing())
        wrong: Any = "text"
        with pytest.raises(InvalidJobError):
            queue.enqueue_many(Enqueue("work", b"" if number < 2000 else wrong) for number in range(5000))
        assert [] == queue.dequeue()
        assert 0 == queue.read_state().version


def test_a_job_is_acked(queue):
    job = claimed(queue)
    assert None is queue.ack(job)
    assert () == queue.read_state().jobs


def test_a_bare_id_stands_for_the_claim_that_was_handed_out(queue):
    queue.ack(claimed(queue).id)
    assert () == queue.read_state().jobs


def test_many_jobs_are_acked_independently(queue):
    lost = claimed(queue)
    queue.requeue_stale(0)
    queue.cancel(lost.id)
    job = claimed(queue)
    assert [ClaimLostError] == [type(error) for error in queue.ack_many([lost, job])]
    assert () == queue.read_state().jobs


def test_a_job_is_nacked(queue):
    queue.nack(claimed(queue), error="the server said no", delay=timedelta(hours=1))
    [job] = queue.read_state().jobs
    assert (JobStatus.QUEUED, "the server said no", 1) == (job.status, job.error, job.failures)


def test_many_jobs_are_nacked(queue):
    assert [] == queue.nack_many([claimed(queue), claimed(queue)], dead=True)
    assert 2 == len(queue.read_state().dead_jobs())


def test_heartbeats_are_sent(queue):
    job = claimed(queue)
    assert None is queue.heartbeat(job)
    assert [] == queue.heartbeat_many([job])
    assert queue.read_state().jobs[0].heartbeat_at > job.heartbeat_at


def test_apply_does_several_operations_in_one_commit(queue):
    _, [job] = queue.apply(Enqueue("next", b""), Dequeue("next"))
    assert None is queue.apply(Ack(job))[0]


def test_apply_each_does_several_operations_independently(queue):
    lost = claimed(queue)
    queue.requeue_stale(0)
    job, error = queue.apply_each(Enqueue("next", b""), Ack(lost))
    assert ("next", ClaimLostError) == (job.entrypoint, type(error))


def test_a_job_is_reprioritised_and_rescheduled(queue):
    job = queue.enqueue("work", b"", delay=3600)
    assert 5 == queue.reprioritise(job.id, 5).priority
    assert job.id == queue.reschedule(job.id, delay=0).id
    assert [job.id] == [found.id for found in queue.dequeue()]


def test_an_entrypoint_is_paused_and_limited(queue):
    queue.enqueue("work", b"")
    queue.pause("work")
    assert [] == queue.dequeue()
    queue.resume("work")
    queue.limit("work", running=1)
    assert 1 == len(queue.dequeue())
    queue.enqueue("work", b"")
    assert [] == queue.dequeue()


def test_the_queue_is_configured(queue):
    assert 60 == queue.configure(aging=timedelta(minutes=1)).aging


def test_cron_entries_are_set_and_removed(queue):
    entry = queue.schedule("nightly", "0 3 * * *", "clean", timezone="Europe/Berlin")
    assert [entry] == queue.schedules()
    assert (True, False) == (queue.unschedule("nightly"), queue.unschedule("nightly"))


def test_result_waits_for_the_result_of_a_job(queue):
    job = queue.enqueue("work", b"", keep_result=60)
    with pytest.raises(ResultTimeoutError):
        queue.result(job, timeout=0.01)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.result, job)
        queue.ack(queue.dequeue()[0], result={"answer": 42})
        assert {"answer": 42} == waiting.result(60)


def test_closing_the_queue_ends_a_waiting_result_call_with_queue_closed_error():
    entered = threading.Event()

    class Signalling(BrokerQueue):
        async def result(self, *args, **options):
            entered.set()
            return await super().result(*args, **options)

    queue = SyncQueue(Signalling(InMemoryStorage()))
    job = queue.enqueue("work", b"", keep_result=60)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.result, job)
        assert entered.wait(60)
        queue.close()
        with pytest.raises(QueueClosedError):
            waiting.result(60)


def test_a_job_is_cancelled(queue):
    job = queue.enqueue("work", b"")
    assert job.id == queue.cancel(job.id).id
    assert () == queue.read_state().jobs


def test_dead_jobs_are_redriven_and_purged(queue):
    for _ in range(2):
        queue.nack(claimed(queue), dead=True)
        assert 1 == queue.redrive(entrypoint="work")
        queue.nack(queue.dequeue()[0], dead=True)
        assert 1 == queue.purge()


def test_claims_are_revoked(queue):
    claimed(queue)
    assert 1 == queue.requeue_stale(0)


def test_the_queue_can_be_inspected(queue):
    queue.enqueue("work", b"")
    assert (1, 1) == (queue.stats().depth, len(queue.read_state().jobs))
    view = queue.view()
    assert view is queue.view(view)
    assert queue.capabilities.transactions


def test_jobs_are_iterated_over_without_an_event_loop(queue):
    many = 2 * ITEMS_AT_ONCE
    jobs = queue.enqueue_many(Enqueue("work", b"%d" % number) for number in range(many))
    assert jobs == list(queue.iterate_jobs(JobStatus.QUEUED, entrypoint="work"))
    assert [] == list(queue.iterate_jobs("dead"))
    with pytest.raises(InvalidJobError):
        queue.iterate_jobs("lost")


def test_an_iteration_that_is_abandoned_ends_that_of_the_queue(queue):
    ended = []

    async def endless(*_, **__):
        try:
            while True:
                yield Job(entrypoint="work", payload=b"")
        finally:
            ended.append(True)

    queue._queue.iterate_jobs = endless
    jobs = queue.iterate_jobs()
    next(jobs)
    jobs.close()
    assert [True] == ended


def test_jobs_can_be_inspected_before_they_are_claimed(queue):
    assert not queue.until_ready(wait=0.01)
    job = queue.enqueue("work", b"")
    assert [job] == queue.peek(batch_size=9)
    assert job == queue.find(job.id)


def test_a_dequeue_waits_for_a_job(queue):
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.dequeue, "work", wait=60)
        job = queue.enqueue("work", b"")
        assert [job.id] == [found.id for found in waiting.result(60)]
    assert [] == queue.dequeue("work", wait=timedelta(milliseconds=1))


def test_a_large_payload_is_read_in_pieces(tmp_path):
    file = tmp_path / "payload"
    file.write_bytes(bytes(range(256)) * 20_000)
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    with SyncQueue(storage, limits=Limits(object_bytes=10, payload_bytes=100)) as queue:
        queue.enqueue("work", file, keep_result=60)
        [job] = queue.dequeue("work")
        assert job.payload_apart
        assert file.read_bytes() == b"".join(queue.open_payload(job))
        for piece in queue.open_payload(job):
            assert 1 << 20 == len(piece)
            break
        queue.ack(job, result="x" * 50)
        assert "x" * 50 == queue.result(job)
        with pytest.raises(InvalidJobError, match="cannot make URLs"):
            queue.payload_url(job, 60)
        with pytest.raises(InvalidJobError, match="cannot make URLs"):
            queue.result_url(job, 60)
        assert 0 == queue.collect()


# Errors


def test_errors_are_those_of_the_async_queue(queue):
    with pytest.raises(JobNotFoundError, match="nobody"):
        queue.ack("nobody")
    with pytest.raises(InvalidJobError):
        queue.enqueue("", b"")
    with pytest.raises(TypeError, match="unheard_of"):
        queue.enqueue("work", b"", unheard_of=1)
    with pytest.raises(DeadlineExceededError):
        SyncQueue(FaultyStorage(InMemoryStorage(), latency=60)).enqueue("work", b"", deadline=0.01)


def test_a_traceback_shows_the_caller_and_one_line_of_jqueue(queue):
    def view():
        queue.ack("nobody")

    with pytest.raises(JobNotFoundError) as caught:
        view()
    assert ["view", "call"] == [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][1:]


def test_an_error_from_outside_jqueue_keeps_its_traceback(queue):
    class Broken(BrokerQueue):
        async def enqueue(self, *args, **options):
            return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught, SyncQueue(Broken(InMemoryStorage())) as broken:
        broken.enqueue("work", b"")
    assert "enqueue" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_an_unknown_outcome_can_be_resolved():
    storage = FaultyStorage(InMemoryStorage())
    with SyncQueue(storage, call_timeout=0.2) as queue:
        storage.on_write(Fault.HANGS_AFTER)
        with pytest.raises(UnknownOutcomeError) as caught:
            queue.enqueue("work", b"payload", deadline=0.1)
        job = queue.resolve(caught.value, timeout=timedelta(seconds=60))
        assert isinstance(job, Job)
        assert [job.id] == [found.id for found in queue.dequeue()]


def test_an_error_of_the_store_is_raised():
    storage = FaultyStorage(InMemoryStorage())
    storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with SyncQueue(storage) as queue, pytest.raises(StorageError):
        queue.read_state(deadline=0.05)


# Construction


def test_a_sync_queue_is_made_of_a_path_a_url_or_a_storage(tmp_path):
    file = tmp_path / "queue.json"
    for target in (str(file), file, file.as_uri(), LocalFileSystemStorage(file)):
        with SyncQueue(target, stale_timeout=7) as queue:
            queue.enqueue("work", b"")
    assert 4 == len(SyncQueue(file).read_state().jobs)


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
def test_a_sync_queue_is_made_of_an_async_queue(kind):
    with SyncQueue(kind(InMemoryStorage())) as queue:
        assert queue.enqueue("work", b"").id == queue.dequeue()[0].id


def test_an_invalid_target_or_option_of_a_sync_queue_is_refused(queue):
    target: Any
    for target in (7, object(), queue):
        with pytest.raises(InvalidJobError, match="SyncQueue takes"):
            SyncQueue(target)
    with pytest.raises(InvalidURLError):
        SyncQueue("s4://bucket/queue.json")
    with pytest.raises(TypeError, match="stale_timeout"):
        SyncQueue(BrokerQueue(InMemoryStorage()), stale_timeout=7)
    with pytest.raises(TypeError, match="unheard_of"):
        SyncQueue(InMemoryStorage(), unheard_of=7)


def test_the_repr_of_a_sync_queue_names_its_storage(tmp_path):
    assert "queue.json" in repr(SyncQueue(tmp_path / "queue.json"))


# Closing


def test_a_closed_queue_takes_no_calls_until_it_is_entered_again():
    queue = SyncQueue(InMemoryStorage())
    queue.enqueue("work", b"")
    queue.close()
    queue.close()
    with pytest.raises(QueueClosedError, match="closed"):
        queue.enqueue("work", b"")
    with queue:
        assert 1 == len(queue.dequeue())


def test_the_history_is_a_plain_iterator():
    with SyncQueue(InMemoryStorage()) as queue:
        queue.configure(history=3600)
        jobs = queue.enqueue_many([Enqueue("work", b"") for _ in range(250)])
        events = list(queue.history())
        assert list(range(251, 0, -1)) == [event.number for event in events]
        assert {job.id for job in jobs} == queue.jobs_at(events[0].at).keys()
        assert jobs[7].id == next(queue.history(job_id=jobs[7].id)).job_id
        with pytest.raises(InvalidJobError, match="time zone"):
            queue.history(since=events[0].at.replace(tzinfo=None))


def test_staged_segments_are_added_once(tmp_path):
    storage, transaction = LocalFileSystemStorage(tmp_path / "staged.json"), Transaction("import", 1)
    with SyncQueue(storage) as queue:
        place = queue.staging_place()
        assert place is not None
        assert place.created_at is not None
        stager = SegmentStager(Limits(), place.created_at, "base", queue=place.queue, aging=place.aging)
        stager.add("work", b"payload")
        [encoded] = stager.rest()
        name = staged_name("import", 1, "0")
        asyncio.run(storage.create_object(FOLDER + name, encoded.content))
        new = NewSegment(name, "", encoded.entry, created_at=place.created_at)
        tasks = [StagedTask(stager.jobs, [new], frozenset(stager.features))]
        assert [False, True] == [queue.enqueue_staged(tasks, transaction).repeated for _ in range(2)]
        assert [b"payload"] == [job.payload for job in queue.dequeue("work", batch_size=9)]


def test_a_range_is_claimed_read_and_ended(tmp_path):
    with SyncQueue(tmp_path / "ranges.json", limits=Limits(hot_bytes=1)) as queue:
        segments_of(queue._queue).writer.sizes = SegmentSizes(hot_bytes=1, fewest_rows=1, chunk_rows=2)
        ids = [job.id for job in queue.enqueue_many([Enqueue("t", b"")] * 3)]
        deadline = time.monotonic() + 30
        while (claim := queue.claim_range("t", 9)) is None:
            assert time.monotonic() < deadline
            queue.pause("other")
            queue.resume("other")
        assert ids[: claim.rows] == [job.id for job in queue.read_range(claim)]
        queue.end_range(claim, failed={ids[0]: "boom"})
        assert ["boom"] == [job.error for job in queue.read_state().jobs]
