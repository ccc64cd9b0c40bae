"""Programs written for jqueue 1.0.0, from its documentation and beyond. They run on 1.0.0 and on this version."""

# mypy: ignore-errors

import asyncio
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jqueue
from jqueue import (
    BrokerQueue,
    CASConflictError,  # CAS write rejected (etag mismatch), usually retried internally
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobNotFoundError,  # job_id not in current state; has .job_id attribute
    JobStatus,
    JQueueError,  # base class, catches all jqueue errors
    LocalFileSystemStorage,
    ObjectStoragePort,
    QueueState,
    StorageError,  # I/O failure from the storage backend; has .cause attribute
)
from jqueue.core.codec import decode, encode
from jqueue.core.group_commit import GroupCommitLoop

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
SOON = timedelta(milliseconds=10)


def attempt(call, *arguments):
    try:
        return call(*arguments)
    except (JobNotFoundError, ValueError, TypeError) as error:
        return type(error).__name__


async def quick_start():
    async with BrokerQueue(InMemoryStorage()) as q:
        # Producer: add jobs to the queue
        await q.enqueue("send_email", b'{"to": "alice@example.com"}')
        await q.enqueue("send_email", b'{"to": "bob@example.com"}')

        # Consumer: claim and process
        jobs = await q.dequeue("send_email", batch_size=2)
        for job in jobs:
            async with HeartbeatManager(q, job.id):
                print(f"Sending email: {job.payload!r}")
            await q.ack(job.id)


class MyStorage:
    """A user's own adapter: two methods, no base class. If it raises CASConflictError, the queue retries."""

    def __init__(self, conflicts=0):
        self.content = b""
        self.generation = self.writes = 0
        self.conflicts = conflicts
        self.closed = False

    async def read(self) -> tuple[bytes, str | None]:
        """
        Return (content, etag).
        If the object doesn't exist yet, return (b"", None).
        """
        assert not self.closed
        return self.content, str(self.generation) if self.generation else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """
        Conditional write.
        - if_match=None  → unconditional put (first write)
        - if_match=etag  → only write if current etag matches; raise CASConflictError otherwise
        Returns the new etag.
        """
        assert not self.closed
        self.writes += 1
        if self.conflicts:
            self.conflicts -= 1
            raise CASConflictError("somebody was faster")
        if if_match is not None and if_match != str(self.generation):
            raise CASConflictError(f"{if_match} is not {self.generation}")
        self.content = content
        self.generation += 1
        return str(self.generation)

    async def aclose(self):
        self.closed = True


async def adapters():
    async def work(q):
        await asyncio.gather(*(q.enqueue("task", b"%d" % number) for number in range(5)))
        jobs = await q.dequeue("task", batch_size=5)
        print(sorted(job.payload for job in jobs))
        await q.nack(jobs[0].id)
        for job in jobs[1:]:
            await q.heartbeat(job.id)
            await q.ack(job.id)
        print(len((await q.read_state()).jobs), len(await q.dequeue()))

    print(isinstance(MyStorage(), ObjectStoragePort), isinstance(object(), ObjectStoragePort))
    await work(DirectQueue(MyStorage(conflicts=3)))
    async with BrokerQueue(MyStorage(conflicts=3)) as q:
        await work(q)
    storage = MyStorage()
    async with BrokerQueue(storage) as producer:
        await producer.enqueue("task", b"handed over")
    print("closed by a queue:", storage.closed)
    async with BrokerQueue(storage) as consumer:
        [job] = await consumer.dequeue("task")
        print(job.payload)


