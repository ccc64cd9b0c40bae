"""The differences from jqueue 1.0.0: a program for both versions. Each function shows one difference.

The docstring of a function states the difference, its reason, and what each version returns, line by line. The
program prints all that as JSON. docs/reference/compatibility.md lists the same differences and reasons.
"""

# mypy: ignore-errors

import asyncio
import dataclasses
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from jqueue import (
    BrokerQueue,
    CASConflictError,
    DirectQueue,
    HeartbeatManager,
    InMemoryStorage,
    Job,
    JobNotFoundError,
    JobStatus,
    JQueueError,
    LocalFileSystemStorage,
    QueueState,
    StorageError,
)
from jqueue.core.codec import decode

NOTHING = timedelta(0)
IS_2 = hasattr(DirectQueue(InMemoryStorage()), "options")


class Store:
    """A store in memory with two methods only, whose reads and writes may fail."""

    def __init__(self, content=b""):
        self.storage = InMemoryStorage(content)

    async def read(self):
        return await self.storage.read()

    async def write(self, content, if_match=None):
        return await self.storage.write(content, if_match)


async def outcome(call):
    """Await a call, and return "done" or the name of its error."""
    try:
        await call
    except Exception as error:
        return type(error).__name__
    return "done"


def on_a_file():
    return DirectQueue(LocalFileSystemStorage("queue.json"))


# Claims


async def unclaimed_job():
    """Only a claimed job can be acked, nacked or kept alive

    Why: it may come from a worker that lost its claim

    1.0.0: done done done
    2.0.0: ClaimLostError, a JobNotFoundError: True
    2.0.0: ClaimLostError ClaimLostError ClaimLostError
    """
    q = DirectQueue(InMemoryStorage())
    if IS_2:
        try:
            await q.ack((await q.enqueue("task", b"")).id)
        except JQueueError as error:
            yield f"{type(error).__name__}, a JobNotFoundError: {isinstance(error, JobNotFoundError)}"
    yield " ".join([await outcome(verb((await q.enqueue("task", b"")).id)) for verb in (q.ack, q.nack, q.heartbeat)])


async def another_queue_object():
    """An id stands only for a claim that the same queue object handed out

    Why: an id alone does not name a claim. `Job` does

    1.0.0: by the id: done
    2.0.0: by the id: ClaimLostError
    2.0.0: by the Job: done
    """
    storage = InMemoryStorage()
    mine, other = DirectQueue(storage), DirectQueue(storage)
    await mine.enqueue("task", b"")
    [job] = await mine.dequeue("task")
    yield f"by the id: {await outcome(other.ack(job.id))}"
    if IS_2:
        yield f"by the Job: {await outcome(other.ack(job))}"


async def late_ack():
    """A worker that lost its claim cannot end the claim of the next worker

    Why: the next worker still runs the job

    1.0.0: the late worker: done
    1.0.0: the worker that holds it: JobNotFoundError
    2.0.0: the late worker: ClaimLostError
    2.0.0: the worker that holds it: done
    """
    storage = InMemoryStorage()
    slow, quick = DirectQueue(storage), DirectQueue(storage)
    await slow.enqueue("task", b"")
    [lost] = await slow.dequeue("task")
    await quick.requeue_stale(NOTHING)
    [held] = await quick.dequeue("task")
    yield f"the late worker: {await outcome(slow.ack(lost.id))}"
    yield f"the worker that holds it: {await outcome(quick.ack(held.id))}"


async def claimed_again():
    """After a lost claim and a new one of the same job, the bare id is refused

    Why: it could mean either claim. Pass the `Job`

    1.0.0: by the id: done
    2.0.0: by the id: ClaimLostError
    2.0.0: by the Job: done
    """
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"")
    await q.dequeue("task")
    await q.requeue_stale(NOTHING)
    [job] = await q.dequeue("task")
    yield f"by the id: {await outcome(q.ack(job.id))}"
    if IS_2:
        yield f"by the Job: {await outcome(q.ack(job))}"


