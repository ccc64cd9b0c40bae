"""Queues on one file, of which one serves the others through a socket beside the file."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

from jqueue import BrokerQueue, DirectQueue, LocalFileSystemStorage, connect, open_storage
from jqueue.adapters.storage import _unix_socket
from jqueue.adapters.storage._unix_socket import HEAD, SILENCE
from jqueue.core.broker_server import STILL
from jqueue.core.seat_server import WATCH
from jqueue.core.session import FileWatch
from jqueue.domain.errors import BlobMissingError, StorageError, StorageFatalError, UnknownOutcomeError
from jqueue.ports.observer import Observer
from jqueue.ports.sharing import LARGE_BYTES, LARGEST_MESSAGE, SMALL_MESSAGE

ROOT = Path(__file__).parents[2]
SECONDS = 20.0
"""Time for anything here. A correct program needs much less."""

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no Unix sockets")


class Commits(Observer):
    """The number of commits of a queue object, and perhaps that object."""

    queue: object = None

    def __init__(self):
        self.count = 0

    def committed(self, commit):
        self.count += 1


@asynccontextmanager
async def opened(path, kind=BrokerQueue, **options):
    """A queue on the file, and its commits."""
    queue = kind(LocalFileSystemStorage(path), **{"deadline": SECONDS, **options})
    commits = Commits()
    queue.observe(commits)
    async with queue:
        yield queue, commits


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def until_served(path, queue):
    """Wait until a queue's calls go to a broker: then its own commits stay as many as they are."""
    commits = Commits()
    queue.observe(commits)
    async with asyncio.timeout(SECONDS):
        while True:
            before = commits.count
            await queue.enqueue("until served", b"")
            if commits.count == before:
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(path, kind=BrokerQueue, **options):
    """A queue that serves, and a client of it, each with its commits."""
    async with opened(path, **options) as (broker, its_commits), opened(path, kind) as (client, commits):
        broker.offer()
        await until_served(path, client)
        commits.count = its_commits.count = 0
        yield broker, its_commits, client, commits


async def payloads(queue):
    """The payloads of all jobs, in order."""
    return sorted(job.payload for job in (await queue.read_state()).jobs if job.entrypoint != "until served")


@pytest.mark.parametrize("broker_kind", [BrokerQueue, DirectQueue])
@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_both_kinds_of_queue_serve_and_are_served(path, broker_kind, kind):
    async with opened(path, broker_kind) as (broker, its_commits), opened(path, kind) as (client, commits):
        broker.offer()
        await until_served(path, client)
        commits.count = its_commits.count = 0
        job = await client.enqueue("work", b"one")
        [claimed] = await client.dequeue("work")
        assert job.id == claimed.id
        await client.ack(claimed)
        assert await payloads(broker) == []
    assert commits.count == 0
    assert its_commits.count == 3


async def test_a_consumer_watches_the_file_while_nobody_serves_and_a_broker_does_not(path):
    """Each commit of a broker would be an event for itself, and cause a read."""
    pytest.importorskip("watchfiles")

    def watching():
        return [thread for thread in threading.enumerate() if thread.name == "jqueue-file-events"]

    async with opened(path, share=False, poll_interval=3600) as (alone, _), opened(path, share=False) as (other, _):
        await other.enqueue("other", b"")
        waiting = asyncio.create_task(alone.dequeue("work", wait=3600))
        await until(watching)
        await other.enqueue("work", b"")
        async with asyncio.timeout(SECONDS):
            assert 1 == len(await waiting)
    await until(lambda: not watching())
    async with served(path) as (broker, its_commits, client, _):
        waiting = asyncio.create_task(broker.dequeue("later", wait=SECONDS))
        for _ in range(3):  # the broker waits again after each
            await client.enqueue("other", b"")
        assert not watching()
        await client.enqueue("later", b"")
        assert 1 == len(await waiting)
        assert 4 == its_commits.count


async def test_the_watch_of_an_event_loop_that_was_closed_ends_with_the_next_event(tmp_path):
    pytest.importorskip("watchfiles")

    async def begin():
        FileWatch(lambda: [tmp_path], lambda: None).begin()

    before = {*threading.enumerate()}
    await asyncio.to_thread(asyncio.run, begin())
    [thread] = [each for each in threading.enumerate() if each.name == "jqueue-file-events" and each not in before]

    def ended():
        (tmp_path / "file").touch()
        return not thread.is_alive()

    await until(ended)


