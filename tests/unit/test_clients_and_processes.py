"""An open client when its process forks or its event loop ends: real clients, on a server of their own.

The server counts connections, so a test notices if the other process closes one or takes it from the event loop.
"""

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


def in_a_new_process(*code):
    """Run code in a new process. It and its children must print no error or warning."""
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert (0, "") == (done.returncode, done.stderr)


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