async def lost_heartbeat():
    """A heartbeat whose claim is lost cancels the block, which raises ClaimLostError

    Why: two workers would run one job. With `on_lost="event"` the block goes on

    1.0.0: done
    2.0.0: ClaimLostError
    """
    storage = InMemoryStorage()
    q, other = DirectQueue(storage), DirectQueue(storage)
    await q.enqueue("task", b"")
    [job] = await q.dequeue("task")

    async def block():
        async with HeartbeatManager(q, job.id, interval=timedelta(milliseconds=10)):
            await other.requeue_stale(NOTHING)
            [held] = await other.dequeue("task")
            while (await other.read_state()).jobs[0].heartbeat_at == held.heartbeat_at:
                await asyncio.sleep(0.01)

    yield await outcome(block())


async def heartbeat_in_trouble():
    """A heartbeat is retried until the timeout of the claim

    Why: one failed heartbeat must not cost the claim

    1.0.0: 1 beat
    2.0.0: 3 beats
    """

    class Unreachable:
        beats = 0

        async def heartbeat(self, job_id):
            self.beats += 1
            raise StorageError("no route to the store", OSError())

    q = Unreachable()
    async with HeartbeatManager(q, "a job", interval=timedelta(milliseconds=10)):
        while q.beats < 3 and len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)
    yield f"{q.beats} beat{'s' * (q.beats > 1)}"


async def timeout_of_the_claim():
    """The timeout of a claim is stored with it

    Why: another process must not take a live worker's job

    1.0.0: taken over: 1
    2.0.0: taken over: 0
    """
    storage = InMemoryStorage()
    patient = BrokerQueue(storage, stale_timeout=timedelta(hours=1))
    hasty = BrokerQueue(storage, stale_timeout=timedelta(milliseconds=1))
    async with patient, hasty:
        await patient.enqueue("task", b"")
        await patient.dequeue("task")
        await asyncio.sleep(0.02)
        yield f"taken over: {len(await hasty.dequeue('task'))}"


async def direct_queue_sweeps():
    """DirectQueue recovers stale jobs when it dequeues, as BrokerQueue does

    Why: jobs of dead workers must not wait for `requeue_stale`

    1.0.0: recovered: 0
    2.0.0: recovered: 1
    """
    # 1.0.0 ignores the timeout in this blob; the default of 2.0.0 is 5 minutes.
    of_a_dead_worker = b"""{"version": 1, "jobs": [{"id": "a", "entrypoint": "task", "payload": "", "status":
"in_progress", "created_at": "2024-01-01T00:00:00Z", "heartbeat_at": "2024-01-01T00:00:00Z", "claim_timeout": 0.1}]}"""
    q = DirectQueue(InMemoryStorage(of_a_dead_worker))
    found = await q.dequeue("task")
    await asyncio.sleep(0.2)
    yield f"recovered: {len(found + await q.dequeue('task'))}"


# Order


async def order_of_a_nack():
    """A nacked or recovered job goes behind jobs of equal priority

    Why: it must not delay others. `charge=False` keeps its place

    1.0.0: a b
    2.0.0: b a
    """
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("a", b"")
    await q.enqueue("b", b"")
    [a] = await q.dequeue()
    await q.nack(a.id)
    yield " ".join(job.entrypoint for job in await q.dequeue(batch_size=2))


async def order_of_commits():
    """Jobs of equal priority are served in the order of their commits, not of `created_at`

    Why: clocks disagree

    1.0.0: b a
    2.0.0: a b
    """
    blob = b"""{"version": 2, "jobs": [
{"id": "a", "entrypoint": "a", "payload": "", "created_at": "2024-01-01T00:00:05Z"},
{"id": "b", "entrypoint": "b", "payload": "", "created_at": "2024-01-01T00:00:00Z"}]}"""
    yield " ".join(job.entrypoint for job in await DirectQueue(InMemoryStorage(blob)).dequeue(batch_size=2))