async def test_a_queue_that_does_not_share_commits_itself(path):
    async with served(path) as (_, its_commits, _, _), opened(path, share=False) as (alone, commits):
        for _ in range(5):
            await alone.enqueue("work", b"")
        assert commits.count == 5
        assert its_commits.count == 0


@pytest.mark.parametrize("descriptors", [_unix_socket.DESCRIPTORS, "/absent as on macOS"])
async def test_a_path_that_is_too_long_for_a_socket_is_served(tmp_path, monkeypatch, descriptors):
    monkeypatch.setattr(_unix_socket, "DESCRIPTORS", descriptors)
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    async with served(folder / "queue.json") as (_, its_commits, client, commits):
        await client.enqueue("work", b"")
        assert (1, 0) == (its_commits.count, commits.count)


async def test_a_socket_that_a_killed_broker_has_left_is_passed_by_and_replaced(path):
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{path}.broker")
    left.close()
    Path(f"{path}.broker.lock").touch()
    async with opened(path) as (client, commits):
        await client.enqueue("work", b"")
        assert commits.count == 1
    async with served(path) as (_, its_commits, client, commits):
        await client.enqueue("work", b"")
        assert (1, 0) == (its_commits.count, commits.count)


@pytest.mark.parametrize("name", ["queue.json.broker", "queue.json.broker.lock"])
async def test_serving_touches_no_file_of_another_program(path, name):
    """Such as a queue that an earlier version has made under this name."""
    other = path.with_name(name)
    other.write_bytes(b"another queue")
    async with opened(path) as (broker, its_commits):
        broker.offer()
        for _ in range(5):
            await broker.enqueue("work", b"")
            await asyncio.sleep(0.1)
    assert (5, b"another queue") == (its_commits.count, other.read_bytes())


@pytest.mark.parametrize("name", ["jobs.broker", "jobs.Broker", "jobs.broker.lock", ".jobs.1a2b.tmp"])
def test_a_queue_does_not_get_the_name_of_a_file_beside_another_queue(tmp_path, name):
    for make in (LocalFileSystemStorage, open_storage, lambda path: open_storage(f"file://{path}")):
        with pytest.raises(StorageFatalError, match=r"beside the queue .jobs.: .* rename"):
            make(tmp_path / name)


@pytest.mark.parametrize("gone", [(".broker",), (".broker.lock",), (".broker", ".broker.lock")])
async def test_a_socket_or_lock_that_somebody_removed_is_made_again(path, gone):
    async with served(path) as (_, _, client, _):
        for end in gone:
            os.unlink(f"{path}{end}")
        await until(lambda: all(os.path.exists(f"{path}{end}") for end in gone))
        async with opened(path) as (another, _):
            for each in (client, another):
                await until_served(path, each)


async def test_a_broker_that_ends_removes_only_what_it_has_made(path):
    ends = (".broker", ".broker.lock")
    async with served(path):
        for end in ends:
            os.unlink(f"{path}{end}")
            Path(f"{path}{end}").write_bytes(b"another queue")
    assert [b"another queue"] * 2 == [Path(f"{path}{end}").read_bytes() for end in ends]


CROWDED = """
import asyncio, os, resource, sys
from jqueue import BrokerQueue, LocalFileSystemStorage

resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

async def work(path):
    async with BrokerQueue(LocalFileSystemStorage(path), deadline=10) as queue:
        await queue.enqueue("work", b"first")
        queue.offer()
        while not os.path.exists(path + ".broker"):
            await asyncio.sleep(0.01)
        print("serves", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await queue.enqueue("work", b"in the crowd")
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(work(sys.argv[1]))
"""


async def test_a_broker_keeps_back_the_descriptors_that_it_needs_itself(path):
    with program(CROWDED, path) as broker, ExitStack() as stack:
        assert "serves\n" == await asyncio.to_thread(broker.stdout.readline)
        for _ in range(300):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(f"{path}.broker")
        async with opened(path) as (late, commits):
            await late.enqueue("work", b"by itself")
            assert commits.count == 1
        broker.stdin.write("\n")
        broker.stdin.flush()
        assert "done\n" == await asyncio.to_thread(broker.stdout.readline)
        async with opened(path, share=False) as (queue, _):
            assert [b"by itself", b"first", b"in the crowd"] == await payloads(queue)


