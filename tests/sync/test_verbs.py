"""`SyncQueue` has every verb of the async queues: the same arguments, the same results, the same errors."""

import inspect
import threading
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits, LocalFileSystemStorage, connect
from jqueue.core.group_commit import GroupCommitLoop
from jqueue.domain.errors import (
    ClaimLostError,
    DeadlineExceededError,
    InvalidJobError,
    InvalidURLError,
    ResultTimeoutError,
    StorageError,
)
from jqueue.domain.job import Progress
from jqueue.operations import Ack, Dequeue, Enqueue, Heartbeat
from jqueue.sync import SyncQueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.worker import Worker

worker = Worker()


@pytest.fixture
def queue():
    with SyncQueue(InMemoryStorage()) as queue:
        yield queue


def claimed(queue, **options):
    queue.enqueue("work", b"payload", **options)
    [job] = queue.dequeue("work")
    return job


def test_each_verb_has_the_arguments_and_the_documentation_of_the_async_one():
    own = {"start", "stop", "remove_left", "dequeue_again"}  # the last is for servers, which name the calls
    verbs = {name for name, _ in inspect.getmembers(BrokerQueue, inspect.iscoroutinefunction) if name[0] != "_"} - own
    assert len(verbs) > 30
    for verb in verbs:
        ours, theirs = getattr(SyncQueue, verb), getattr(BrokerQueue, verb)
        assert (inspect.signature(theirs), inspect.getdoc(theirs)) == (inspect.signature(ours), inspect.getdoc(ours))
        assert not inspect.iscoroutinefunction(ours)


def test_the_life_of_jobs_is_driven_by_blocking_calls(queue):
    job = queue.enqueue("work", b"payload", 3, headers={"a": "b"}, delay=3600)
    assert (b"payload", 3, {"a": "b"}) == (job.payload, job.priority, job.headers)
    assert not queue.until_ready(wait=0.01)
    assert (job.id, []) == (queue.find(job.id).id, queue.peek(batch_size=9))
    assert (5, job.id) == (queue.reprioritise(job.id, 5).priority, queue.reschedule(job.id, delay=0).id)
    [first] = queue.dequeue(["work", "other"])
    assert (None, []) == (queue.heartbeat(first), queue.heartbeat_many([first]))
    queue.nack(first, error="the server said no")
    queue.ack(queue.dequeue()[0].id)  # a bare id stands for the claim that was handed out
    lost, other = claimed(queue), claimed(queue)
    assert 2 == queue.requeue_stale(0)
    assert [ClaimLostError] * 2 == [type(error) for error in queue.ack_many([lost, other])]
    assert [] == queue.nack_many(queue.dequeue(batch_size=2), dead=True)
    assert (2, 0, 2) == (queue.redrive(entrypoint="work"), queue.purge(), len(list(queue.iterate_jobs("queued"))))
    _, [job] = queue.apply(Enqueue("next", b""), Dequeue("next"))
    assert [None, ClaimLostError] == [result and type(result) for result in queue.apply_each(Ack(job), Ack(lost))]
    assert lost.id == queue.cancel(lost.id).id
    assert (1, 1) == (queue.stats().depth, len(queue.read_state().jobs))
    assert (view := queue.view()) is queue.view(view)
    with pytest.raises(InvalidJobError):
        queue.iterate_jobs("lost")


def test_a_watch_yields_each_state_of_a_job_as_it_comes(queue):
    states = queue.watch(queue.enqueue("work", b"", keep_result=60))
    assert "queued" == next(states).status
    [job] = queue.dequeue("work")
    queue.apply_each(Heartbeat((job,), progress=(Progress(1, 2),)))
    assert ("in_progress", 1) == ((state := next(states)).status, state.progress.done)
    queue.ack(job)
    assert ["completed"] == [state.status for state in states]