# Calls and errors


async def retries_of_conflicts():
    """Lost races are retried until a deadline (30 s, or `deadline=`), not 10 or 20 times; `max_retries=n` is a limit

    Why: lost races do not show that a store fails

    1.0.0: 12 lost races: CASConflictError
    1.0.0: 3 lost races, max_retries=3: CASConflictError
    1.0.0: 4 lost races, max_retries=3: CASConflictError
    2.0.0: 12 lost races: done
    2.0.0: 3 lost races, max_retries=3: done
    2.0.0: 4 lost races, max_retries=3: CASConflictError
    """

    class Contested(Store):
        """A store where another writer wins the first races."""

        def __init__(self, races):
            super().__init__(b'{"version": 0, "jobs": []}')
            self.races = races

        async def write(self, content, if_match=None):
            if not self.races:
                return await super().write(content, if_match)
            self.races -= 1
            await super().write(*await self.read())
            raise CASConflictError("somebody was faster")

    for races, settings in ((12, {}), (3, {"max_retries": 3}), (4, {"max_retries": 3})):
        result = await outcome(DirectQueue(Contested(races), **settings).enqueue("task", b""))
        yield f"{races} lost races{', max_retries=3' if settings else ''}: {result}"


async def store_in_trouble():
    """A failing store is retried until the deadline; then a StorageError says if the call took effect

    Why: "not done" and "perhaps done" need different reactions

    1.0.0: two failures: StorageError
    1.0.0: down: StorageError
    1.0.0: a mistake in the adapter: ZeroDivisionError
    2.0.0: two failures: done
    2.0.0: down: DeadlineExceededError
    2.0.0: a mistake in the adapter: StorageError
    """

    class Failing(Store):
        def __init__(self, failures, error):
            super().__init__()
            self.failures, self.error = failures, error

        async def read(self):
            self.failures -= 1
            if self.failures >= 0:
                raise self.error
            return await super().read()

    unreachable = StorageError("503", OSError())
    deadline = {"deadline": 0.1} if IS_2 else {}
    yield f"two failures: {await outcome(DirectQueue(Failing(2, unreachable)).enqueue('task', b''))}"
    yield f"down: {await outcome(DirectQueue(Failing(10**9, unreachable), **deadline).enqueue('task', b''))}"
    mistaken = DirectQueue(Failing(1, ZeroDivisionError()))
    yield f"a mistake in the adapter: {await outcome(mistaken.enqueue('task', b''))}"


async def lost_answer():
    """A write whose answer was lost is neither repeated nor reported as failed

    Why: an operation takes effect at most once

    1.0.0: answered by a conflict: done, and stored 2 times
    1.0.0: answered by a timeout: StorageError, and stored 1 times
    2.0.0: answered by a conflict: done, and stored 1 times
    2.0.0: answered by a timeout: done, and stored 1 times
    """

    class LosesAnAnswer(Store):
        def __init__(self, answer):
            super().__init__()
            self.answer = answer

        async def write(self, content, if_match=None):
            etag = await super().write(content, if_match)
            answer, self.answer = self.answer, None
            if answer:
                raise answer
            return etag

    for name, answer in (("conflict", CASConflictError("412")), ("timeout", StorageError("timeout", OSError()))):
        q = DirectQueue(LosesAnAnswer(answer))
        result = await outcome(q.enqueue("task", b""))
        yield f"answered by a {name}: {result}, and stored {len((await q.read_state()).jobs)} times"


async def what_is_no_queue():
    """An object that is not a queue raises InvalidBlobError, not pydantic's ValidationError, and stays unchanged

    Why: the message names the remedy

    1.0.0: ValidationError ValidationError ValidationError
    2.0.0: InvalidBlobError InvalidBlobError InvalidBlobError
    """
    something_else = b'{"jobs": "none"}'
    q = DirectQueue(InMemoryStorage(something_else))

    async def decoded():
        decode(something_else)

    yield " ".join([await outcome(call) for call in (q.read_state(), q.enqueue("task", b""), decoded())])


