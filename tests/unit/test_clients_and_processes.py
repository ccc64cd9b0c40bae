"""An open client when its process forks or its event loop ends: real clients, on a server of their own.

The server counts connections, so a test notices if the other process closes one or takes it from the event loop.
"""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.wide

ROOT = pathlib.Path(__file__).parents[2]

SERVER = """
import asyncio, gc, os, sys, threading, warnings
from contextlib import asynccontextmanager

import aiohttp
from jqueue.adapters.storage._client import SharedClient

warnings.simplefilter("always")
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
connections = 0

async def answer(reader, writer):
    global connections
    connections += 1
    while await reader.readline():
        while (await reader.readline()).strip():
            pass
        writer.write(b'HTTP/1.1 200 OK\\r\\nETag: "1"\\r\\nContent-Length: 4\\r\\n\\r\\nbody')
    writer.close()

async def serve():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    started.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    ready.set()
    await asyncio.Event().wait()

started, ready = [], threading.Event()
threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
ready.wait()
[url] = started

@asynccontextmanager
async def generator():
    async with aiohttp.ClientSession() as client:
        yield client

shared = SharedClient(generator)

async def use():
    async with asyncio.timeout(60), shared.lend() as client, client.get(url) as answer:
        assert "body" == await answer.text()

async def use_and_release():
    await use()
    await shared.release()
"""

FORK = """
def fork(what):
    child = os.fork()
    if child:
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), what
        return
    assert 0 == shared.opened
    if "use" in what:
        asyncio.run(use_and_release())
        assert 1 == shared.opened
    if "collect" in what:
        globals().pop("shared")
        gc.collect()
    sys.exit() if "exit" in what else os._exit(0)

WAYS = ["use", "use, exit", "collect", "collect, exit", "use, collect, exit", "exit"]
if sys.version_info >= (3, 14):  # there a child cannot leave a coroutine of its parent: asyncio refuses it
    WAYS = [what for what in WAYS if "exit" not in what]

async def main():
    global connections
    for what in WAYS:
        connections = 0
        await use()
        fork(what)
        await use()
        assert 1 + ("use" in what) == connections, what
        await shared.release()
    assert len(WAYS) == shared.opened

asyncio.run(main())
"""


def in_a_new_process(*code):
    """Run code in a new process. It and its children must print no error or warning."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_opens_its_own_client_and_neither_closes_nor_collects_the_parents():
    in_a_new_process(SERVER, FORK)


def test_a_storage_that_was_not_released_is_closed_when_asyncio_run_ends():
    code = """
from jqueue import S3Storage
os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "c"}
storage = S3Storage("bucket", "key", endpoint_url=url)
asyncio.run(storage.read())
del storage
gc.collect()
"""
    in_a_new_process(SERVER, code)