def direct_queue_in_several_event_loops():
    """The first one makes the folders; each call may have a loop of its own."""
    storage = LocalFileSystemStorage("folder/that/is/not/there/queue.json")
    q = DirectQueue(storage)

    async def work():
        print(await storage.read())
        job = await q.enqueue("task", b"data")
        [claimed] = await q.dequeue("task")
        print(claimed.id == job.id, claimed.payload, claimed.status, claimed.heartbeat_at is not None)
        await q.ack(claimed.id)
        print(storage.path, Path("folder/that/is/not/there/queue.json").is_file())

    async def race():
        queues = [DirectQueue(LocalFileSystemStorage(path=storage.path), 100) for _ in range(3)]
        await asyncio.gather(*(q.enqueue("task", b"%d" % number) for number, q in enumerate(queues)))
        jobs = await queues[0].dequeue(batch_size=5)
        print(sorted(job.payload for job in jobs))
        await asyncio.gather(*(queues[0].ack(job.id) for job in jobs))

    asyncio.run(work())
    asyncio.run(race())
    asyncio.run(q.enqueue("task", b"in a third event loop"))
    print([job.payload for job in asyncio.run(q.read_state()).jobs])


async def errors():
    storage = InMemoryStorage()
    q = DirectQueue(storage)
    await q.enqueue("task", b"")
    [job] = await q.dequeue("task")
    await q.ack(job.id)
    try:
        await q.ack(job.id)
    except JobNotFoundError as error:
        print(error.job_id == job.id, isinstance(error, JQueueError))  # already removed, safe to ignore
    for call in (q.ack, q.nack, q.heartbeat):
        try:
            await call("no such job")
        except JobNotFoundError as error:
            print(error, error.job_id, error.args)
    for etag in ("stale", None):
        try:
            await storage.write(b"", etag)
        except CASConflictError as error:
            print(type(error).__name__, isinstance(error, JQueueError))
    try:
        await q.enqueue("task", None)
    except ValueError as error:
        print("a ValueError", "payload" in str(error))
    cause = OSError("disk on fire")
    for error in (StorageError("could not write", cause), StorageError(message="could not write", cause=cause)):
        print(error, error.cause is cause, error.args, isinstance(error, JQueueError))
    print(JobNotFoundError(job_id="a").job_id, CASConflictError("a", "b").args, JQueueError("c"))


async def group_commit():
    counted = MyStorage()
    async with BrokerQueue(counted) as q:
        # These three enqueues are batched into a single storage write
        await asyncio.gather(
            q.enqueue("task", b"1"),
            q.enqueue("task", b"2"),
            q.enqueue("task", b"3"),
        )
    print(counted.writes)

    loop = GroupCommitLoop(storage=InMemoryStorage(), stale_timeout=timedelta(minutes=1))
    await loop.start()
    results = await asyncio.gather(
        loop.enqueue("task", b"valid"), loop.nack("gone"), loop.dequeue("task"), return_exceptions=True
    )
    print(results[0].payload, isinstance(results[1], JobNotFoundError), [job.payload for job in results[2]])
    await loop.ack(results[2][0].id)
    print((await loop.read_state()).jobs)
    await loop.stop()
    await loop.stop()

    # Calls made before the exit are done during the exit.
    storage = InMemoryStorage()
    async with BrokerQueue(storage) as q:
        calls = [asyncio.create_task(q.enqueue("task", b"%d" % number)) for number in range(20)]
        await asyncio.sleep(0)
    print(len(await asyncio.gather(*calls)), len((await q.read_state()).jobs))


async def heartbeats():
    class Double:
        def __init__(self, failure=None):
            self.beats = []
            self.failure = failure

        async def heartbeat(self, job_id):
            self.beats.append(job_id)
            if self.failure:
                raise self.failure

        async def wait_for(self, count):
            while len(self.beats) < count:
                await asyncio.sleep(0.01)

    double = Double()
    manager = HeartbeatManager(queue=double, job_id="a", interval=SOON)
    print(manager.queue is double, manager.job_id, manager.interval)
    for _ in range(2):  # it can be entered again
        async with manager as entered:
            await double.wait_for(len(double.beats) + 2)
        print(entered is manager, set(double.beats), len(asyncio.all_tasks()))

    double = Double()
    async with HeartbeatManager(double, "b", timedelta(seconds=60)):
        await asyncio.sleep(0.02)
    print("the first beat comes after the interval", double.beats)
    double = Double(JQueueError("no more"))
    async with HeartbeatManager(double, "c", interval=SOON):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
    print("an error of the queue ends it", double.beats)


