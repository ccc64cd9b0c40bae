"""A queue file that users of one group share keeps its mode and group, whichever user writes. Strangers get nothing."""

import asyncio
import fcntl
import os
import pickle
import shutil
import socket
import stat
import tempfile
import time
from pathlib import Path

import pytest

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
from jqueue.domain.operations.operator import CreateQueue
from jqueue.testing.storage_contract import count_up

GROUP = 54321
WEB, WORKER, STRANGER = 54001, 54002, 54003

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be several users"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


@pytest.fixture
def folder():
    """A folder of the group, in which new files belong to the group (the setgid bit)."""
    path = Path(tempfile.mkdtemp())
    os.chown(path, -1, GROUP)
    path.chmod(0o2770)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def path(folder):
    return folder / "queue.json"


def begin_as(user, work, groups=(GROUP,)):
    """Begin to run a coroutine function in a process of another user, whose own group has the user's number."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o077)
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            result = asyncio.run(work())
        except BaseException as error:
            result = error
        try:
            os.write(writable, pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(writable)
    return child, readable


def end(begun):
    child, readable = begun
    with open(readable, "rb") as pipe:
        answer = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def run_as(user, work, groups=(GROUP,)):
    return end(begin_as(user, work, groups))


def written(path, content, **settings):
    """Return a function that writes this content over any other."""

    async def write():
        storage = LocalFileSystemStorage(path, **settings)
        return await storage.write(content, (await storage.read())[1])

    return write


def modes_and_groups(path):
    found = [os.stat(file) for file in (path, f"{path}.lock")]
    return {(stat.S_IMODE(status.st_mode), status.st_gid) for status in found}


def test_users_that_create_a_queue_at_the_same_moment_lose_no_update(path):
    async def increment():
        await count_up(LocalFileSystemStorage(path, mode=0o660), 20)

    for begun in [begin_as(user, increment) for user in (WEB, WORKER, WEB, WORKER)]:
        end(begun)
    assert (b"80", {(0o660, GROUP)}) == (path.read_bytes(), modes_and_groups(path))


def test_a_file_that_the_operator_opens_to_a_group_stays_open_to_it(path, folder):
    """No setgid bit: each write gives the new file to the group, because the writers are members."""
    folder.chmod(0o770)
    run_as(WEB, written(path, b"private"))
    assert {(0o600, WEB)} == modes_and_groups(path)
    os.chown(path, -1, GROUP)
    path.chmod(0o660)
    run_as(WEB, written(path, b"web's"))
    run_as(WORKER, written(path, b"worker's"))
    run_as(WEB, written(path, b"web's again"))
    assert (b"web's again", {(0o660, GROUP)}) == (path.read_bytes(), modes_and_groups(path))


async def answer(message):
    return message


@pytest.mark.parametrize(
    ("mode", "broker", "connects"), [(0o660, WEB, True), (0o660, WORKER, True), (0o640, WEB, False)]
)
def test_who_may_write_a_file_and_nobody_else_reaches_its_broker_or_is_it(path, folder, mode, broker, connects):
    """No setgid bit: a new socket belongs to the own group of the user that serves."""
    folder.chmod(0o777)
    run_as(WEB, written(path, b"", mode=mode))
    os.chown(path, -1, GROUP)
    path.chmod(mode)

    async def serve():
        seat = await LocalFileSystemStorage(path, mode=mode).take_seat(answer)
        assert seat is not None
        made = [os.stat(f"{path}.broker{end}") for end in ("", ".lock")]
        of_writers = mode & 0o660 if mode & 0o020 else 0o600  # a lock can be taken by every user who may open it
        assert [(mode, GROUP), (of_writers, GROUP)] == [(stat.S_IMODE(each.st_mode), each.st_gid) for each in made]
        while not Path(f"{path}.done").exists():
            await asyncio.sleep(0.01)
        await seat.leave()

    async def dial():
        link = await LocalFileSystemStorage(path).dial()
        if link is not None:
            link.close()
        return link is not None

    serving = begin_as(broker, serve)
    try:
        give_up = time.monotonic() + 20
        while not run_as(WEB, dial):
            assert time.monotonic() < give_up
        assert connects == run_as(WORKER, dial)
        assert not run_as(STRANGER, dial, groups=(WEB,))
    finally:
        Path(f"{path}.done").touch()
        end(serving)


def test_a_group_that_may_only_read_cannot_write(path):
    run_as(WEB, written(path, b"web's", mode=0o640))

    async def read():
        return (await LocalFileSystemStorage(path).read())[0]

    assert b"web's" == run_as(WORKER, read)
    with pytest.raises(StorageFatalError, match=f"permission refused; this process .user id {WORKER}"):
        run_as(WORKER, written(path, b"worker's"))
    with pytest.raises(StorageFatalError, match="permission refused"):
        run_as(WORKER, LocalFileSystemStorage(path).check_writable)
    assert (b"web's", {(0o640, GROUP)}) == (path.read_bytes(), modes_and_groups(path))


def test_users_of_one_group_share_the_objects_beside_a_queue(path, folder):
    run_as(WEB, written(path, b"web's", mode=0o660))

    async def create_own_and_remove_the_others():
        storage = LocalFileSystemStorage(path)
        for listed in await storage.list_beside(".history/"):
            assert b"x" == await storage.read_object(listed.suffix)
            await storage.remove_object(listed.suffix)
        await storage.create_object(f".history/{os.geteuid()}", b"x")

    for user in (WEB, WORKER, WEB):
        run_as(user, create_own_and_remove_the_others)
        objects = folder / "queue.json.history"
        [file] = objects.iterdir()
        assert (0o660, GROUP) == (stat.S_IMODE(file.stat().st_mode), file.stat().st_gid)
        assert (0o2770, GROUP) == (stat.S_IMODE(objects.stat().st_mode), objects.stat().st_gid)


@pytest.fixture
def shared(folder):
    """The path of a queue in a folder where every user may create files, and remove only their own, such as /tmp."""
    folder.chmod(0o1777)
    return folder / "queue.json"


def created(path):
    """Return a coroutine function that creates an empty queue."""

    async def create():
        async with BrokerQueue(LocalFileSystemStorage(path)) as queue:
            await queue.apply(CreateQueue())

    return create


async def standing(path):
    """Tell the test that the other user's program is in place, and wait until the test ends it."""
    Path(f"{path}.ready").touch()
    while not Path(f"{path}.done").exists():
        await asyncio.sleep(0.01)