async def test_a_client_is_told_of_a_file_that_was_removed_or_replaced(path):
    async with served(path) as (broker, _, client, _):
        path.unlink()
        with pytest.raises(UnknownOutcomeError, match=r"has disappeared.* also its broker"):  # it was sent
            await client.enqueue("work", b"")
        with pytest.raises(BlobMissingError):
            await client.enqueue("work", b"")
        with pytest.raises(BlobMissingError):
            await broker.enqueue("work", b"")
        async with opened(path.with_name("other.json")) as (other, _):
            await other.enqueue("work", b"")
        path.with_name("other.json").rename(path)
        with pytest.raises(StorageFatalError):
            await client.enqueue("work", b"")
        with pytest.raises(StorageFatalError):
            await broker.enqueue("work", b"")
    async with opened(path) as (queue, _):
        assert [b""] == await payloads(queue)


async def test_a_closed_queue_object_is_freed_although_an_observer_refers_to_it(path):
    queue, observer = BrokerQueue(LocalFileSystemStorage(path)), Commits()
    observer.queue = queue
    queue.observe(observer)
    for _ in range(2):
        async with queue:
            await queue.enqueue("work", b"")
    left = weakref.ref(queue)
    del queue, observer
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("again", [False, True], ids=["used once", "used again after it was closed"])
@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system does not list its descriptors")
async def test_a_queue_object_that_is_dropped_ends_its_connection_without_the_garbage_collector(path, again):
    troubles = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context["message"]))
    async with served(path) as (_, its_commits, _, _):
        gc.collect()
        gc.disable()
        try:
            before = len(os.listdir("/dev/fd"))
            for _ in range(10):
                queue = connect(path, DirectQueue)
                if again:
                    await queue.aclose()
                    await queue.__aenter__()
                await queue.enqueue("work", b"x" * 300_000)  # in an object, which a collection looks at after the ack
                [job] = await queue.dequeue("work")
                await queue.ack(job)
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):  # the broker is told that the caller has gone
                        await queue.dequeue("later", wait=SECONDS)
            del queue
            await until(lambda: len(os.listdir("/dev/fd")) <= before)
        finally:
            gc.enable()
        gc.collect()
        assert (30, []) == (its_commits.count, troubles)


class SilentFile(LocalFileSystemStorage):
    """A file that gives no answer while it is silent, although it does as it is told."""

    silent = False

    async def read_if_changed(self, etag):
        return self.answered(await super().read_if_changed(etag))

    async def write(self, content, if_match=None):
        return self.answered(await super().write(content, if_match))

    def answered(self, answer):
        if self.silent:
            raise StorageError("no answer came")
        return answer


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system does not list its descriptors")
async def test_a_closed_queue_object_that_resolves_a_call_keeps_no_connection(path):
    storage = SilentFile(path)
    async with DirectQueue(storage, deadline=0.3) as queue:
        await queue.enqueue("work", b"first")
        storage.silent = True
        with pytest.raises(UnknownOutcomeError) as unknown:
            await queue.enqueue("work", b"second")
        storage.silent = False
    async with served(path) as (broker, *_):
        before = len(os.listdir("/dev/fd"))
        await unknown.value.resolve(SECONDS)
        await until(lambda: len(os.listdir("/dev/fd")) <= before)
        assert [b"first", b"second"] == await payloads(broker)


class Raw:
    """A connection to a broker that says what it likes."""

    def __init__(self, path):
        self.path = path

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_unix_connection(f"{self.path}.broker")
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    def send(self, message, number=1):
        self.writer.write(HEAD.pack(len(message), number) + message)

    async def answer(self):
        """The next answer, with its number."""
        while True:
            size, number = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            if number:
                return number, json.loads(await self.reader.readexactly(size))