async def heartbeats_of_queues(q):
    for number in range(3):
        await q.enqueue("task", b"%d" % number)
    jobs = await q.dequeue("task", batch_size=3)

    async def beaten():
        state = await q.read_state()
        return [state.find(job.id).heartbeat_at > job.heartbeat_at for job in jobs]

    async with HeartbeatManager(q, jobs[0].id, SOON), HeartbeatManager(q, jobs[1].id, interval=SOON):
        while await beaten() != [True, True, False]:
            await asyncio.sleep(0.01)


async def priorities_of_queues(q):
    """Lower values first, equal ones in order of arrival, for one entrypoint or any."""
    await q.enqueue("report", b"best-effort", priority=10)
    await q.enqueue("report", b"first", priority=0)
    await q.enqueue("mail", b"other", priority=0)
    await q.enqueue("report", b"second", priority=0)
    await q.enqueue("report", b"urgent", priority=-5)
    await q.enqueue("mail", b"positional", 3)
    print([job.payload for job in (await q.read_state()).queued_jobs()])
    print([job.payload for job in await q.dequeue("report", batch_size=2)])
    print([job.payload for job in await q.dequeue()])
    print([job.payload for job in await q.dequeue(None, batch_size=2)])
    print([job.payload for job in await q.dequeue(entrypoint="report", batch_size=100)])


async def each_kind_of_queue():
    for story in (heartbeats_of_queues, priorities_of_queues):
        storage = InMemoryStorage(initial_content=b"")
        await story(DirectQueue(storage=InMemoryStorage(), max_retries=3))
        async with BrokerQueue(storage=storage, stale_timeout=timedelta(minutes=5)) as q:
            await story(q)
        print(q.storage is storage, q.stale_timeout)
        loop = GroupCommitLoop(storage=InMemoryStorage(), stale_timeout=timedelta(minutes=5))
        await loop.start()
        await story(loop)
        await loop.stop()
    print(DirectQueue(storage).storage is storage, DirectQueue(storage, 5).max_retries, storage.initial_content)
    print(BrokerQueue(storage).stale_timeout, loop.stale_timeout)
    print(repr(LocalFileSystemStorage(path="queue.json")), LocalFileSystemStorage(Path("a/b.json")).path)


async def stale_jobs():
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"data")
    [job] = await q.dequeue("task")
    print(await q.requeue_stale(timeout=timedelta(minutes=5)), await q.requeue_stale(timedelta(0)))
    recovered = (await q.read_state()).find(job.id)
    print(recovered.status, recovered.heartbeat_at, await q.requeue_stale(timedelta(0)))
    async with BrokerQueue(InMemoryStorage(), timedelta(milliseconds=100)) as q:
        await q.enqueue("task", b"of a worker that died")
        [lost] = await q.dequeue("task")
        while not (found := await q.dequeue("task")):
            await asyncio.sleep(0.01)
        print(found[0].id == lost.id, found[0].payload)