async def damaged_job():
    """A job that cannot be read is set aside and kept, and the other jobs are served

    Why: one bad job must not stop others

    1.0.0: ValidationError
    2.0.0: done
    2.0.0: served: good, kept: True
    """
    storage = InMemoryStorage(b"""{"version": 1, "jobs": [
{"id": "a", "entrypoint": "bad", "payload": "not base64!"},
{"id": "b", "entrypoint": "good", "payload": ""}]}""")
    yield await outcome(DirectQueue(storage).read_state())
    if IS_2:
        [job] = await DirectQueue(storage).dequeue(batch_size=2)
        yield f"served: {job.entrypoint}, kept: {b'not base64!' in (await storage.read())[0]}"


async def empty_file():
    """An empty file is not an empty queue

    Why: a write that was cut short leaves one

    1.0.0: done
    2.0.0: InvalidBlobError
    """
    Path("queue.json").touch()
    yield await outcome(on_a_file().read_state())


async def vanished_file():
    """A queue whose object has disappeared raises StorageError

    Why: jobs were lost. A new queue object starts a new queue

    1.0.0: read_state: done
    1.0.0: enqueue: done
    1.0.0: a new queue object: done
    2.0.0: read_state: BlobMissingError
    2.0.0: enqueue: UnknownOutcomeError
    2.0.0: a new queue object: done
    """
    q = on_a_file()
    await q.enqueue("task", b"1")
    Path("queue.json").unlink()
    yield f"read_state: {await outcome(q.read_state())}"
    yield f"enqueue: {await outcome(q.enqueue('task', b'2'))}"
    yield f"a new queue object: {await outcome(on_a_file().enqueue('task', b'2'))}"


async def broker_outside_its_block():
    """A broker accepts calls between entering and leaving, else raises QueueClosedError

    Why: outside, a call would never end

    1.0.0: before: TimeoutError
    1.0.0: after: JQueueError
    1.0.0: entered again: JQueueError
    2.0.0: before: QueueClosedError
    2.0.0: after: QueueClosedError
    2.0.0: entered again: done
    """
    never_entered = BrokerQueue(InMemoryStorage()).enqueue("task", b"")
    yield f"before: {await outcome(asyncio.wait_for(never_entered, 0.1))}"
    q = BrokerQueue(InMemoryStorage())
    async with q:
        pass
    yield f"after: {await outcome(q.enqueue('task', b''))}"
    async with q:
        yield f"entered again: {await outcome(q.enqueue('task', b''))}"


async def two_event_loops():
    """A queue object is used by one event loop at a time

    Why: it caches state. Make one for each thread

    1.0.0: in another thread: done
    2.0.0: in another thread: JQueueError
    """
    in_a_thread = []

    class CalledMeanwhile(Store):
        async def read(self):
            if not in_a_thread:
                in_a_thread.append("")
                in_a_thread[0] = await asyncio.to_thread(lambda: asyncio.run(outcome(q.enqueue("task", b""))))
            return await super().read()

    q = DirectQueue(CalledMeanwhile())
    await q.enqueue("task", b"")
    yield f"in another thread: {in_a_thread[0]}"


async def adapters_without_etags():
    """An adapter must give every content an etag, and a missing object none: `(b"", None)`

    Why: an empty object may be a queue that was cut short

    1.0.0: an etag for nothing: done
    1.0.0: content without an etag: done
    2.0.0: an etag for nothing: InvalidBlobError
    2.0.0: content without an etag: StorageFatalError
    """

    class Fixed:
        def __init__(self, *answer):
            self.answer = answer

        async def read(self):
            return self.answer

        async def write(self, content, if_match=None):
            self.answer = content, "another"
            return "another"

    yield f"an etag for nothing: {await outcome(DirectQueue(Fixed(b'', '0')).enqueue('task', b''))}"
    without = DirectQueue(Fixed(b'{"version": 0, "jobs": []}', None))
    yield f"content without an etag: {await outcome(without.enqueue('task', b''))}"