async def test_large_messages_that_do_not_come_hold_small_ones_up_never_and_large_ones_for_a_short_time(path):
    large = b"while there is no room" + bytes(LARGE_BYTES - LARGEST_MESSAGE)
    async with asyncio.timeout(SECONDS), served(path) as (_, its_commits, client, commits), AsyncExitStack() as stack:
        liars = [await stack.enter_async_context(Raw(path)) for _ in range(LARGE_BYTES // LARGEST_MESSAGE + 1)]
        for liar in liars:
            liar.send(b"")
            await liar.answer()
            liar.writer.write(HEAD.pack(LARGEST_MESSAGE, 1) + b"[")
        ends = [asyncio.create_task(liar.reader.read()) for liar in liars]
        for _ in range(2):  # before the second, the broker has read what the liars have sent
            await client.enqueue("work", b"small")
        assert (2, 0) == (its_commits.count, commits.count)
        assert not any(end.done() for end in ends), "there was room besides"
        async with opened(path) as (other, _):
            await other.enqueue("large", large)
        assert [b""] * len(liars) == await asyncio.gather(*ends)
        await until_served(path, client)
        commits.count = its_commits.count = 0
        await client.enqueue("work", b"afterwards" + bytes(SMALL_MESSAGE))
        assert (1, 0) == (its_commits.count, commits.count)


async def test_a_client_that_reads_no_answers_is_read_no_further(path):
    async with asyncio.timeout(SECONDS), served(path) as (_, _, client, commits):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"{path}.broker")
            raw.setblocking(False)
            frames, sent, taken = (HEAD.pack(200, 1) + b"{}".ljust(200)) * 256, 0, True
            while taken:
                taken = False
                with suppress(BlockingIOError):
                    while True:
                        sent += raw.send(frames)
                        taken = True
                        assert sent < 64 << 20
                for _ in range(5):  # the broker has the time to read on
                    await client.enqueue("work", b"")
            assert commits.count == 0
        await client.enqueue("work", b"")
        assert commits.count == 0


FORK = """
import asyncio, os, sys
from jqueue import BrokerQueue, LocalFileSystemStorage

async def work(path):
    queue = BrokerQueue(LocalFileSystemStorage(path))
    async with queue:
        queue.offer()
        while not os.path.exists(path + ".broker"):
            await asyncio.sleep(0.01)
        await queue.enqueue("parent", b"")
        if not (child := os.fork()):
            print("child", flush=True)
            os.read(0, 1)  # until the test ends
            os._exit(0)
        await asyncio.sleep(60)

asyncio.run(work(sys.argv[1]))
"""


@contextmanager
def program(text, *arguments):
    """A process in a group of its own, which is killed at the end, with its children."""
    command = [sys.executable, "-W", "ignore", "-c", text, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def test_a_child_does_not_hold_the_seat_of_its_killed_parent(path):
    with program(FORK, path) as parent:
        assert "child\n" == await asyncio.to_thread(parent.stdout.readline)
        async with opened(path) as (queue, commits), opened(path) as (client, its_commits):
            await client.enqueue("work", b"")
            assert its_commits.count == 0
            parent.kill()
            parent.wait()
            queue.offer()
            async with asyncio.timeout(SECONDS):
                while not commits.count:
                    await client.enqueue("work", b"")
            await until_served(path, client)


async def test_a_connection_from_before_a_fork_is_not_used_by_the_child(path):

    async def calls(queue, name):
        for number in range(100):
            job = await queue.enqueue("work", f"{name} {number}".encode())
            assert f"{name} {number}".encode() == job.payload

    async with served(path) as (_, _, client, commits):
        child = os.fork()
        if not child:
            code = 1
            with suppress(BaseException):
                asyncio.run(calls(client, "child"))
                code = 0
            os._exit(code)
        await calls(client, "parent")
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert (0, 0) == (status, commits.count)
        assert 200 == len(await payloads(client))


async def test_a_client_that_stood_still_itself_does_not_give_its_broker_up(path):
    """A handler that blocks the event loop, or a pause of the machine: the frames of meanwhile are there, not read."""
    storage, ready, over = LocalFileSystemStorage(path), threading.Event(), threading.Event()

    async def answer(message):
        await asyncio.sleep(SILENCE + 1)
        return message

    async def serve():
        seat = await storage.take_seat(answer)
        assert seat is not None
        ready.set()
        await asyncio.to_thread(over.wait, SECONDS)
        await seat.leave()

    broker = threading.Thread(target=asyncio.run, args=(serve(),))
    broker.start()
    try:
        await asyncio.to_thread(ready.wait, SECONDS)
        link = await storage.dial()
        assert link is not None
        answered = asyncio.create_task(link.exchange(b"message"))
        await asyncio.sleep(0.1)
        time.sleep(SILENCE + 0.2)
        assert b"message" == await answered
        link.close()
    finally:
        over.set()
        broker.join()


async def meet(*queues):
    """Let queues commit in turns, so that each sees the others."""
    for _ in range(3):
        for queue in queues:
            await queue.enqueue("work", b"")


async def test_a_broker_queue_that_sees_others_serves_them_until_it_is_closed(path):
    async with opened(path) as (second, its_commits), opened(path, DirectQueue) as (third, commits):
        async with opened(path) as (first, first_commits):
            await meet(first, third)
            await until(Path(f"{path}.broker").exists)
            its_commits.count = commits.count = first_commits.count = 0
            await meet(second, third, first)
            assert (9, 0, 0) == (first_commits.count, its_commits.count, commits.count)
        assert not Path(f"{path}.broker").exists()
        await meet(second, third)
        await until(Path(f"{path}.broker").exists)
        its_commits.count = commits.count = 0
        await meet(third)
        assert (3, 0) == (its_commits.count, commits.count)
    assert not Path(f"{path}.broker").exists()


@pytest.mark.parametrize(("kind", "options"), [(DirectQueue, {}), (BrokerQueue, {"share": False})])
async def test_other_queues_do_not_offer_by_themselves(path, kind, options):
    async with (
        opened(path, kind, **options) as (first, commits),
        opened(path, kind, **options) as (second, its_commits),
    ):
        for _ in range(3):
            await meet(first, second)
        assert (9, 9) == (commits.count, its_commits.count)
    assert {"queue.json", "queue.json.lock"} == set(os.listdir(path.parent))


async def test_waiting_calls_of_a_direct_queue_share_a_commit_while_others_commit(path):
    async with opened(path, DirectQueue) as (first, commits), opened(path, DirectQueue) as (second, _):
        await meet(first)
        commits.count = 0
        await asyncio.gather(*(first.enqueue("work", b"") for _ in range(10)))
        assert 10 == commits.count
        await meet(second, first)
        commits.count = 0
        await asyncio.gather(*(first.enqueue("work", b"") for _ in range(10)))
        assert 1 == commits.count


async def test_a_program_of_one_call_never_offers_nor_does_a_lone_one(path):
    taken = []

    class Watched(LocalFileSystemStorage):
        async def take_seat(self, handle):
            taken.append(self)
            return await super().take_seat(handle)

    async with BrokerQueue(Watched(path)) as lone:
        await meet(lone, lone)
    for _ in range(3):
        async with BrokerQueue(Watched(path)) as queue, DirectQueue(Watched(path)) as other:
            await asyncio.gather(queue.enqueue("work", b""), other.enqueue("work", b""))  # one of them loses a race
    assert [] == taken


async def test_a_broker_that_stood_still_leaves_the_seat_to_another(path):
    async with opened(path) as (first, commits), opened(path) as (second, its_commits):
        await meet(first, second)
        await until(Path(f"{path}.broker").exists)
        seat = LocalFileSystemStorage(path).broker_epoch()
        time.sleep(WATCH + STILL + 0.3)
        await until(lambda: LocalFileSystemStorage(path).broker_epoch() != seat)
        while not Path(f"{path}.broker").exists():
            await meet(first, second)
        commits.count = its_commits.count = 0
        await meet(first, second)
        assert (0, 6) == (commits.count, its_commits.count)


def test_a_broker_whose_event_loop_has_ended_frees_the_seat(path):
    """Its connections would be accepted by the system, and never answered."""
    queue = BrokerQueue(LocalFileSystemStorage(path))

    async def serve():
        await queue.start()
        async with opened(path, DirectQueue) as (other, _):
            await meet(queue, other)
            await until(Path(f"{path}.broker").exists)

    for _ in range(2):
        asyncio.run(serve())
        assert not Path(f"{path}.broker").exists()

    async def stop():
        async with BrokerQueue(LocalFileSystemStorage(path)) as third:
            third.offer()
            await until(Path(f"{path}.broker").exists)
        await queue.start()
        await queue.stop()

    asyncio.run(stop())


async def test_a_queue_object_that_is_dropped_serves_no_longer(path):
    async with opened(path, DirectQueue) as (client, commits):
        queue = BrokerQueue(LocalFileSystemStorage(path))
        await queue.start()
        await meet(queue, client)
        await until(Path(f"{path}.broker").exists)
        gc.disable()
        try:
            del queue
            await until(lambda: not Path(f"{path}.broker").exists())
        finally:
            gc.enable()
        commits.count = 0
        await client.enqueue("work", b"")
        assert 1 == commits.count