def test_an_iterator_of_many_jobs_is_consumed_in_the_thread_of_the_caller():
    threads = set()

    def several(fails):
        for number in range(2500):
            threads.add(threading.current_thread())
            yield Enqueue("work", b"%d" % number)
        if fails:
            raise LookupError

    with SyncQueue(InMemoryStorage(), limits=Limits(hot_bytes=1)) as queue:
        with pytest.raises(LookupError):
            queue.enqueue_many(several(fails=True))
        assert (0, []) == (queue.read_state().version, queue.dequeue())
        assert 2500 == len(queue.enqueue_many(several(fails=False)))
        assert [b"0", b"1"] == [job.payload for job in queue.dequeue(batch_size=2)]
    assert {threading.current_thread()} == threads


def test_a_large_payload_is_read_in_pieces(tmp_path):
    file = tmp_path / "payload"
    file.write_bytes(bytes(range(256)) * 20_000)
    with SyncQueue(tmp_path / "queue.json", limits=Limits(object_bytes=10, payload_bytes=100)) as queue:
        queue.enqueue("work", file, keep_result=60)
        [job] = queue.dequeue("work")
        assert file.read_bytes() == b"".join(queue.open_payload(job))
        assert 1 << 20 == len(next(iter(queue.open_payload(job))))
        queue.ack(job, result="x" * 50)
        assert ("x" * 50, 0) == (queue.result(job), queue.collect())


# Errors


def test_what_the_async_queue_lacks_is_refused(tmp_path):
    with SyncQueue(connect(f"vsqs://{tmp_path}")) as queue:
        for verb in ("history", "staging_time"):
            with pytest.raises(InvalidJobError, match=f"StoreQueue has no {verb}: use a queue on one object"):
                getattr(queue, verb)()


def test_errors_are_those_of_the_async_queue(queue):
    with pytest.raises(InvalidJobError):
        queue.enqueue("", b"")
    with pytest.raises(TypeError, match="unheard_of"):
        queue.enqueue("work", b"", unheard_of=1)
    with pytest.raises(DeadlineExceededError):
        SyncQueue(FaultyStorage(InMemoryStorage(), latency=60)).enqueue("work", b"", deadline=0.01)
    storage = FaultyStorage(InMemoryStorage())
    storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with SyncQueue(storage) as broken, pytest.raises(StorageError):
        broken.read_state(deadline=0.05)


def test_a_sync_queue_is_made_of_a_path_a_url_a_storage_or_an_async_queue(tmp_path, queue):
    file = tmp_path / "queue.json"
    for target in (str(file), file, file.as_uri(), LocalFileSystemStorage(file)):
        with SyncQueue(target, stale_timeout=7) as opened:
            opened.enqueue("work", b"")
    for kind in (DirectQueue, GroupCommitLoop):
        with SyncQueue(kind(LocalFileSystemStorage(file))) as opened:
            opened.enqueue("work", b"")
            assert "queue.json" in repr(opened)
    with SyncQueue(file) as opened:
        assert 6 == len(opened.read_state().jobs)
    wrong: Any
    for wrong in (7, object(), queue):
        with pytest.raises(InvalidJobError, match="SyncQueue takes"):
            SyncQueue(wrong)
    with pytest.raises(InvalidURLError):
        SyncQueue("s4://bucket/queue.json")
    with pytest.raises(TypeError, match="stale_timeout"):
        SyncQueue(BrokerQueue(InMemoryStorage()), stale_timeout=7)


def test_a_group_is_opened_closed_and_waited_for_by_blocking_calls(queue):
    with queue.group(then=Enqueue("sum")) as group:
        group.enqueue("work", b"1", keep_result=60)
        group.enqueue(Enqueue("work", b"2"))
        group.enqueue_many(Enqueue("work", b"%d" % number) for number in range(3, 5))
    with pytest.raises(ResultTimeoutError, match="has not finished"):
        group.wait(0.01)
    for job in queue.dequeue("work", batch_size=9):
        queue.ack(job, result=int(job.payload))
    status = group.wait(5)
    assert (status.done, status.ended, group.status()) == (4, True, status)
    assert [1] == [job.result for job in queue.group(group.id).results()]
    assert [status.then_id] == [job.id for job in queue.dequeue("sum")]
    with pytest.raises(RuntimeError), queue.group() as failed:
        failed.enqueue("work")
        raise RuntimeError
    assert (True, 1, 0) == (failed.status().cancelled, failed.cancel().gone, failed.redrive())