# Arguments


async def text_payload():
    """A payload must be bytes-like

    Why: 1.0.0 stored other bytes for a text

    1.0.0: b'i\\xb7\\x1d'
    2.0.0: InvalidJobError, a ValueError
    """
    try:
        yield str((await DirectQueue(InMemoryStorage()).enqueue("task", "abcd")).payload)
    except ValueError as error:
        yield f"{type(error).__name__}, a ValueError"


async def strict_arguments():
    """Arguments are checked before anything is sent: types, 32 bits for a priority, a printable name for an entrypoint

    Why: all processes must be able to read them

    1.0.0: done
    2.0.0: InvalidJobError
    """
    q = DirectQueue(InMemoryStorage())
    calls = [q.enqueue("task", b"", priority) for priority in ("5", 1.0, True, 2**31)]
    calls += [q.enqueue(entrypoint, b"") for entrypoint in ("", "a\nb")]
    calls.append(q.dequeue("task", batch_size=-1))
    yield " ".join({await outcome(call) for call in calls})


async def sizes():
    """Sizes are limited: 1 MiB for a payload in the blob, 512 bytes for a name, 64 MiB for the blob, 10,000 jobs a call

    Why: each commit writes the whole blob. `limits=...` sets others

    1.0.0: done done done
    2.0.0: InvalidJobError InvalidJobError InvalidJobError
    """
    q = DirectQueue(Store())  # other stores keep large payloads in objects of their own
    calls = q.enqueue("task", bytes(2 << 20)), q.enqueue("t" * 600, b""), q.dequeue(batch_size=20_000)
    yield " ".join([await outcome(call) for call in calls])


async def times():
    """Times have a time zone and are in UTC

    Why: other times cannot be compared

    1.0.0: 2024-01-01 12:00:00
    1.0.0: 2024-01-01 12:00:00+02:00
    2.0.0: 2024-01-01 12:00:00+00:00
    2.0.0: 2024-01-01 10:00:00+00:00
    """
    for zone in (None, timezone(timedelta(hours=2))):
        noon = datetime(2024, 1, 1, 12, tzinfo=zone)
        yield str(Job(entrypoint="task", payload=b"", created_at=noon).created_at)


# Values


async def statuses():
    """There is a fourth status, `JobStatus.COMPLETED`

    Why: a job has it while its result is kept

    1.0.0: QUEUED IN_PROGRESS DEAD
    2.0.0: QUEUED IN_PROGRESS DEAD COMPLETED
    """
    yield " ".join(status.name for status in JobStatus)


async def fields_of_jobs_and_states():
    """`Job` and `QueueState` have more fields; a state can no longer be hashed

    Why: attempts, limits and commits are part of the state

    1.0.0: more fields: False False, hash: done
    2.0.0: more fields: True True, hash: TypeError
    """

    async def hashed():
        hash(QueueState())

    more = len(Job.model_fields) > 7, len(QueueState.model_fields) > 2
    yield f"more fields: {more[0]} {more[1]}, hash: {await outcome(hashed())}"


async def payloads_in_logs():
    """`repr`, `print` and errors never show a payload

    Why: more people read logs than queues

    1.0.0: shown by: job state storage error
    2.0.0: shown by:
    """
    job = Job(entrypoint="task", payload=b"secret")
    try:
        Job(entrypoint="task", payload="secret!")
    except ValueError as raised:
        error = str(raised)
    shown = {"job": repr(job), "state": str(QueueState(jobs=(job,))), "storage": repr(InMemoryStorage(b"secret"))}
    yield " ".join(["shown by:", *[what for what, text in (shown | {"error": error}).items() if "secret" in text]])


async def version_of_the_state():
    """`QueueState.version` grows by one with each commit

    Why: it identifies the commit

    1.0.0: 4
    2.0.0: 3
    """
    q = DirectQueue(InMemoryStorage())
    await q.enqueue("task", b"")
    await q.enqueue("task", b"")
    await q.dequeue("task", batch_size=2)
    yield str((await q.read_state()).version)


