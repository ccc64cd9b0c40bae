"""A client of S3 takes a while to open: a thread does the slow part, and the event loop goes on meanwhile."""

import asyncio
import pathlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from jqueue import S3Storage, StorageError
from jqueue.adapters.storage.s3 import InterruptibleModelLoader

ROOT = pathlib.Path(__file__).parents[2]
KEYS: dict[str, Any] = {"access_key_id": "a", "secret_access_key": "b"}
NOBODY = "http://127.0.0.1:1"

OPENS = """
import os, sys, threading

opened = {True: set(), False: set()}

def note(event, arguments):
    if event == "open" and "botocore" in str(arguments[0]) and ".json" in str(arguments[0]):
        opened[threading.current_thread() is threading.main_thread()].add(os.path.basename(arguments[0]))

import asyncio
from jqueue import S3Storage, StorageError

async def main():
    for _ in range(2):
        storage = S3Storage("bucket", "key", None, "us-east-1", "http://127.0.0.1:1")
        try:
            await storage.read()
        except StorageError:
            await storage.release()

os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
before = set(sys.modules)
sys.addaudithook(note)
asyncio.run(main())
assert not opened[True], opened
assert {"endpoints.json", "service-2.json.gz", "endpoint-rule-set-1.json.gz"} <= opened[False], opened
late = [name for name in set(sys.modules) - before if name.partition(".")[0] in ("aiobotocore", "boto3", "botocore")]
assert not late, late
"""


def in_a_new_process(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_the_loops_thread_reads_no_model_and_imports_nothing():
    in_a_new_process(OPENS)


async def test_a_client_is_opened_although_all_threads_of_the_loop_are_taken():
    over = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    held = loop.run_in_executor(None, over.wait)
    storage = S3Storage("bucket", "key", region_name="us-east-1", endpoint_url=NOBODY, **KEYS)
    try:
        with pytest.raises(StorageError, match="EndpointConnectionError"):
            await storage.read()
    finally:
        over.set()
    await held
    await storage.release()


def test_models_are_read_as_botocore_reads_them(tmp_path):
    (tmp_path / "plain.json").write_text('{"b": [{"ä": 1}], "a": null}', encoding="utf-8")
    for path in (tmp_path / "plain", tmp_path / "absent", tmp_path):
        assert JSONFileLoader().load_file(str(path)) == InterruptibleModelLoader().load_file(str(path))
    assert ["b", "a"] == list(InterruptibleModelLoader().load_file(str(tmp_path / "plain")))


async def test_a_write_is_one_round_trip():
    """botocore would ask whether it may send the body, and wait for the answer."""
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(len(b"content"))
        writer.write(b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with S3Storage("bucket", "key", region_name="us-east-1", endpoint_url=url, **KEYS) as storage:
            assert '"1"' == await storage.write(b"content")
    assert 1 == len(asked)
    assert b"expect" not in asked[0].lower()
