"""The parts of jqueue that work on Windows, each tried by a function: run `python -m tests.platforms.windows` there.

Elsewhere, `--imitate` first takes away what Windows lacks: locks, signals, forks, process groups and local sockets. The
imitation cannot show how Windows opens, renames and locks files, or how its event loop and its processes behave.
"""

import asyncio
import contextlib
import functools
import importlib
import io
import multiprocessing.resource_tracker
import os
import pkgutil
import re
import signal
import socket
import sys
import traceback
from typing import Any

import pytest

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
OS = (
    *(
        "fchmod",
        "fchown",
        "fork",
        "forkpty",
        "getegid",
        "geteuid",
        "getgid",
        "getloadavg",
        "getpgid",
        "getuid",
        "killpg",
    ),
    *("lchown", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "pread", "pwrite", "register_at_fork"),
    *("setpgid", "setsid", "statvfs", "sysconf"),
)
SIGNAL = ("alarm", "pthread_kill", "pthread_sigmask", "setitimer", "SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGUSR1")
LOCAL_SOCKETS = ("open_unix_connection", "start_unix_server")


def imitate() -> None:
    """Take away what Windows lacks. The standard library that jqueue uses is imported before, and keeps what it has."""
    importlib.import_module("asyncio.unix_events")
    importlib.import_module("multiprocessing.popen_spawn_posix")
    multiprocessing.resource_tracker.ensure_running()
    sys.modules.update(dict[str, Any](dict.fromkeys(MODULES)))
    socket.socketpair = functools.partial(socket.socketpair, socket.AF_UNIX)  # without it: the loop wakes itself up
    for module, names in ((os, OS), (signal, SIGNAL), (asyncio, LOCAL_SOCKETS), (socket, ("AF_UNIX",))):
        for name in names:
            vars(module).pop(name, None)

    def refuse(*_: object) -> None:
        raise NotImplementedError

    for name in ("add_signal_handler", "create_unix_connection", "create_unix_server"):
        setattr(asyncio.SelectorEventLoop, name, refuse)


def every_module_is_imported() -> None:
    import jqueue

    names = [each.name for each in pkgutil.walk_packages(jqueue.__path__, "jqueue.")]
    for name in names:
        if name != "jqueue.__main__" and not name.startswith("jqueue.spark"):
            importlib.import_module(name)
    assert len(names) > 100


def a_queue_in_a_file_is_refused_in_one_line() -> None:
    from jqueue import LocalFileSystemStorage, open_storage
    from jqueue.domain.errors import StorageFatalError
    from jqueue.formats.dirq.store import DirqStore
    from jqueue.formats.textqueue.store import TextQueueFile
    from jqueue.formats.vsqs.store import VsqsFolder

    for refused in (
        lambda: LocalFileSystemStorage("queue.json"),
        lambda: open_storage("queue.json"),
        lambda: open_storage(r"C:\queues\queue.json"),
        lambda: DirqStore("mail"),
        lambda: TextQueueFile("mail.txt"),
        lambda: VsqsFolder("mail"),
    ):
        with pytest.raises(StorageFatalError) as raised:
            refused()
        assert re.fullmatch(".*Windows.*bucket.*", str(raised.value)), raised.value  # one line


def the_command_line_refuses_a_file_in_one_line() -> None:
    status, output = command("stats", "queue.json")
    assert status == 2, (status, output)
    assert output.count("\n") == 1, output
    assert "Windows" in output, output


def command(*arguments: str) -> tuple[object, str]:
    """Run the command line in this process, and return its exit status and what it printed."""
    from jqueue.cli import main

    before, sys.argv, printed = sys.argv, ["jqueue", *arguments], io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as end:
        return end.code or 0, printed.getvalue()
    finally:
        sys.argv = before
    return 0, printed.getvalue()


def a_worker_does_jobs_of_every_kind() -> None:
    asyncio.run(work(memory()))


def a_worker_and_clients_on_a_bucket_work() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ.update(AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1")
        url = f"s3://bucket/queue.json?endpoint_url=http://{host}:{port}&region_name=us-east-1"
        asyncio.run(on_a_bucket(url))
        from jqueue import sync

        with sync.SyncQueue(url) as queue:
            queue.enqueue("later", b"")
        status, output = command("stats", url)
        assert status == 0, output
        assert "later" in output, output
    finally:
        server.stop()


async def on_a_bucket(url: str) -> None:
    import aiobotocore.session

    from jqueue import BrokerQueue, connect

    endpoint = url.partition("endpoint_url=")[2].partition("&")[0]
    session = aiobotocore.session.get_session()
    async with session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1") as client:
        await client.create_bucket(Bucket="bucket")
    await work(connect(url, BrokerQueue))


def memory() -> Any:
    from jqueue import BrokerQueue, InMemoryStorage

    return BrokerQueue(InMemoryStorage())


async def work(queue: Any) -> None:
    """Do a job in a coroutine, one in a thread, and one in a process; then stop by a signal."""
    from jqueue import Worker
    from tests.platforms.handlers import handlers

    worker = Worker(concurrency=3)
    worker.include(handlers)
    async with queue as opened:
        ids = [await opened.enqueue(name, b"21") for name in ("in_a_coroutine", "in_a_thread", "in_a_process")]
        report = await worker.run(opened, drain=True)
        assert report.succeeded == 3, report
        assert [42, 42, 42] == [await opened.result(each) for each in ids]
        asyncio.get_running_loop().call_later(0.3, signal.raise_signal, signal.SIGINT)
        await asyncio.wait_for(worker.run(opened), 60)


CHECKS = {
    check.__name__: check
    for check in (
        every_module_is_imported,
        a_queue_in_a_file_is_refused_in_one_line,
        the_command_line_refuses_a_file_in_one_line,
        a_worker_does_jobs_of_every_kind,
        a_worker_and_clients_on_a_bucket_work,
    )
}


def main() -> int:
    """Run the named checks, or all of them, and return the number of those that failed."""
    if "--imitate" in sys.argv:
        imitate()
    failed = 0
    for name in [each for each in sys.argv[1:] if each in CHECKS] or CHECKS:
        try:
            CHECKS[name]()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"failed: {name.replace('_', ' ')}", flush=True)
        else:
            print(f"passed: {name.replace('_', ' ')}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