async def settings_are_fixed():
    """Queues and file stores are not dataclasses, and their settings cannot be changed

    Why: claims and locks depend on them

    1.0.0: dataclasses, equal, can be set: True True True
    2.0.0: dataclasses, equal, can be set: False False False
    """
    storage = LocalFileSystemStorage("queue.json")
    try:
        storage.path = Path("other.json")
        is_set = True
    except AttributeError:
        is_set = False
    kinds = {dataclasses.is_dataclass(kind) for kind in (BrokerQueue, DirectQueue, LocalFileSystemStorage)}
    equal = LocalFileSystemStorage("queue.json") == LocalFileSystemStorage("queue.json")
    yield f"dataclasses, equal, can be set: {' '.join(map(str, kinds))} {equal} {is_set}"


# Blob and files


async def shape_of_the_blob():
    """The blob has another shape: `jobs` is an object keyed by id, one job per line

    Why: 1.0.0 would drop unknown fields

    1.0.0: list
    2.0.0: dict
    """
    await on_a_file().enqueue("task", b"")
    yield type(json.loads(Path("queue.json").read_text())["jobs"]).__name__


async def polling():
    """A call that changes nothing writes nothing: an empty dequeue does not even create the file

    Why: another writer loses the race

    1.0.0: the file is there: True
    2.0.0: the file is there: False
    """
    assert await on_a_file().dequeue() == []
    yield f"the file is there: {Path('queue.json').exists()}"


async def files():
    """The file of a queue is replaced at each write, is its owner's alone (0600), and has a `.lock` file beside it

    Why: a kill must lose nothing; payloads are private

    1.0.0: queue.json
    1.0.0: 0644, the same file after the second write: True
    2.0.0: queue.json queue.json.lock
    2.0.0: 0600, the same file after the second write: False
    """
    os.umask(0o022)
    q = on_a_file()
    await q.enqueue("task", b"1")
    with open("queue.json") as first:
        await q.enqueue("task", b"2")
        now = os.stat("queue.json")
        same = os.path.samestat(os.fstat(first.fileno()), now)
    yield " ".join(sorted(os.listdir()))
    yield f"{now.st_mode & 0o777:04o}, the same file after the second write: {same}"


async def etag_of_files():
    """The etag of a file is a token and the file's metadata, not a hash of its content

    Why: restored content is a new version, even if it is equal

    1.0.0: the same content, the same etag: True
    2.0.0: the same content, the same etag: False
    """
    storage = LocalFileSystemStorage("queue.json")
    first = await storage.write(b"content")
    yield f"the same content, the same etag: {first == await storage.write(b'content', first)}"


async def symbolic_links():
    """A symbolic link at the path of the queue is refused; links in the folders above are followed

    Why: a write would replace the link

    1.0.0: the file: done
    1.0.0: the folder: done
    2.0.0: the file: StorageFatalError
    2.0.0: the folder: done
    """
    os.mkdir("folder")
    os.symlink("folder/queue.json", "link.json")
    os.symlink("folder", "link")
    await DirectQueue(LocalFileSystemStorage("folder/queue.json")).enqueue("task", b"")
    for what, path in (("file", "link.json"), ("folder", "link/queue.json")):
        yield f"the {what}: {await outcome(DirectQueue(LocalFileSystemStorage(path)).enqueue('task', b''))}"


async def lines_of(function):
    return [line async for line in function()]


def main():
    home = Path.cwd()
    module = sys.modules[__name__]
    for name, function in list(vars(module).items()):
        if getattr(function, "__module__", "") == __name__ and "\n\n    Why: " in (function.__doc__ or ""):
            (home / name).mkdir()
            os.chdir(home / name)
            print(json.dumps([function.__doc__, asyncio.run(lines_of(function))]))


if __name__ == "__main__":
    main()