def used(path, caplog, *, offers=True):
    """Return a coroutine function that enqueues, and returns the payloads that are there and the lines of the log."""

    async def use():
        with caplog.at_level("WARNING"):
            async with BrokerQueue(LocalFileSystemStorage(path), deadline=20) as queue:
                if offers:
                    queue.offer()
                for number in range(3):
                    await queue.enqueue("work", b"%d" % number)
                    await asyncio.sleep(0.3)  # each enqueue looks for a broker again
                jobs = (await queue.read_state()).jobs
        ours = [record for record in caplog.records if record.name.startswith("jqueue")]
        return [job.payload for job in jobs], [record.getMessage() for record in ours]

    return use


def in_a_socket(path, owner=STRANGER):
    """Return a program that listens in the broker's place, and returns the bytes that it gets."""

    async def listen():
        got = bytearray()

        async def take(reader, _writer):
            while data := await reader.read(1 << 16):
                got.extend(data)

        with socket.socket(socket.AF_UNIX) as listening:
            if owner != STRANGER:
                os.seteuid(owner)
            listening.bind(f"{path}.broker")
            os.chmod(f"{path}.broker", 0o666)
            if owner != STRANGER:
                os.seteuid(0)
                os.seteuid(STRANGER)
            server = await asyncio.start_unix_server(take, sock=listening)
            await standing(path)
            server.close()
        return bytes(got)

    return listen


def with_a_lock(path):
    """Return a program that holds the lock of the broker."""

    async def hold():
        descriptor = os.open(f"{path}.broker.lock", os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        await standing(path)
        return b""

    return hold


def with_a_pipe(path):
    """Return a program that has put a named pipe there."""

    async def make():
        os.mkfifo(f"{path}.broker.lock", 0o666)
        await standing(path)
        return b""

    return make


def beside_a_stranger(path, program, work, user=WEB, stranger=STRANGER):
    """Run a coroutine function while another user's program runs, and return the results of both."""
    begun = begin_as(stranger, program, groups=())
    try:
        give_up = time.monotonic() + 20
        while not Path(f"{path}.ready").exists():
            assert time.monotonic() < give_up
            time.sleep(0.01)
        done = run_as(user, work)
    finally:
        Path(f"{path}.done").touch()
        got = end(begun)
    return done, got


@pytest.mark.parametrize(("program", "exists"), [(in_a_socket, True), (with_a_lock, False), (with_a_pipe, True)])
def test_a_stranger_in_the_brokers_place_gets_no_call_and_is_named_once(shared, program, exists, caplog):
    if exists:
        run_as(WEB, created(shared))
    (payloads, log), got = beside_a_stranger(shared, program(shared), used(shared, caplog))
    assert ([b"0", b"1", b"2"], b"") == (payloads, got)
    [message] = log
    assert f"{shared}.broker" in message
    assert f"user id {STRANGER}" in message


def test_a_stranger_that_listens_at_a_socket_of_the_owner_gets_no_call(shared, caplog):
    run_as(WEB, created(shared))
    work = used(shared, caplog, offers=False)
    (payloads, [message]), got = beside_a_stranger(shared, in_a_socket(shared, owner=WEB), work, stranger=0)
    assert ([b"0", b"1", b"2"], b"") == (payloads, got)
    assert f"user id {STRANGER}" in message


@pytest.mark.parametrize("program", [in_a_socket, with_a_lock])
def test_root_removes_a_stranger_from_the_brokers_place(shared, program):
    async def serve():
        seat = await LocalFileSystemStorage(shared).take_seat(answer)
        assert seat is not None
        found = os.stat(f"{shared}.broker").st_uid, os.stat(f"{shared}.broker.lock").st_uid
        await seat.leave()
        return found

    assert ((0, 0), b"") == beside_a_stranger(shared, program(shared), serve, user=0)