def values_of_jobs():
    print(JobStatus.QUEUED, JobStatus("in_progress"), JobStatus.DEAD == "dead", f"{JobStatus.DEAD}")
    print(attempt(JobStatus, "lost"), isinstance(JobStatus.QUEUED, str), repr(JobStatus.QUEUED))
    job = Job.new("task", b"\x00\xff", 3)
    print(job.entrypoint, job.payload, job.priority, job.status, job.heartbeat_at, len(job.id))
    print(abs(datetime.now(UTC) - job.created_at) < timedelta(minutes=1), job.id != Job.new("task", b"").id)
    claimed = job.with_status(JobStatus.IN_PROGRESS).with_heartbeat(NOON)
    print(claimed.status, claimed.heartbeat_at, job.status, job.heartbeat_at, claimed.id == job.id)
    print(claimed.with_heartbeat(None).heartbeat_at, claimed.with_status(status=JobStatus.DEAD).status)
    print(attempt(setattr, job, "priority", 1), attempt(Job, "positional"), attempt(lambda: Job(entrypoint="task")))
    print(job == job.with_heartbeat(None), job == claimed, hash(job) == hash(job.with_heartbeat(None)))
    print(Job.model_validate(job.model_dump()) == job, Job.model_validate_json(job.model_dump_json()) == job)
    print(pickle.loads(pickle.dumps(job)) == job, job.model_copy(update={"priority": 9}).priority)
    print(attempt(lambda: Job(entrypoint="task", payload="é")), attempt(lambda: Job(entrypoint="task", payload=1)))
    named = {"id": "a", "entrypoint": "e", "payload": b"p", "created_at": NOON}
    print(Job(**named).model_dump(mode="json", include={"id", "payload", "status", "priority", "heartbeat_at"}))


def values_of_states():
    early, late = (
        Job(id=name, entrypoint=name, payload=b"", created_at=NOON + timedelta(seconds=later))
        for name, later in (("early", 0), ("late", 1))
    )
    empty = QueueState()
    print(empty.jobs, empty.version, empty.queued_jobs(), empty.in_progress_jobs(), empty.find("a"))
    state = empty.with_job_added(late).with_job_added(job=early)
    print(state.version, [job.id for job in state.jobs], empty.version)
    print([job.id for job in state.queued_jobs()], [job.id for job in state.queued_jobs("late")])
    state = state.with_job_replaced(late.model_copy(update={"priority": -1}))
    print(state.version, [job.id for job in state.queued_jobs()], [job.id for job in state.jobs])
    state = state.with_job_replaced(updated=early.with_status(JobStatus.IN_PROGRESS).with_heartbeat(NOON))
    print([job.id for job in state.in_progress_jobs()], [job.id for job in state.queued_jobs()])
    print(state.requeue_stale(NOON) is state, state.requeue_stale(cutoff=NOON) is state)
    requeued = state.requeue_stale(NOON + timedelta(microseconds=1))
    print(requeued.version - state.version, requeued.find("early").status, requeued.find("early").heartbeat_at)
    unconfirmed = state.with_job_replaced(early.with_status(JobStatus.IN_PROGRESS))
    print(unconfirmed.requeue_stale(NOON - timedelta(days=1)).find(job_id="early").status)
    removed = requeued.with_job_removed(job_id="early")
    print([job.id for job in removed.jobs], removed.version, len(removed.with_job_added(late).jobs))
    print(attempt(removed.with_job_removed, "early"), attempt(removed.with_job_replaced, early))
    print(QueueState.model_validate_json(state.model_dump_json()) == state, pickle.loads(pickle.dumps(state)) == state)


async def codec_and_modules():
    storage = InMemoryStorage()
    queue = DirectQueue(storage)
    await queue.enqueue("task", b"data")
    content, _ = await storage.read()
    print(decode(content).jobs == (await queue.read_state()).jobs)
    state = QueueState().with_job_added(Job.new("é\u2028", bytes(range(256)), -1)).with_job_added(Job.new("b", b""))
    print(decode(encode(state)).jobs[0].payload == bytes(range(256)), decode(data=encode(state=state)).version)
    print([job.entrypoint for job in decode(encode(state)).jobs], decode(b"") == QueueState(), type(encode(state)))
    print(bool(jqueue.__version__), all(getattr(jqueue, name) is not None for name in jqueue.__all__))


async def in_one_event_loop():
    await quick_start()
    await adapters()
    await errors()
    await group_commit()
    await heartbeats()
    await each_kind_of_queue()
    await stale_jobs()
    await codec_and_modules()


asyncio.run(in_one_event_loop())
direct_queue_in_several_event_loops()
values_of_jobs()
values_of_states()
